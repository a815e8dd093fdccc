//! Host memory that transfers go through.

use core::fmt;
use core::ptr::NonNull;
use core::slice;
use std::sync::{Arc, Weak};

use super::device::Device;
use super::mapping::Mapping;
use super::memory::within;
use crate::backend::DeviceAddress;
use crate::{Error, Result};

/// Host memory, page aligned, and page-locked where the system allowed it. The device sees it at its own address.
///
/// It begins zeroed. Unmapped when this is dropped and no launch that names it in an argument is left; an operation that is queued on it
/// owns it, so until that is done nobody has a slice of it.
///
/// What a running kernel reads or writes here is shared memory: reach it through words and a protocol, by [`as_ptr`](Self::as_ptr).
pub struct PinnedMemory {
    block: Arc<Block>,
}

impl PinnedMemory {
    pub(super) fn new(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        let most = isize::MAX as u64;
        if bytes == 0 || bytes > most {
            return Err(Error::Size { asked: bytes, least: 1, most });
        }
        let len = bytes as usize;
        let mapping = Mapping::new(len)?;
        let place = mapping.place();
        let locked = mapping.lock();
        let block = Arc::new(Block { device: Arc::clone(device), mapping, len, locked });
        let owner: Weak<Block> = Arc::downgrade(&block);
        device.ranges.insert(block.address().get(), bytes, place, owner);
        device.counts.pinned.allocated(bytes);
        Ok(Self { block })
    }

    /// Whether the pages are really locked into memory. They are not where the process's limit (`RLIMIT_MEMLOCK`) is used up.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.block.locked
    }

    /// Bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        self.block.len as u64
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and initialised (zeroed, and only ever written since) for `len` bytes. Whoever writes while `self` is borrowed does
        // so through `as_ptr` or in a kernel, and has promised that nobody holds a slice.
        unsafe { slice::from_raw_parts(self.as_ptr().as_ptr(), self.block.len) }
    }

    /// The bytes.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self`, which is not `Clone`, is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.block.len) }
    }

    /// Where the bytes are, for memory that a protocol shares: good for reads and writes as long as this lives.
    ///
    /// Whoever uses it while [`as_slice`](Self::as_slice) or [`as_mut_slice`](Self::as_mut_slice) is borrowed, or while a queued transfer owns
    /// this memory, must see to it that no byte is written that another may be reading. No function here checks that.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.block.mapping.place().0
    }

    /// Where kernels find it: its own address, as with unified addressing.
    #[must_use]
    pub fn device_address(&self) -> DeviceAddress {
        self.block.address()
    }

    /// Where the first `len` bytes are.
    pub(super) fn place(&mut self, len: u64) -> Result<NonNull<u8>> {
        self.check(len)?;
        Ok(self.as_ptr())
    }

    /// Refuses more bytes than there are.
    pub(super) fn check(&self, len: u64) -> Result<()> {
        within(0, len, self.len())
    }

    pub(super) fn device(&self) -> &Device {
        &self.block.device
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMemory")
            .field("address", &self.device_address())
            .field("len", &self.len())
            .field("is_pinned", &self.is_pinned())
            .finish()
    }
}

/// What a [`PinnedMemory`] and the launches that name it share.
struct Block {
    device: Arc<Device>,
    /// INVARIANT: `len` bytes.
    mapping: Mapping,
    len: usize,
    locked: bool,
}

impl Block {
    fn address(&self) -> DeviceAddress {
        DeviceAddress::new(self.mapping.place().0.addr().get() as u64)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Unlisted first: the mapping goes after this body.
        self.device.ranges.remove(self.address().get());
        self.device.counts.pinned.freed(self.len as u64);
    }
}
