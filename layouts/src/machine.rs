//! One protocol, many machines: what a ring needs from whoever runs it.
//!
//! 1. Shared words are reached through [`Word`], payload through [`SlotCell`], so a model checker that implements both sees all.
//! 2. [`Word::publish_all`] is the one place where things become visible to the other side.
//! 3. The size of a word is promised by the machine's own type, not by the trait: a model checker's word is larger.

use core::ptr::NonNull;

/// Who runs the protocol: a host thread, a GPU lane, a model checker.
pub trait Machine {
    /// A shared word of 64 bits.
    type Word: Word;
    /// A place for one payload.
    type Cell<T>: SlotCell<T>;

    /// Turns a device address into a place of `bytes` bytes, aligned to `align`; `None` where nothing of that size is mapped
    /// there or the address is misaligned. What may be done with the place is the caller's protocol to say.
    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>>;
}

/// A shared word of 64 bits. One agent writes it, others read it.
///
/// # Safety
///
/// Every method is one untorn access, or several to `publish_all`, with at least the ordering that it names, at a scope that includes every
/// agent that shares the word.
pub unsafe trait Word {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Relaxed load.
    fn load(&self) -> u64;
    /// Acquire load: what was written before the paired publish is visible after it.
    fn load_acquire(&self) -> u64;
    /// Relaxed store.
    fn store(&self, value: u64);
    /// Release store. On a device each one is a barrier to the bus: see [`Word::publish_all`].
    fn store_release(&self, value: u64);
    /// Makes all earlier writes visible to whoever acquires any of these words, then stores them.
    ///
    /// On the host N release stores; on a device one fence and N relaxed stores, because each `st.release.sys` there is a full memory barrier.
    fn publish_all<const N: usize>(words: [(&Self, u64); N]);
}

/// A word with read-modify-write operations. They are atomic within one coherence domain only: between a CPU and a GPU over PCIe they are
/// not, so no protocol that crosses the bus may ask for this trait.
///
/// # Safety
///
/// As [`Word`], and each operation is atomic among all agents of one coherence domain.
pub unsafe trait RmwWord: Word {
    /// Stores `new` if the word holds `current`; acquire and release. The value found is in both results.
    ///
    /// # Errors
    ///
    /// The value found, where it was not `current`.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// Adds, wrapping; acquire and release. The value before.
    fn fetch_add(&self, value: u64) -> u64;
    /// Exchanges; acquire and release. The value before.
    fn swap(&self, value: u64) -> u64;
}

/// A word in a device's own memory that only groups of lanes on that device touch: no other side, and no bus between them.
///
/// # Safety
///
/// As [`Word`], where the agents are those of one device; both operations are atomic among them.
pub unsafe trait Counter: Word {
    /// Stores `new` if the word holds `current`; relaxed.
    ///
    /// # Errors
    ///
    /// The value found, where it was not `current`.
    fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64>;
    /// Adds, wrapping; release.
    fn add_release(&self, value: u64);
}

/// A place for one payload, reached through closures so that a model checker can watch.
///
/// # Safety
///
/// Both methods pass a pointer to the same place, valid for reads and writes of `T` as long as the cell lives, and access nothing themselves.
pub unsafe trait SlotCell<T> {
    /// A cell that holds `value`.
    fn new(value: T) -> Self;
    /// For reading.
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R;
    /// For writing.
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R;
}

/// A cell with the bytes of `T` and nothing else: consecutive cells may be seen as a slice of `T`.
///
/// # Safety
///
/// `#[repr(transparent)]` over an `UnsafeCell` of `T` or of `MaybeUninit<T>`.
pub unsafe trait SliceCell<T>: SlotCell<T> {}
