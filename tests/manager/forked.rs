//! A manager in a process that was forked from its own.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringmem::Error;
use ringmem::manager::Statistics;

use super::*;

/// Runs `child` in a fork: whether it came to an end, and all was so.
fn fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has this thread only, asks a manager, which is what is tested, and leaves without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        let code = i32::from(!child());
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let begun = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if begun.elapsed() > LIMIT / 6 {
            // SAFETY: our child, which was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_fork_is_refused_everything_and_waits_for_no_lock() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "numbers", &[1, 2, 3]);
    let mut reserved = manager.reserve(KIB).expect("room");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Locks are held at some of the forks.
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let other = manager.create::<u32>("other", 10, plain()).expect("room");
                let _ = manager.statistics();
                manager.free(other).expect("ours");
            }
        });
        let is_refused = |result: Result<(), Error>| matches!(result, Err(Error::Unsupported { .. }));
        let outcomes: Vec<bool> = (0..20)
            .map(|_| {
                fork(|| {
                    [
                        is_refused(manager.find::<u32>("numbers").map(drop)),
                        is_refused(manager.create::<u32>("more", 10, plain()).map(drop)),
                        is_refused(manager.create_in::<u32>(&mut reserved, "more", 10, plain()).map(drop)),
                        is_refused(manager.get_or_create::<u32>("numbers", 3, plain()).map(drop)),
                        is_refused(manager.lease(id).map(drop)),
                        is_refused(manager.lease_mut(id).map(drop)),
                        is_refused(manager.resize_group([(id.into(), 5)])),
                        is_refused(manager.free(id).map(drop)),
                        is_refused(manager.reserve(1).map(drop)),
                        !manager.contains(id),
                        !manager.can_allocate(1),
                        manager.clear() == 0,
                        manager.cleanup(Duration::ZERO, |_| true).is_empty(),
                        manager.statistics() == Statistics::default(),
                    ]
                    .into_iter()
                    .all(|is_so| is_so)
                })
            })
            .collect();
        stop.store(true, Relaxed);
        assert!(outcomes.into_iter().all(|is_so| is_so), "in a fork it does something, or waits");
    });
    assert_eq!(manager.lease(id).expect("here it is").to_vec().expect("a copy"), [1, 2, 3]);
}
