//! A stream kept busy by the kernel `hold`, until its release.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Instant;

use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::LIMIT;

pub struct Held {
    words: PinnedBuffer<u64>,
    _pending: Pending<()>,
}

impl Held {
    pub fn on(stream: &Stream) -> Self {
        Self::with(stream, Pinned::new(stream.backend(), 0))
    }

    pub fn with(stream: &Stream, memory: Pinned) -> Self {
        let backend = stream.backend();
        let mut words = PinnedBuffer::<u64>::new(memory, 2).expect("room");
        let module = Module::load(backend, &IMAGE, &ABI).expect("our ABI");
        let address = words.device_address().expect("it has one").get();
        // SAFETY: two atomic words, which record the launch.
        let _pending = unsafe { stream.launch(&module, "hold", &[address]) }.expect("a launch");
        words.used_by(stream).expect("its own stream");
        let held = Self { words, _pending };
        let begun = Instant::now();
        while held.word(0).load(Acquire) != 1 {
            assert!(begun.elapsed() < LIMIT, "the kernel does not run");
            thread::yield_now();
        }
        held
    }

    pub fn release(&self) {
        self.word(1).store(1, Release);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: one of them, aligned.
        unsafe { self.words.as_ptr().expect("two words").add(index).cast().as_ref() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}
