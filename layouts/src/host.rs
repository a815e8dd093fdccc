#![cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::align::is_aligned;
use crate::attach::Corrupt;
use crate::{Counter, Layout, LayoutDescriptor, Machine, RmwWord, SliceCell, SlotCell, Word};

/// A shared word on the host.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::sync::atomic::Ordering::{Acquire, Release};
/// use ringmem::HostWord;
///
/// let ready = HostWord::new(0);
/// std::thread::scope(|threads| threads.spawn(|| ready.store(1, Release)).join().unwrap());
/// assert_eq!(ready.load(Acquire), 1);
/// ```
#[cfg(target_has_atomic = "64")]
pub type HostWord = core::sync::atomic::AtomicU64;
/// A shared word, for targets without 64-bit atomics.
#[cfg(not(target_has_atomic = "64"))]
pub type HostWord = portable_atomic::AtomicU64;

/// The host: an address is a pointer.
///
/// Without 64-bit atomics (feature `portable-atomic`), portable-atomic guards each word with a lock; an interrupt handler that needs a lock
/// held by the interrupted code deadlocks. On a single core enable its feature `unsafe-assume-single-core`, which disables interrupts
/// instead.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Host, Machine};
///
/// let value = 7_u64;
/// let address = &raw const value as u64;
/// let place = Host.at(address, 8, 8).expect("aligned");
/// // SAFETY: it points to `value`.
/// assert_eq!(unsafe { place.cast::<u64>().read() }, 7);
/// assert_eq!(Host.at(address + 1, 8, 8), None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Machine for Host {
    type Word = HostWord;
    type Cell<T> = HostCell<T>;
    type Corrupt = Corrupt;

    fn at(&self, address: u64, _bytes: u64, align: u64) -> Option<NonNull<u8>> {
        let address = usize::try_from(address).ok()?;
        NonNull::new(is_aligned(address as u64, align).then_some(address)? as *mut u8)
    }
}

/// The [`Host`], for rings that only their own ends write, as those of `split` and `bounded`. Their errors cannot be
/// [`Corrupt`](crate::attach::Corrupt).
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::spsc::{Producer, PushError, Ring};
///
/// fn send(producer: &mut Producer<'_, u32, Local>) -> Option<u32> {
///     let Err(PushError::Full(value)) = producer.push(7) else { return None };
///     Some(value) // no room
/// }
///
/// let mut ring = Ring::<u32, 1>::new();
/// let (mut producer, _consumer) = ring.split();
/// assert_eq!((send(&mut producer), send(&mut producer)), (None, Some(7)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Machine for Local {
    type Word = HostWord;
    type Cell<T> = HostCell<T>;
    type Corrupt = Infallible;

    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        Host.at(address, bytes, align)
    }
}

/// A slot on the host: a `T`, initialised or not.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::SlotCell;
/// use ringmem::ring::BareSlot;
///
/// let cell = BareSlot::<u32>::empty(); // a `HostCell<u32>`
/// // SAFETY: nothing else accesses the cell.
/// cell.with_mut(|slot| unsafe { slot.write(7) });
/// // SAFETY: the slot was just initialised, and nothing else accesses the cell.
/// assert_eq!(cell.with(|slot| unsafe { slot.read() }), 7);
/// ```
#[repr(transparent)]
pub struct HostCell<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> HostCell<T> {
    /// Returns an uninitialised cell.
    #[must_use]
    pub const fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

// SAFETY: both pointers are `UnsafeCell::get`'s; nothing is accessed.
unsafe impl<T> SlotCell<T> for HostCell<T> {
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(MaybeUninit::new(value)))
    }
    #[inline]
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get().cast_const().cast())
    }
    #[inline]
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get().cast())
    }
}

// SAFETY: `repr(transparent)` over `UnsafeCell<MaybeUninit<T>>`.
unsafe impl<T> SliceCell<T> for HostCell<T> {}

// The same hash as `u64`. SAFETY: transparent over a word of 64 bits.
#[diagnostic::do_not_recommend]
unsafe impl Layout for HostWord {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor { align: align_of::<Self>(), ..u64::DESCRIPTOR };
}

const _: () = assert!(size_of::<HostWord>() == 8 && align_of::<HostWord>() == 8);

// SAFETY: an atomic of 64 bits; all host threads share a coherence domain.
unsafe impl Word for HostWord {
    #[inline]
    fn new(value: u64) -> Self {
        HostWord::new(value)
    }
    #[inline]
    fn load(&self) -> u64 {
        HostWord::load(self, Relaxed)
    }
    #[inline]
    fn load_acquire(&self) -> u64 {
        HostWord::load(self, Acquire)
    }
    #[inline]
    fn store(&self, value: u64) {
        HostWord::store(self, value, Relaxed);
    }
    #[inline]
    fn store_release(&self, value: u64) {
        HostWord::store(self, value, Release);
    }
    #[inline]
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        // Each store is a release, instead of one fence before them: ThreadSanitizer does not see fences.
        for (word, value) in words {
            Word::store_release(word, value);
        }
    }
}

// SAFETY: an atomic of 64 bits, and each method is one atomic operation; all host threads share a coherence domain.
unsafe impl RmwWord for HostWord {
    #[inline]
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        HostWord::compare_exchange(self, current, new, AcqRel, Acquire)
    }
    #[inline]
    fn fetch_add(&self, value: u64) -> u64 {
        HostWord::fetch_add(self, value, AcqRel)
    }
    #[inline]
    fn swap(&self, value: u64) -> u64 {
        HostWord::swap(self, value, AcqRel)
    }
}

// SAFETY: an atomic of 64 bits, and both methods are one atomic operation.
unsafe impl Counter for HostWord {
    #[inline]
    fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64> {
        HostWord::compare_exchange(self, current, new, Relaxed, Relaxed).map(drop)
    }
    #[inline]
    fn add_release(&self, value: u64) {
        HostWord::fetch_add(self, value, Release);
    }
}

const _: [LayoutDescriptor; 4] = [
    <crate::ControlBlock<HostWord> as Layout>::DESCRIPTOR,
    <crate::TelemetryBuffer<HostWord> as Layout>::DESCRIPTOR,
    <crate::RingHeader<HostWord> as Layout>::DESCRIPTOR,
    <crate::RegionHeader<HostWord> as Layout>::DESCRIPTOR,
];
