use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

pub struct Patience {
    times: u32,
    since: Option<Instant>,
}

impl Patience {
    pub const fn new() -> Self {
        Self { times: 0, since: None }
    }
    pub fn wait(&mut self) {
        self.times += 1;
        if !self.times.is_multiple_of(64) {
            return spin_loop();
        }
        thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        assert!(since.elapsed() < Duration::from_secs(60), "no progress for a minute");
    }
}

#[allow(dead_code, reason = "for those who retry one operation")]
pub fn insist<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
    let mut patience = Patience::new();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        patience.wait();
    }
}
