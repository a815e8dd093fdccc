//! A stream kept busy by the kernel `hold`, until it is let go.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem::Image;
use ringmem::backend::host::HostBackend;
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem_kernels::{ABI, IMAGE};

const HOLDS: Image = Image { host: &[Entry { name: "hold", arguments: 1, run: hold }], ..IMAGE };

unsafe fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    let word = host.translate(arguments[0], 8).expect("a live word");
    // SAFETY: `Held` keeps it for the launch; an atomic.
    let word = unsafe { word.cast::<AtomicU64>().as_ref() };
    let begun = host.now_ns();
    while word.load(Acquire) == 0 && host.now_ns() - begun < 30_000_000_000 {
        host.pause(4000);
    }
}

pub struct Held {
    word: PinnedBuffer<u64>,
    launch: Option<Pending<()>>,
}

impl Held {
    pub fn new(backend: &Arc<HostBackend>, stream: &Stream) -> Self {
        let word = PinnedBuffer::new(Pinned::new(backend, 0), 1).expect("a word");
        let module = Module::load(backend, &HOLDS, &ABI).expect("our ABI");
        let address = word.device_address().expect("a word has bytes").get();
        // SAFETY: the word outlives the launch, an atomic.
        let launch = unsafe { stream.launch(&module, "hold", &[address]) }.expect("queued");
        Self { word, launch: Some(launch) }
    }

    pub fn let_go(self) {
        drop(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(word), Some(launch)) = (self.word.as_ptr(), self.launch.take()) else { return };
        // SAFETY: live, an atomic.
        unsafe { word.cast::<AtomicU64>().as_ref() }.store(1, Release);
        assert!(launch.wait().is_ok() || std::thread::panicking());
    }
}
