use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

pub fn broken() -> (impl Fn() -> u64 + Send + Sync + 'static, Arc<AtomicBool>) {
    let is_broken = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_broken);
    let clock = move || {
        assert!(!theirs.load(Relaxed), "a clock that a test asked for");
        7
    };
    (clock, is_broken)
}
