//! Waits of the host that end by the progress of the kernel, not by time: a slow machine fails no test.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// A kernel that makes no step for so long has ended, or waits for ever.
const LIMIT: Duration = Duration::from_secs(120);
/// A running kernel that has made so many steps does not make the fact true any more.
const STEPS: u64 = 1 << 24;
/// The host polls the fact so often after these steps, since it may not have run during them.
const POLLS: u32 = 1000;

thread_local! {
    static KERNEL: RefCell<Arc<Steps>> = RefCell::default();
}

/// Counts a kernel's accesses of memory, readings of the clock and dry rounds.
#[derive(Default)]
pub struct Steps(AtomicU64);

impl Steps {
    /// Returns a new count, which the waits of this thread watch from now on.
    pub fn watched() -> Arc<Self> {
        let steps = Arc::default();
        KERNEL.set(Arc::clone(&steps));
        steps
    }

    pub fn step(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct Patience {
    begun: u64,
    seen: u64,
    moved_at: Instant,
    late: u32,
}

impl Patience {
    const fn new(steps: u64, now: Instant) -> Self {
        Self { begun: steps, seen: steps, moved_at: now, late: 0 }
    }

    /// Takes the steps after a poll that found the fact false; returns an error if the fact never becomes true.
    fn poll(&mut self, steps: u64, now: Instant) -> Result<(), String> {
        let made = steps - self.begun;
        if steps != self.seen {
            (self.seen, self.moved_at) = (steps, now);
        }
        self.late += u32::from(made >= STEPS);
        if self.late >= POLLS {
            return Err(format!("the kernel made {made} steps"));
        }
        let still = now.saturating_duration_since(self.moved_at);
        if still > LIMIT { Err(format!("the kernel made no step for {still:?}, after {made}")) } else { Ok(()) }
    }
}

pub fn until(fact: &str, mut holds: impl FnMut() -> bool) {
    let kernel = KERNEL.with_borrow(Arc::clone);
    let mut patience = Patience::new(kernel.0.load(Relaxed), Instant::now());
    let mut times = 0_u32;
    while !holds() {
        if let Err(why) = patience.poll(kernel.0.load(Relaxed), Instant::now()) {
            panic!("waited in vain: {fact}: {why}");
        }
        times = times.saturating_add(1);
        if times < 1000 { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
    }
}

#[test]
fn a_wait_lasts_as_long_as_a_slow_kernel_makes_steps() {
    let begun = Instant::now();
    let mut patience = Patience::new(7, begun);
    for step in 1..1000 {
        patience.poll(7 + u64::from(step), begun + step * LIMIT).expect("a step in time");
    }
    let last = begun + 999 * LIMIT;
    patience.poll(1006, last + LIMIT).expect("at the limit");
    let why = patience.poll(1006, last + LIMIT + Duration::from_secs(1)).expect_err("no step since");
    assert_eq!(why, "the kernel made no step for 121s, after 999");
}

#[test]
fn a_wait_for_a_running_kernel_ends_after_steps_and_polls() {
    let begun = Instant::now();
    let mut patience = Patience::new(7, begun);
    patience.poll(7 + STEPS - 1, begun).expect("one step is left");
    for poll in 1..POLLS {
        patience.poll(7 + STEPS + u64::from(poll), begun).expect("the host was late");
    }
    assert!(patience.poll(7 + 2 * STEPS, begun).is_err());
}

#[test]
fn steps_of_a_device_count_for_the_waits_of_its_thread() {
    use ringmem_layouts::image::KernelHost;

    let device = crate::memory::Device::new([]);
    thread::scope(|scope| {
        scope.spawn(|| {
            device.pause(1);
            let _ = device.translate(0, 8);
            device.now_ns()
        });
    });
    assert_eq!(KERNEL.with_borrow(|kernel| kernel.0.load(Relaxed)), 3);
}
