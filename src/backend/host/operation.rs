//! What a stream executes.
//!
//! An operation owns all that it needs, and lets go of it before it says that it is done: whoever waited finds dropped memory freed.

use core::mem;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::vec::Vec;

use ringmem_layouts::image::Entry;

use super::counters::Count;
use super::device::Device;
use super::memory::Block;
use super::pending::Completer;
use super::pinned::PinnedMemory;
use super::ranges::Owner;
use super::trace;
use crate::{Error, Result};

pub(super) enum Operation {
    Upload(Transfer),
    Download(Transfer),
    Fill {
        block: Arc<Block>,
        offset: u64,
        len: u64,
        byte: u8,
        done: Completer<()>,
    },
    Launch(Launch),
    /// Nothing: everything before it is done when it is.
    Mark(Completer<()>),
}

/// The first `len` bytes of pinned memory, and the same number at `offset` of a block.
pub(super) struct Transfer {
    pub pinned: PinnedMemory,
    pub block: Arc<Block>,
    pub offset: u64,
    pub len: u64,
    pub done: Completer<PinnedMemory>,
}

/// INVARIANT: `arguments` are as many as `entry` takes, and whoever queued it made the promise of `Stream::launch`.
pub(super) struct Launch {
    pub entry: Entry,
    pub arguments: Box<[u64]>,
    /// Of what the arguments name.
    pub owners: Vec<Owner>,
    pub done: Completer<()>,
}

impl Operation {
    /// On the stream's thread. `launches` is how many are queued or running.
    pub fn execute(self, device: &Device, launches: &AtomicUsize) {
        match self {
            Self::Upload(transfer) => transfer.execute(Block::upload, &device.counts.uploads),
            Self::Download(transfer) => transfer.execute(Block::download, &device.counts.downloads),
            Self::Fill { block, offset, len, byte, done } => {
                let outcome = block.fill(offset, len, byte).inspect(|()| device.counts.fills.add(len));
                drop(block);
                done.complete(outcome);
            }
            Self::Launch(launch) => launch.execute(device, launches),
            Self::Mark(done) => done.complete(Ok(())),
        }
    }
}

impl Transfer {
    fn execute(self, copy: fn(&Block, u64, &mut PinnedMemory, u64) -> Result<()>, count: &Count) {
        let Self { mut pinned, block, offset, len, done } = self;
        let outcome = copy(&block, offset, &mut pinned, len).inspect(|()| count.add(len));
        drop(block);
        done.complete(outcome.map(|()| pinned));
    }
}

impl Launch {
    fn execute(self, device: &Device, launches: &AtomicUsize) {
        let Self { entry, arguments, owners, done } = self;
        device.counts.launches.fetch_add(1, Relaxed);
        // SAFETY: the invariant.
        let ended = catch_unwind(AssertUnwindSafe(|| unsafe { (entry.run)(device, &arguments) }));
        trace::ended(&entry, ended.is_err());
        let outcome = ended.map_err(|payload| {
            // What was thrown may throw when it is dropped, and what that throws is not tried again.
            catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_or_else(mem::forget);
            device.counts.kernel_panics.fetch_add(1, Relaxed);
            Error::KernelPanicked { name: entry.name }
        });
        drop(owners);
        // SYNC POINT: launch over. Pairs with Stream::drop.
        launches.fetch_sub(1, Release);
        done.complete(outcome);
    }
}
