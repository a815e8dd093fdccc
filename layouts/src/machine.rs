//! Traits that let one ring implementation run on several machines. [`Word`] and [`SlotCell`] are the only access to shared memory.

use core::ptr::NonNull;

use crate::attach::Corruption;

/// An execution environment: a host thread, a GPU lane or a model checker.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Machine;
/// use ringmem::ring::spsc;
///
/// /// On a host thread, on a GPU and in a model checker.
/// fn send<M: Machine>(producer: &mut spsc::Producer<'_, u32, M>) -> bool {
///     producer.push(7).is_ok()
/// }
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// assert!(send(&mut producer));
/// assert_eq!(consumer.pop(), Ok(7));
/// ```
pub trait Machine {
    /// A shared word of 64 bits.
    type Word: Word;
    /// A cell for one payload.
    type Cell<T>: SlotCell<T>;
    /// [`Corrupt`](crate::attach::Corrupt) if others may write the rings, [`Infallible`](core::convert::Infallible) if only their ends do.
    type Corrupt: Corruption;

    /// Translates a device address to a pointer to `bytes` bytes; `None` if misaligned for `align` or known to be unmapped, which
    /// [`Host`](crate::Host) does not know.
    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>>;
}

/// A shared 64-bit word. One agent writes it, others read it.
///
/// # Safety
///
/// Every method is one untorn access (`publish_all`: one per word) with at least the named ordering, at a scope of all agents that share the
/// word.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{HostWord, Word};
///
/// fn publish<W: Word>(value: &W, ready: &W) {
///     value.store(7);
///     W::publish_all([(ready, 1)]);
/// }
///
/// let (value, ready) = (HostWord::new(0), HostWord::new(0));
/// publish(&value, &ready);
/// assert_eq!((ready.load_acquire(), Word::load(&value)), (1, 7));
/// ```
pub unsafe trait Word {
    /// Creates a word.
    fn new(value: u64) -> Self;
    /// Relaxed load.
    fn load(&self) -> u64;
    /// Acquire load: sees the writes before the paired publish.
    fn load_acquire(&self) -> u64;
    /// Relaxed store.
    fn store(&self, value: u64);
    /// Release store: on a device a full barrier at system scope.
    fn store_release(&self, value: u64);
    /// Makes all earlier writes visible to any agent that acquires one of these words, then stores the words: on a device, one fence and N
    /// relaxed stores.
    fn publish_all<const N: usize>(words: [(&Self, u64); N]);
}

/// A word with read-modify-writes, atomic within one coherence domain, not over PCIe.
///
/// # Safety
///
/// As [`Word`], and each operation is atomic among all agents of one coherence domain.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{HostWord, RmwWord};
///
/// fn ticket<W: RmwWord>(next: &W) -> u64 {
///     next.fetch_add(1)
/// }
///
/// let next = HostWord::new(0);
/// assert_eq!((ticket(&next), ticket(&next)), (0, 1));
/// ```
pub unsafe trait RmwWord: Word {
    /// Stores `new` if the word holds `current`; acquire and release. Returns `current`.
    ///
    /// # Errors
    ///
    /// The value found instead.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// Adds with wrapping; acquire and release. Returns the previous value.
    fn fetch_add(&self, value: u64) -> u64;
    /// Exchanges; acquire and release. Returns the previous value.
    fn swap(&self, value: u64) -> u64;
}

/// A word in device memory that only lanes of that device access.
///
/// # Safety
///
/// As [`Word`], for the lanes of one device; both operations are atomic among them.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Counter, HostWord};
///
/// fn claim<C: Counter>(next: &C, end: u64) -> Option<u64> {
///     let index = next.load();
///     (index < end && next.exchange_if(index, index + 1).is_ok()).then_some(index)
/// }
///
/// let next = HostWord::new(0);
/// assert_eq!((claim(&next, 1), claim(&next, 1)), (Some(0), None));
/// ```
pub unsafe trait Counter: Word {
    /// Stores `new` if the word holds `current`; relaxed.
    ///
    /// # Errors
    ///
    /// The value found instead.
    fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64>;
    /// Adds with wrapping; release.
    fn add_release(&self, value: u64);
}

/// A cell for one payload. Through its closures a model checker observes each access.
///
/// # Safety
///
/// Both methods pass the same pointer, valid for reads and writes of `T` while the cell lives, and access nothing themselves.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::SlotCell;
/// use ringmem::ring::BareSlot;
///
/// let cell: BareSlot<u32> = SlotCell::new(7);
/// // SAFETY: the cell is initialised, and nothing else accesses it.
/// cell.with_mut(|value| unsafe { *value += 1 });
/// // SAFETY: the cell is initialised, and nothing writes to it.
/// assert_eq!(cell.with(|value| unsafe { *value }), 8);
/// ```
pub unsafe trait SlotCell<T> {
    /// Creates a cell.
    fn new(value: T) -> Self;
    /// Calls `read` with a pointer for reading.
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R;
    /// Calls `write` with a pointer for writing.
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R;
}

/// A cell with the bytes of `T`: consecutive cells are a slice of `T`.
///
/// # Safety
///
/// `#[repr(transparent)]` over an `UnsafeCell` of `T` or of `MaybeUninit<T>`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::BareSlot;
/// use ringmem::{SliceCell, SlotCell};
///
/// fn values<T, C: SliceCell<T>>(cells: &[C]) -> *const [T] {
///     std::ptr::slice_from_raw_parts(cells.as_ptr().cast(), cells.len())
/// }
///
/// let cells: [BareSlot<u32>; 3] = [1, 2, 3].map(SlotCell::new);
/// // SAFETY: the cells are initialised, and nothing writes them.
/// assert_eq!(unsafe { &*values::<u32, _>(&cells) }, [1, 2, 3]);
/// ```
pub unsafe trait SliceCell<T>: SlotCell<T> {}
