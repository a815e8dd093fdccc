use core::ptr::NonNull;

use super::Memory;
use super::compact::Compact;
use super::listed::Listed;
use crate::backend::{Address, Copy, MemoryLocation, Taints, same_backend};
use crate::{Error, Result};

pub(crate) struct View<'a, M> {
    pub memory: &'a M,
    pub block: &'a Compact,
    pub uses: &'a Listed,
    /// In bytes.
    pub offset: usize,
}

impl<M> Clone for View<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> core::marker::Copy for View<'_, M> {}

impl<'a, M: Memory> View<'a, M> {
    /// The caller has checked `at`.
    pub fn part<T>(&self, at: usize) -> Self {
        Self { offset: self.offset + at * size_of::<T>(), ..*self }
    }

    /// # Safety
    ///
    /// The offset is within the block.
    pub unsafe fn address(&self) -> Option<Address> {
        // SAFETY: the caller promises an offset within the block.
        unsafe { self.block.address_at(self.offset as u64) }
    }

    pub fn settle(&self) -> Result<()> {
        self.uses.settle(&**self.memory.backend())
    }

    /// Waits for the uses first.
    ///
    /// # Safety
    ///
    /// As [`copy_now`](crate::backend::Backend::copy_now).
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<()> {
        self.settle()?;
        // SAFETY: the caller promises so many bytes on both sides, without overlap, and no other use meanwhile; the uses that were queued
        // are complete.
        unsafe { self.memory.backend().copy_now(&Copy { to, from, bytes: bytes as u64 }) }
    }

    /// # Safety
    ///
    /// Both views have `bytes` bytes and do not overlap; meanwhile nothing else writes the source or accesses the target.
    pub unsafe fn copy_to_view<N: Memory>(&self, to: &View<'_, N>, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        same_backend(&**to.memory.backend(), &**self.memory.backend())?;
        to.settle()?;
        // SAFETY: the caller promises that both views have `bytes` bytes, so both offsets are within their blocks.
        let (Some(to), Some(from)) = (unsafe { to.address() }, unsafe { self.address() }) else { return Ok(()) };
        // SAFETY: the caller promises `bytes` bytes on both sides, without overlap, and no other use meanwhile; the target's uses are
        // complete.
        unsafe { self.copy(to, from, bytes) }
    }

    pub fn align(&self) -> usize {
        let align = self.block.align();
        if self.offset == 0 { align } else { align.min(1 << self.offset.trailing_zeros()) }
    }

    /// `None` without bytes. Fails while a queued operation may write the elements, or if kept contents are invalid.
    #[inline(always)]
    pub fn host<T>(&self, len: usize, contents: Contents) -> Result<Option<NonNull<T>>> {
        let Some(host) = self.block.host else { return Ok(None) };
        // SAFETY: within the block, by the invariant of the view's owner.
        let first = unsafe { host.add(self.offset) };
        if !self.uses.is_settled() || !Taints::are_none() || self.block.location() == MemoryLocation::Unified {
            self.lend(first, len * size_of::<T>(), contents)?;
        }
        Ok(Some(first.cast()))
    }

    #[cold]
    #[inline(never)]
    fn lend(&self, first: NonNull<u8>, bytes: usize, contents: Contents) -> Result<()> {
        let backend = self.memory.backend();
        if !self.uses.is_settled() {
            if self.uses.uses().iter().any(|ticket| !backend.is_complete(ticket)) {
                return Err(Error::Busy { what: "a queued operation uses the buffer" });
            }
            self.settle()?;
        }
        let (address, bytes) = (Address::Host(first), bytes as u64);
        let taints = if Taints::are_none() { None } else { backend.taints() };
        if let (Contents::Kept, Some(taints)) = (contents, taints) {
            taints.check(address, bytes)?;
        }
        if self.block.location() == MemoryLocation::Unified {
            backend.host_access(&self.block.block())?;
        }
        if let (Contents::Overwritten, Some(taints)) = (contents, taints) {
            taints.remove(address, bytes);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    Kept,
    /// The caller writes all of them.
    Overwritten,
}
