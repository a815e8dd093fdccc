use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::{HostWord, RmwWord};

/// Puts threads to sleep, wakes them, and keeps wakers. Model checks replace it.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::HostWord;
/// use ringmem::ring::spsc;
/// use ringmem::wait::{Os, Park, WaitStrategy, Waiting};
///
/// /// Sleeps at most a millisecond at a time.
/// #[derive(Default)]
/// struct Naps;
///
/// impl Park<HostWord> for Naps {
///     type WakerList = <Os as Park<HostWord>>::WakerList;
///
///     fn wait(&self, word: &HostWord, epoch: u32, most: Option<Duration>) {
///         let nap = Duration::from_millis(1);
///         Os.wait(word, epoch, Some(most.map_or(nap, |most| most.min(nap))));
///     }
///     fn wake(&self, word: &HostWord) {
///         Os.wake(word);
///     }
/// }
///
/// let (producer, consumer) = spsc::bounded(8);
/// let (mut sender, mut receiver) = Waiting::<_, Naps>::pair(producer, consumer, WaitStrategy::default());
/// std::thread::scope(|threads| {
///     threads.spawn(|| sender.send(7));
///     assert_eq!(receiver.recv(), Ok(7));
/// });
/// ```
pub trait Park<W>: Default {
    /// The wakers of one side.
    type WakerList: WakerList;

    /// Returns after [`wake`](Self::wake) once the word's high half differs from `epoch`, on timeout, or spuriously.
    fn wait(&self, word: &W, epoch: u32, most: Option<Duration>);

    /// Wakes all threads that wait on the word.
    fn wake(&self, word: &W);
}

/// Wakers by key, under a lock.
///
/// ```
/// use std::sync::Mutex;
/// use std::task::Waker;
///
/// use ringmem::wait::WakerList;
///
/// fn wake_all(wakers: &impl WakerList) -> usize {
///     let wakers = wakers.with(std::mem::take);
///     wakers.iter().for_each(|(_, waker)| waker.wake_by_ref());
///     wakers.len()
/// }
///
/// let wakers = Mutex::new(vec![(7, Waker::noop().clone())]);
/// assert_eq!((wake_all(&wakers), wake_all(&wakers)), (1, 0));
/// ```
pub trait WakerList: Default {
    /// Calls `run` with the lock held.
    fn with<R>(&self, run: impl FnOnce(&mut Vec<(u64, Waker)>) -> R) -> R;
}

/// The operating system: a futex on Linux, even between processes; elsewhere sleeps of up to a millisecond.
///
/// ```
/// use std::sync::atomic::Ordering::{Acquire, Release};
///
/// use ringmem::HostWord;
/// use ringmem::wait::{Os, Park};
///
/// let word = HostWord::new(0);
/// let has_woken = || word.load(Acquire) >> 32 == 1;
/// std::thread::scope(|threads| {
///     threads.spawn(|| while !has_woken() { Os.wait(&word, 0, None) });
///     word.fetch_add(1 << 32, Release); // the high half counts wake-ups
///     Os.wake(&word);
/// });
/// assert!(has_woken());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

impl WakerList for Mutex<Vec<(u64, Waker)>> {
    fn with<R>(&self, run: impl FnOnce(&mut Vec<(u64, Waker)>) -> R) -> R {
        // Cloning a waker may panic; the list is unchanged.
        run(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Park<HostWord> for Os {
    type WakerList = Mutex<Vec<(u64, Waker)>>;

    fn wait(&self, word: &HostWord, epoch: u32, most: Option<Duration>) {
        system::wait(word, epoch, most);
    }

    fn wake(&self, word: &HostWord) {
        system::wake(word);
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::sync::atomic::AtomicU32;

    use rustix::thread::futex::{self, Flags, Timespec};

    use super::*;

    pub fn wait(word: &HostWord, epoch: u32, most: Option<Duration>) {
        let most = most.and_then(|most| {
            let (seconds, nanoseconds) = (i64::try_from(most.as_secs()).ok()?, i64::from(most.subsec_nanos()));
            Some(Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ })
        });
        let _ = futex::wait(high_half(word), Flags::empty(), epoch, most.as_ref());
    }

    pub fn wake(word: &HostWord) {
        // Cannot fail: the word is mapped and aligned.
        let _ = futex::wake(high_half(word), Flags::empty(), i32::MAX as u32);
    }

    fn high_half(word: &HostWord) -> &AtomicU32 {
        let place = if cfg!(target_endian = "little") { 1 } else { 0 };
        // SAFETY: within the word, and aligned. Only the kernel accesses it, atomically.
        unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>().add(place) }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::sync::atomic::Ordering::Acquire;

    use super::*;

    pub fn wait(word: &HostWord, epoch: u32, most: Option<Duration>) {
        const NAP: Duration = Duration::from_millis(1);
        if (word.load(Acquire) >> 32) as u32 == epoch {
            std::thread::sleep(most.map_or(NAP, |most| most.min(NAP)));
        }
    }

    pub fn wake(_: &HostWord) {}
}

/// Wakes the other side's sleepers, for an end without [`Waiting`].
pub(crate) fn wake_sleepers(word: &HostWord) {
    const ONE_WAKE: u64 = 1 << 32;
    // SYNC POINT: asleep. Pairs with Waiting::sleep, as Waiting::ring does.
    if RmwWord::fetch_add(word, 0) as u32 != 0 {
        RmwWord::fetch_add(word, ONE_WAKE);
        Os.wake(word);
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Acquire;
    use std::sync::mpsc::channel;
    use std::{format, fs, thread};

    use super::*;
    use crate::eventually::{LIMIT, eventually};

    /// The ends that call this sleep at most 100 ms at a time, which hides a lost wake-up: this sleep has no limit.
    #[test]
    fn wake_sleepers_ends_a_sleep_without_a_limit() {
        let (word, (asleep, is_asleep)) = (Arc::new(HostWord::new(1)), channel());
        let slept = Arc::clone(&word);
        let sleeper = thread::spawn(move || {
            asleep.send(rustix::thread::gettid().as_raw_nonzero()).expect("the test");
            while slept.load(Acquire) >> 32 == 0 {
                Os.wait(&slept, 0, None);
            }
        });
        let state = format!("/proc/self/task/{}/stat", is_asleep.recv_timeout(LIMIT).expect("the thread"));
        let is_in_futex =
            || fs::read_to_string(&state).is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")));
        eventually("the thread sleeps", is_in_futex);
        wake_sleepers(&word);
        eventually("the thread is awake", || sleeper.is_finished());
        assert_eq!(word.load(Acquire), 1 << 32 | 1, "one wake-up; a sleeper strikes itself off");
        wake_sleepers(&HostWord::new(7 << 32));
    }
}
