//! [`HomeMemory`]: the memory below the pool of one stream, which treats a freed block as unused at once.
//!
//! Work of that stream, the *home* stream, may still use the pool's free memory. Reuse on the same stream comes after that work by the order of the stream.
//! Memory leaves the pool's heap in two ways only, and both are calls of this memory:
//!
//! - A free of mapped memory or of a slab carries the home stream's present position as a use: the backend frees it later.
//! - A move of mapped memory to other addresses is refused until that position is complete. The pool maps new memory then, or frees the old where its limit
//!   leaves no other; the caller waits for the free.
//!
//! Neither waits: work of the home stream may wait for the thread that allocates. A position costs no call of the driver until the backend asks whether it is
//! complete.

use core::alloc::Layout;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use ringmem::backend::{AddressRange, Backend, Block, StreamId, Ticket, Uses};
use ringmem::memory::{Device, DeviceOnly, Limited, Memory};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

pub(crate) struct HomeMemory {
    pub memory: Limited<Device>,
    pub home: StreamId,
    pub calls: Arc<Calls>,
}

/// Calls that take memory from the device. While one runs it has bytes of the limit, and gives them back if the device refuses.
#[derive(Default)]
pub(crate) struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Calls {
    pub fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        struct Ended<'a>(&'a AtomicU64);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        self.begun.fetch_add(1, SeqCst);
        // Also after a panic.
        let _ended = Ended(&self.ended);
        call()
    }

    /// The calls that have ended, and those that have begun, in this order: a call that begins between is one that runs.
    pub fn ended_and_begun(&self) -> (u64, u64) {
        (self.ended.load(SeqCst), self.begun.load(SeqCst))
    }
}

impl HomeMemory {
    fn position(&self) -> Result<Option<Ticket>> {
        position(&**self.memory.backend(), self.home)
    }
}

// SAFETY: the device's blocks, unchanged.
unsafe impl Memory for HomeMemory {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.calls.run(|| self.memory.alloc(layout, on))
    }

    /// Without the position the block may be in use: then it stays allocated, until the process ends.
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let mut uses = *uses;
        if let Some(position) = self.position()? {
            add(&**self.memory.backend(), &mut uses, position)?;
        }
        // SAFETY: the caller gives up a block of this memory, which is the device's. It lists the uses but for those of the home stream, which come before
        // the position.
        unsafe { self.memory.free(block, &uses) }
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }

    fn device(&self) -> u32 {
        self.memory.device()
    }

    fn mapping_granularity(&self) -> Option<u64> {
        self.memory.mapping_granularity()
    }

    fn mappable(&self) -> Option<u64> {
        self.memory.mappable()
    }

    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        self.calls.run(|| self.memory.map(range, offset, bytes))
    }

    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        if let Some(position) = self.position()?
            && !self.memory.backend().is_complete(position)
        {
            return Err(Error::Busy { what: "work of the stream of the memory is not complete" });
        }
        // SAFETY: the caller promises that nothing uses the block but work of the home stream, which is complete.
        unsafe { self.memory.remap(block, offset) }
    }
}

/// Returns a stream's present position; `None` once it was forgotten, which closed it when its work was complete.
pub(crate) fn position(backend: &dyn Backend, stream: StreamId) -> Result<Option<Ticket>> {
    match backend.record_position(stream) {
        Ok(position) => Ok(Some(position)),
        Err(Error::Closed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds a use. If there are too many streams, that of the new use waits for the others on the device, and stands for all. If it was forgotten meanwhile, its
/// work is complete, and the others stay.
pub(crate) fn add(backend: &dyn Backend, uses: &mut Uses, ticket: Ticket) -> Result<()> {
    let Err(ticket) = uses.add(ticket) else { return Ok(()) };
    for other in uses.iter() {
        match backend.stream_wait(other, ticket.stream) {
            Err(Error::Closed { .. }) if backend.is_complete(ticket) => return Ok(()),
            waited => waited?,
        }
    }
    if let Some(after) = position(backend, ticket.stream)? {
        *uses = Uses::of(after);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ringmem::backend::host::HostBackend;

    use super::*;

    #[test]
    fn a_use_on_a_stream_that_is_closed_meanwhile_leaves_the_others_listed() {
        let backend = HostBackend::builder().build().expect("a backend").erased();
        let streams: Vec<StreamId> = (0..=Uses::MOST).map(|_| backend.open_stream(0).expect("a stream")).collect();
        let mut uses = Uses::NONE;
        for &stream in &streams {
            let ticket = position(&*backend, stream).expect("it is open").expect("it is open");
            if uses.iter().count() == Uses::MOST {
                backend.close_stream(stream);
            }
            add(&*backend, &mut uses, ticket).expect("closed after its work");
        }
        let mut listed: Vec<StreamId> = uses.iter().map(|ticket| ticket.stream).collect();
        listed.sort_unstable();
        assert_eq!(listed, streams[..Uses::MOST]);
        let open = backend.open_stream(0).expect("a stream");
        let ticket = position(&*backend, open).expect("it is open").expect("it is open");
        add(&*backend, &mut uses, ticket).expect("it waits for all");
        assert_eq!(uses.iter().map(|ticket| ticket.stream).collect::<Vec<_>>(), [open]);
    }
}
