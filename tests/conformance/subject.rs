use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::backend::Backend;
use ringmem::memory::{Both, Buffer, Device, DeviceOnly, Memory, Pinned};
use ringmem::stream::{Module, Pending, Queued, Stream};
use ringmem::{DeviceBytes, Image};

use super::{Figures, IMAGE, LIMIT};

type AnyDevice = Arc<dyn Memory<Visibility = DeviceOnly>>;
type AnyPinned = Arc<dyn Memory<Visibility = Both>>;

/// A backend under test, with memories of it.
pub struct Subject {
    pub backend: Arc<dyn Backend>,
    pub device: AnyDevice,
    pub pinned: AnyPinned,
    /// An image with the kernels of [`IMAGE`], which the backend can run.
    pub image: Image,
    pub figures: Option<Arc<dyn Fn() -> Figures + Send + Sync>>,
    pub forgotten: Arc<AtomicU64>,
}

impl Subject {
    /// Returns a subject with plain memories of device 0 and host kernels. One check exhausts the device.
    pub fn new<B: Backend + ?Sized>(backend: Arc<B>) -> Self {
        let backend = backend.erased();
        let (device, pinned) = (Device::new(&backend, 0), Pinned::new(&backend, 0));
        Self { backend, device: Arc::new(device), pinned: Arc::new(pinned), image: IMAGE, figures: None, forgotten: Arc::default() }
    }

    /// Sets the backend's counters.
    pub fn counting(mut self, figures: impl Fn() -> Figures + Send + Sync + 'static) -> Self {
        self.figures = Some(Arc::new(figures));
        self
    }

    pub(super) fn figures(&self) -> Option<Figures> {
        self.figures.as_ref().map(|figures| figures())
    }

    pub(super) fn live_bytes(&self) -> Option<u64> {
        self.figures().map(|figures| figures.live_bytes)
    }

    pub(super) fn changes<R>(&self, what: &str, expected: impl FnOnce(&mut Figures), run: impl FnOnce() -> R) -> R {
        let before = self.figures();
        let result = run();
        if let Some(mut figures) = before {
            expected(&mut figures);
            assert_eq!(self.figures(), Some(figures), "{what}");
        }
        result
    }

    pub(super) fn nothing<R>(&self, what: &str, run: impl FnOnce() -> R) -> R {
        self.changes(what, |_| (), run)
    }

    pub(super) fn forgets(&self, bytes: u64) {
        self.forgotten.fetch_add(bytes, Relaxed);
    }

    pub(super) fn forgotten_bytes(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    pub(super) fn gpu<T: DeviceBytes>(&self, len: usize) -> Buffer<T, AnyDevice> {
        Buffer::new(Arc::clone(&self.device), len).expect("device memory")
    }

    pub(super) fn gpu_of<T: DeviceBytes>(&self, elements: &[T]) -> Buffer<T, AnyDevice> {
        Buffer::from_slice(Arc::clone(&self.device), elements).expect("device memory")
    }

    pub(super) fn pinned<T: DeviceBytes>(&self, len: usize) -> Buffer<T, AnyPinned> {
        Buffer::new(Arc::clone(&self.pinned), len).expect("pinned memory")
    }

    pub(super) fn pinned_of<T: DeviceBytes>(&self, elements: &[T]) -> Buffer<T, AnyPinned> {
        Buffer::from_slice(Arc::clone(&self.pinned), elements).expect("pinned memory")
    }

    pub(super) fn stream(&self) -> Stream {
        Stream::new(&self.backend, 0).expect("a stream")
    }

    pub(super) fn module(&self) -> Module {
        Module::load(&self.backend, &self.image, &self.image.abi).expect("the image has the ABI that it says")
    }

    pub(super) fn hold(&self, stream: &Stream) -> Held {
        let mut words = Buffer::<u64, _>::new(Pinned::new(&self.backend, 0), 2).expect("pinned memory");
        let address = words.device_address().expect("pinned memory has one").get();
        // SAFETY: two words, atomic on both sides; they list the launch and so outlive the kernel.
        let pending = unsafe { stream.launch(&self.module(), "hold", &[address]) }.expect("a launch");
        words.used_by(stream).expect("its own stream");
        let held = Held { words, pending: Some(pending) };
        // SYNC POINT: the kernel runs. Pairs with hold.
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }

    pub(super) fn increment<T: DeviceBytes>(&self, stream: &Stream, buffer: &mut Buffer<T, AnyDevice>) -> Pending<()> {
        let address = buffer.device_address().expect("device memory has one").get();
        // SAFETY: the buffer lists the launch; not accessed before.
        let pending = unsafe { stream.launch(&self.module(), "increment", &[address, buffer.size_bytes() as u64]) };
        let pending = pending.expect("a launch");
        buffer.used_by(stream).expect("a stream of the same backend");
        pending
    }
}

pub(super) struct Held {
    words: Buffer<u64, Pinned>,
    pending: Option<Pending<()>>,
}

impl Held {
    fn word(&self, index: usize) -> &AtomicU64 {
        let first = self.words.as_ptr().expect("two words have bytes");
        // SAFETY: one of the two words.
        let word = unsafe { first.add(index) };
        // SAFETY: an aligned word, atomic on both sides, that lives as long as `self`.
        unsafe { word.cast().as_ref() }
    }

    /// A later drop does not wait for the kernel.
    pub fn take(&mut self) -> Pending<()> {
        self.pending.take().expect("taken once")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SYNC POINT: the kernel may end. Pairs with hold.
        self.word(1).store(1, Release);
        if let Some(pending) = self.pending.take()
            && !thread::panicking()
        {
            done(pending);
        }
    }
}

pub(super) fn done<T: Queued>(pending: Pending<T>) -> T {
    pending.wait_timeout(LIMIT).expect("done in time").expect("done without an error")
}

pub(super) const HELD_UP: Duration = Duration::from_millis(20);

pub(super) fn held_up<T: Queued>(pending: Pending<T>, by: &str) -> Pending<T> {
    match pending.wait_timeout(HELD_UP) {
        Ok(_) => panic!("done, and should wait for {by}"),
        Err(pending) => pending,
    }
}

pub(super) fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not in time: {fact}");
        thread::yield_now();
    }
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + 7) as u8).collect()
}

pub(super) fn tell_tale() -> (Box<dyn Send>, Arc<()>) {
    let alive = Arc::new(());
    (Box::new(Arc::clone(&alive)), alive)
}
