use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

/// Pins the calling thread to a core, if permitted.
pub fn pin(core: usize) {
    allow(&[core]);
}

fn allow(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A reusable barrier.
pub struct Gate {
    came: AtomicUsize,
    threads: usize,
}

impl Gate {
    /// Creates a barrier for this many threads.
    #[must_use]
    pub const fn new(threads: usize) -> Self {
        Self { came: AtomicUsize::new(0), threads }
    }

    /// Waits for the other threads by spinning: a wake-up takes longer than the measured work.
    pub fn wait(&self) {
        let came = self.came.fetch_add(1, AcqRel) + 1;
        let all = came.next_multiple_of(self.threads);
        let mut spins = 0_u32;
        while self.came.load(Acquire) < all {
            spin_loop();
            spins += 1;
            if spins.is_multiple_of(1024) {
                std::thread::yield_now();
            }
        }
    }
}

/// The work of one thread of a team.
pub type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Boxes a job on its own cache lines.
pub fn job<'a>(work: impl FnOnce() + Send + 'a) -> Job<'a> {
    #[repr(align(128))]
    struct Apart<F>(F);
    impl<F: FnOnce()> Apart<F> {
        fn run(self) {
            (self.0)();
        }
    }
    let apart = Apart(work);
    Box::new(move || apart.run())
}

/// Runs one turn of several threads, each on its core or, with `None`, on core 0 or 1. Returns nanoseconds per message, from the common start to the
/// last end.
pub fn team(messages: u64, members: Vec<(Option<usize>, Job<'_>)>) -> f64 {
    let start = &Gate::new(members.len());
    let member = |core: Option<usize>, work: Job<'_>| {
        core.map_or_else(|| allow(&[0, 1]), pin);
        start.wait();
        let begun = Instant::now();
        work();
        (begun, Instant::now())
    };
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = members.into_iter().map(|(core, work)| scope.spawn(move || member(core, work))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let begun = spans.iter().map(|(begun, _)| *begun).min();
    let ended = spans.iter().map(|(_, ended)| *ended).max();
    let took = begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun);
    took.as_nanos() as f64 / messages as f64
}

/// Runs one turn of two threads: `send` on core 0, `receive` on core 1.
pub fn two_threads(messages: u64, send: impl FnOnce() + Send, receive: impl FnOnce() + Send) -> f64 {
    team(messages, vec![(Some(0), job(send)), (Some(1), job(receive))])
}

/// Returns 0 for near, 1 for far: a compare-exchange round trip takes some 60 ns between cores that share a cache, otherwise 200 or more.
pub(crate) fn class() -> usize {
    const BLOCKS: usize = 15;
    const ROUNDS: u64 = 100;
    static TURN: AtomicU64 = AtomicU64::new(0);
    TURN.store(0, Release);
    let swing = |mine: u64, rounds: u64| {
        for _ in 0..rounds {
            // Each failed try would take the line from the other thread.
            while TURN.load(Acquire) != mine || TURN.compare_exchange(mine, 1 - mine, AcqRel, Acquire).is_err() {
                spin_loop();
            }
        }
    };
    let mut blocks = [Duration::ZERO; BLOCKS];
    let here = || {
        swing(0, ROUNDS);
        for block in &mut blocks {
            let begun = Instant::now();
            swing(0, ROUNDS);
            *block = begun.elapsed();
        }
    };
    two_threads(1, here, || swing(1, ROUNDS * (BLOCKS as u64 + 1)));
    blocks.sort();
    usize::from(blocks[BLOCKS / 2].as_nanos() > u128::from(ROUNDS) * 150)
}
