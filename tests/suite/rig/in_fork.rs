//! Runs a call in a forked child, and waits for it.

use std::thread;
use std::time::{Duration, Instant};

use crate::LIMIT;

pub fn fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has only this thread, makes the tested call, and exits without destructors.
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
        // SAFETY: our child; a place for its status.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if begun.elapsed() > LIMIT {
            // SAFETY: our child, not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
}
