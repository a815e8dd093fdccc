//! Traits that let one ring implementation run on several machines.
//!
//! 1. Shared words are accessed through [`Word`], payloads through [`SlotCell`], so a model checker that implements both sees every access.
//! 2. Only [`Word::publish_all`] makes writes visible to the other side.
//! 3. The trait does not fix the size of a word, the implementing type does: a model checker's word is larger.

use core::ptr::NonNull;

/// An execution environment: a host thread, a GPU lane or a model checker.
pub trait Machine {
    /// A shared word of 64 bits.
    type Word: Word;
    /// A cell for one payload.
    type Cell<T>: SlotCell<T>;

    /// Translates a device address to a pointer to `bytes` bytes aligned to `align`. Returns `None` if the address is misaligned or no such
    /// memory is mapped there. The caller's protocol decides which accesses are allowed.
    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>>;
}

/// A shared 64-bit word. One agent writes it, others read it.
///
/// # Safety
///
/// Every method is one untorn access (`publish_all`: one per word) with at least the named ordering, at a scope that includes every agent
/// that shares the word.
pub unsafe trait Word {
    /// Creates a word that holds `value`.
    fn new(value: u64) -> Self;
    /// Relaxed load.
    fn load(&self) -> u64;
    /// Acquire load: writes made before the paired publish are visible after it.
    fn load_acquire(&self) -> u64;
    /// Relaxed store.
    fn store(&self, value: u64);
    /// Release store. On a device each one is a full memory barrier at system scope: see [`Word::publish_all`].
    fn store_release(&self, value: u64);
    /// Makes all earlier writes visible to any agent that acquires one of these words, then stores the words.
    ///
    /// On the host these are N release stores. On a device it is one fence and N relaxed stores, because each `st.release.sys` is a full
    /// memory barrier.
    fn publish_all<const N: usize>(words: [(&Self, u64); N]);
}

/// A word with read-modify-write operations. They are atomic within one coherence domain only, not between a CPU and a GPU over PCIe. A
/// protocol that crosses the bus must not require this trait.
///
/// # Safety
///
/// As [`Word`], and each operation is atomic among all agents of one coherence domain.
pub unsafe trait RmwWord: Word {
    /// Stores `new` if the word holds `current`; acquire and release. Returns the previous value in either case.
    ///
    /// # Errors
    ///
    /// The value found, if it was not `current`.
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
/// As [`Word`], where the agents are lanes of one device; both operations are atomic among them.
pub unsafe trait Counter: Word {
    /// Stores `new` if the word holds `current`; relaxed.
    ///
    /// # Errors
    ///
    /// The value found, if it was not `current`.
    fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64>;
    /// Adds with wrapping; release.
    fn add_release(&self, value: u64);
}

/// A cell for one payload, accessed through closures so that a model checker can observe each access.
///
/// # Safety
///
/// Both methods pass a pointer to the same memory, valid for reads and writes of `T` while the cell lives, and access nothing themselves.
pub unsafe trait SlotCell<T> {
    /// Creates a cell that holds `value`.
    fn new(value: T) -> Self;
    /// Calls `read` with a pointer for reading.
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R;
    /// Calls `write` with a pointer for writing.
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R;
}

/// A cell with exactly the bytes of `T`: consecutive cells may be viewed as a slice of `T`.
///
/// # Safety
///
/// `#[repr(transparent)]` over an `UnsafeCell` of `T` or of `MaybeUninit<T>`.
pub unsafe trait SliceCell<T>: SlotCell<T> {}
