//! A device allocation.

use core::fmt;
use core::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::device::Device;
use super::pinned::PinnedMemory;
use crate::backend::DeviceAddress;
use crate::{Error, Result};

/// Device memory. It has an address and a length; its bytes come to the host by [`Stream::download`](super::Stream::download) only.
///
/// Freed when this is dropped and no queued operation, and no launch that names it in an argument, is left.
///
/// ```
/// fn address(memory: &ringmem::backend::host::DeviceMemory) -> u64 {
///     memory.address().get()
/// }
/// ```
/// ```compile_fail
/// fn bytes(memory: &ringmem::backend::host::DeviceMemory) -> &[u8] {
///     memory.as_slice()
/// }
/// ```
/// ```compile_fail
/// fn bytes(memory: &ringmem::backend::host::DeviceMemory) -> &[u8] {
///     memory.as_ref()
/// }
/// ```
/// ```compile_fail
/// fn byte(memory: &ringmem::backend::host::DeviceMemory) -> u8 {
///     memory[0]
/// }
/// ```
pub struct DeviceMemory {
    block: Arc<Block>,
}

impl DeviceMemory {
    pub(super) fn new(device: &Arc<Device>, bytes: u64, align: u64) -> Result<Self> {
        let offset = device.arena.take(bytes, align)?;
        let block = Arc::new(Block { device: Arc::clone(device), offset, bytes, transfers: RwLock::new(()) });
        let owner: Weak<Block> = Arc::downgrade(&block);
        // SAFETY: just taken.
        let place = unsafe { device.arena.place(offset) };
        device.ranges.insert(block.address().get(), bytes, place, owner);
        device.counts.device.allocated(bytes);
        Ok(Self { block })
    }

    /// Where it begins, for kernels.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.block.address()
    }

    /// Bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.block.bytes
    }

    pub(super) fn block(&self) -> &Arc<Block> {
        &self.block
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("address", &self.address()).field("len", &self.len()).finish()
    }
}

/// What a [`DeviceMemory`] and the operations on it share.
pub(super) struct Block {
    pub device: Arc<Device>,
    /// INVARIANT: `bytes` from `offset` on were taken from the arena for this block alone.
    offset: u64,
    pub bytes: u64,
    /// Held while a stream copies or fills: two streams' transfers of one block are safe calls, and must be no data race.
    transfers: RwLock<()>,
}

impl Block {
    pub fn address(&self) -> DeviceAddress {
        self.device.arena.address(self.offset)
    }

    /// Refuses bytes that are not all in the block.
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        within(offset, len, self.bytes)
    }

    /// Copies the first `len` bytes of `source` to `offset`.
    pub fn upload(&self, offset: u64, source: &mut PinnedMemory, len: u64) -> Result<()> {
        let (place, source) = (self.place(offset, len)?, source.place(len)?);
        let _alone = self.transfers.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both checked for `len` bytes, of two mappings. The source is borrowed mutably; no other transfer is at the block; a kernel that
        // is at these bytes breaks the promise of its launch.
        unsafe { place.copy_from_nonoverlapping(source, len as usize) };
        Ok(())
    }

    /// Copies `len` bytes at `offset` to the beginning of `into`.
    pub fn download(&self, offset: u64, into: &mut PinnedMemory, len: u64) -> Result<()> {
        let (place, into) = (self.place(offset, len)?, into.place(len)?);
        let _no_writer = self.transfers.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `upload`; other transfers only read meanwhile.
        unsafe { place.copy_to_nonoverlapping(into, len as usize) };
        Ok(())
    }

    /// Sets `len` bytes at `offset`.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<()> {
        let place = self.place(offset, len)?;
        let _alone = self.transfers.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `upload`.
        unsafe { place.write_bytes(byte, len as usize) };
        Ok(())
    }

    fn place(&self, offset: u64, len: u64) -> Result<NonNull<u8>> {
        self.check(offset, len)?;
        // SAFETY: within the block, and the block is within the arena.
        Ok(unsafe { self.device.arena.place(self.offset + offset) }.0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.device.ranges.remove(self.address().get());
        // Before others can have it, or the peak would count it twice.
        self.device.counts.device.freed(self.bytes);
        // SAFETY: the invariant; this is the last owner, so no operation is left, and a kernel that still used it would break its launch's promise.
        unsafe { self.device.arena.give(self.offset, self.bytes) };
    }
}

/// Refuses bytes that are not within `0..size`.
pub(super) fn within(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, len, size }),
    }
}
