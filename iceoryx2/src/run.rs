use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// Moved messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Messages.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

impl Moved {
    pub(crate) const fn count(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    pub(crate) const fn since(self, before: Self) -> Self {
        Self { messages: self.messages - before.messages, bytes: self.bytes - before.bytes }
    }
}

impl core::ops::Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

const YIELDING: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// Calls `pump` until `stop` is true and a call moves nothing; returns the sum.
///
/// An idle thread yields for 100 us, then sleeps up to 1 ms between calls.
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// # use iceoryx2::prelude::*;
/// # use ringmem::backend::host::HostBackend;
/// # use ringmem::channel::Channel;
/// # use ringmem_iceoryx2::{Feed, Link, Publish, run};
/// # use ringmem_kernels::echo::{ECHO, Echo};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use iceoryx2::prelude::local as ipc; // in this process
/// # let node = NodeBuilder::new().create::<ipc::Service>()?;
/// # let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// let mut feed = Feed::new(&Link::messages::<Echo>(&node, "run/questions")?)?;
/// let mut publish = Publish::messages(&Link::messages::<Echo>(&node, "run/answers")?)?;
/// let stop = AtomicBool::new(true); // set by a signal handler, for example
/// run(&stop, || Ok(feed.pump(&mut channel)? + publish.pump(&mut channel)?))?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The first of `pump`.
pub fn run(stop: &AtomicBool, mut pump: impl FnMut() -> Result<Moved, Error>) -> Result<Moved, Error> {
    let (mut total, mut idle, mut sleep) = (Moved::default(), None::<Instant>, Duration::ZERO);
    loop {
        let stopped = stop.load(Relaxed);
        let moved = pump()?;
        total = total + moved;
        if moved.messages > 0 {
            (idle, sleep) = (None, Duration::ZERO);
        } else if stopped {
            return Ok(total);
        } else if idle.get_or_insert_with(Instant::now).elapsed() < YIELDING {
            thread::yield_now();
        } else {
            sleep = (2 * sleep).clamp(SHORTEST, LONGEST);
            thread::sleep(sleep);
        }
    }
}
