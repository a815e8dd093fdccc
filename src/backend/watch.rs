//! Polls tickets, for backends without completion callbacks.

use core::mem::{self, take};
use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::vec::Vec;

use super::{Backend, Ticket};
use crate::sys::fork::Process;
use crate::sys::panic::caught;

const LEAST: Duration = Duration::from_micros(20);
const MOST: Duration = Duration::from_millis(1);

struct Watched {
    ticket: Option<(Arc<dyn Backend>, Ticket)>,
    /// Polls before it is woken.
    looks: u32,
    waker: Waker,
}

struct Watch {
    new: Vec<Watched>,
    /// Where the thread runs: a forked child has none.
    runs: Option<Process>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { new: Vec::new(), runs: None });

/// At completion; at once, to poll again, without a thread.
pub(crate) fn watch(backend: Arc<dyn Backend>, ticket: Ticket, waker: Waker) {
    add(Watched { ticket: Some((backend, ticket)), looks: 0, waker });
}

/// For memory whose writer sends no wake-up: after 20 µs, doubled for each poll.
pub(crate) fn soon(waker: Waker, looks: u32) {
    add(Watched { ticket: None, looks, waker });
}

fn add(watched: Watched) {
    let mut watch = state();
    if watch.runs.as_ref().is_some_and(|process| !process.is_this()) {
        // Tasks of the parent.
        mem::forget(take(&mut watch.new));
        watch.runs = None;
    }
    watch.new.push(watched);
    if watch.runs.is_none() {
        watch.runs = thread::Builder::new().name("ringmem-watch".into()).spawn(run).ok().map(|_| Process::this());
    }
    let unwatched = if watch.runs.is_some() { Vec::new() } else { take(&mut watch.new) };
    drop(watch);
    unwatched.into_iter().for_each(Watched::wake);
}

fn run() {
    let (mut watched, mut pause) = (Vec::<Watched>::new(), LEAST);
    loop {
        let known = watched.len();
        {
            let mut watch = state();
            watched.append(&mut watch.new);
            if watched.is_empty() {
                watch.runs = None;
                return;
            }
        }
        let is_new = watched.len() > known;
        let over: Vec<_> = watched.extract_if(.., Watched::is_over).collect();
        pause = if is_new || !over.is_empty() { LEAST } else { MOST.min(pause * 2) };
        over.into_iter().for_each(Watched::wake);
        thread::sleep(pause);
    }
}

impl Watched {
    fn is_over(&mut self) -> bool {
        match &self.ticket {
            Some((backend, ticket)) => backend.is_complete(*ticket),
            None => {
                let is_over = self.looks == 0;
                self.looks = self.looks.saturating_sub(1);
                is_over
            }
        }
    }

    /// A panic does not prevent the next wake-up.
    fn wake(self) {
        caught(|| self.waker.wake());
        caught(|| drop(self.ticket));
    }
}

fn state() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;
    use std::task::Wake;

    use super::*;
    use crate::backend::host::HostBackend;
    use crate::eventually::eventually;
    use crate::stream::Stream;

    #[derive(Default)]
    struct Task(AtomicU64);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that a test asked for");
        }
    }

    /// No ticket of the stream completes while the mutex is locked.
    fn gated() -> (Arc<Mutex<()>>, Arc<HostBackend>, Stream) {
        let gate = Arc::new(Mutex::new(()));
        let clock = Arc::clone(&gate);
        let clock = move || {
            drop(clock.lock());
            0
        };
        let backend = HostBackend::builder().device_memory(1 << 20).clock(Arc::new(clock)).build().expect("a backend");
        let stream = Stream::new(&backend, 0).expect("a stream");
        (gate, backend, stream)
    }

    #[test]
    fn a_task_is_woken_once_when_its_ticket_completes() {
        let (gate, backend, stream) = gated();
        let dynamic = Arc::clone(&backend).erased();
        for _ in 0..3 {
            let held = gate.lock().expect("nobody panicked");
            let (ticket, task) = (backend.record(stream.id()).expect("it is queued").expect("timed"), Arc::new(Task::default()));
            watch(Arc::clone(&dynamic), ticket, Waker::from(Arc::new(Panics)));
            watch(Arc::clone(&dynamic), ticket, Waker::from(Arc::clone(&task)));
            thread::sleep(MOST * 5);
            assert_eq!(task.0.load(Relaxed), 0, "it is not executed");
            drop(held);
            eventually("the task is woken", || task.0.load(Relaxed) == 1);
            eventually("nothing is kept", || Arc::strong_count(&task) == 1 && state().runs.is_none());
            assert_eq!(task.0.load(Relaxed), 1);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_forked_child_wakes_its_tasks_and_not_its_parents() {
        let (gate, backend, stream) = gated();
        let (parents, held) = (Arc::new(Task::default()), gate.lock().expect("nobody panicked"));
        let ticket = backend.record(stream.id()).expect("it is queued").expect("timed");
        watch(Arc::clone(&backend).erased(), ticket, Waker::from(Arc::clone(&parents)));
        // Not while another thread holds the lock.
        let watch = state();
        // SAFETY: the child has only this thread, makes the tested call, and exits without destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no fork");
        drop(watch);
        if pid == 0 {
            // SAFETY: ends a child that never returns.
            unsafe { libc::alarm(30) };
            let own = Arc::new(Task::default());
            soon(Waker::from(Arc::clone(&own)), 0);
            while own.0.load(Relaxed) == 0 {
                thread::yield_now();
            }
            let is_apart = parents.0.load(Relaxed) == 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_apart)) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "the child's task is not woken, or the parent's is");
        drop(held);
        eventually("the parent's task is woken", || parents.0.load(Relaxed) == 1);
    }
}
