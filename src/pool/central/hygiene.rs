use core::sync::atomic::Ordering::Relaxed;

use super::Central;
use crate::Result;
use crate::backend::{Block, Fill, MemoryLocation, Uses};
use crate::memory::Memory;
use crate::pool::builder::Hygiene;
use crate::pool::cache::Entry;
use crate::pool::tag::Tag;
use crate::stream::Stream;
use crate::sys::panic::both;

use core::alloc::Layout;

impl<M: Memory> Central<M> {
    pub fn with_contents(&self, entry: Entry, layout: Layout, on: Option<&Stream>) -> Result<Entry> {
        match self.options.hygiene {
            Hygiene::DebugPoison | Hygiene::Leave => Ok(entry),
            Hygiene::Zero => self.clean(entry, layout, 0, on),
            Hygiene::Poison(byte) => self.clean(entry, layout, byte, on),
        }
    }

    /// Fills the requested bytes of a freed block of host memory, before another thread can allocate it. The host must not write managed memory while
    /// a kernel runs, nor a block with open uses. A direct block goes to the upstream memory.
    pub fn poison_freed(&self, block: &Block, uses: &Uses) {
        let is_host = matches!(block.location, MemoryLocation::Pinned | MemoryLocation::Host);
        let is_on = self.options.hygiene == Hygiene::DebugPoison && self.process.is_this();
        if let Some(host) = block.host
            && is_on
            && is_host
            && uses.is_empty()
            && !Tag(block.tag).is_direct()
        {
            // SAFETY: the caller of `free` owns the block, which has so many bytes, and no operation uses it any more.
            unsafe { host.as_ptr().write_bytes(Hygiene::FREED, block.layout.size()) };
        }
    }

    /// Fills the requested bytes. After a failure, the pool takes the block back.
    #[cold]
    fn clean(&self, entry: Entry, layout: Layout, byte: u8, on: Option<&Stream>) -> Result<Entry> {
        let block = self.block(&entry, layout);
        // SAFETY: offset 0 is within the block.
        let Some(to) = (unsafe { block.address_at(0) }) else { return Ok(entry) };
        let fill = Fill { to, pattern: byte.into(), size: 1, count: layout.size() as u64 };
        let backend = self.memory.backend();
        let clean = || match on {
            // SAFETY: the block has no owner yet. Its last use, if any, was on this stream and so completes before the fill.
            Some(stream) => unsafe { backend.fill(&fill, stream.id()) }.map(Some),
            // SAFETY: the block has no owner yet. Without a stream, only entries without an open use are taken; an upstream block's `ready` ticket
            // is waited for.
            None => block
                .ready
                .map_or(Ok(true), |ready| backend.wait(ready, None))
                .and_then(|_| unsafe { backend.fill_now(&fill) })
                .map(|()| None),
        };
        let mut cleaned = Ok(None);
        both(
            || cleaned = clean(),
            |has_panicked| {
                if has_panicked {
                    self.take_back(&entry, layout);
                }
            },
        );
        match cleaned {
            Ok(ticket) => Ok(Entry { used: ticket.or(entry.used), ..entry }),
            Err(error) => {
                self.take_back(&entry, layout);
                Err(error)
            }
        }
    }

    /// The fill is not queued.
    fn take_back(&self, entry: &Entry, layout: Layout) {
        if !Tag(entry.idle.tag).is_direct() {
            self.free_one(&Uses::from(entry.used), entry);
            return;
        }
        self.counts.misses.fetch_sub(1, Relaxed);
        let block = self.block(entry, layout);
        let uses = Uses::from(block.ready);
        // SAFETY: the block has no owner; `ready` is its only use.
        if let Err(error) = unsafe { self.forget_direct(block, &uses) } {
            self.memory.backend().unreported(error);
        }
    }
}
