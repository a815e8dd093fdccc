//! A pool whose thread may not call `membarrier`.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::error::Unavailable;
use ringmem::pool::Classes;

use super::{Bytes, LIMIT, MIB, backend, builder, give};

/// Installs a seccomp filter for the calling thread only.
fn forbid_membarrier() {
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // Loads the number of the system call.
        jump((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        jump((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, libc::SYS_membarrier as u32, 0, 1),
        jump((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        jump((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: sets two attributes of this thread; the kernel copies the program.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0),
        ]
    };
    assert_eq!(outcomes, [0; 2], "{}", std::io::Error::last_os_error());
}

fn has_membarrier() -> bool {
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    // SAFETY: a query, which accesses no memory.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    commands > 0 && commands & PRIVATE_EXPEDITED != 0
}

#[test]
fn out_of_memory_names_membarrier_if_other_caches_cannot_be_flushed() {
    if !has_membarrier() {
        // The pool uses fences, and reaches all caches.
        return;
    }
    let backend = backend(64 * MIB);
    let small = Classes::new(4096, 9, 1).expect("powers of two");
    let one_slab = || builder(&backend).limit(4 * MIB).slab(4 * MIB).patience(Duration::ZERO);
    for pool in [one_slab().build().expect("a pool"), one_slab().classes(small).build().expect("a pool")] {
        let ((sender, receiver), (done, is_done), (leave, left)) = (mpsc::channel::<Vec<Bytes>>(), mpsc::channel(), mpsc::channel::<()>());
        let idle = thread::spawn(move || {
            drop(receiver.recv_timeout(LIMIT).expect("blocks"));
            done.send(()).expect("the test waits");
            let _ = left.recv_timeout(LIMIT);
        });
        sender.send((0..4).map(|_| give(&pool, MIB)).collect()).expect("the thread runs");
        is_done.recv_timeout(LIMIT).expect("dropped in time");
        let refused = thread::scope(|scope| {
            let request = || {
                forbid_membarrier();
                Bytes::new(pool.clone(), 4 << 20).map(drop)
            };
            scope.spawn(request).join().expect("no panic")
        });
        let error = refused.expect_err("the blocks are in another thread's cache");
        let Error::OutOfMemory { unavailable: Some(unavailable), .. } = &error else { panic!("{error}") };
        assert_eq!(**unavailable, Unavailable::Caches { bytes: 4 * MIB, caches: 2 }, "of the idle thread and of this one");
        let text = "; 4 MiB are live or in 2 caches of other threads, which cannot be flushed because the system call membarrier fails";
        assert!(error.to_string().contains(text), "{error}");
        drop(give(&pool, 4 * MIB));
        assert_eq!(pool.statistics().reserved_peak, 4 * MIB, "no block was lost");
        leave.send(()).expect("the thread runs");
        idle.join().expect("no panic");
    }
}
