//! The verbs of [`Backend`] over simulated devices.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, PoisonError};

use ringmem_layouts::{Abi, Image};

use super::HostBackend;
use super::arena::ALIGN;
use super::limbo::Held;
use super::mapping::Mapping;
use super::operation::{self, Operation};
use super::queue::Queue;
use super::ranges::{Owner, Range};
use crate::backend::{
    Backend, Block, Capabilities, Copy, DeviceAddress, Fill, Launch, MemoryInfo, MemoryLocation, ModuleId, Options, Request, StreamId,
    Ticket, Uses, entry,
};
use crate::{Error, Result};

// SAFETY: blocks are parts of arenas or mappings that nobody else has until `free`, long and aligned as `allocate` checks, zeroed where the host
// sees them; `Limbo` keeps them for their uses, and a stream's thread executes in order.
unsafe impl Backend for HostBackend {
    fn id(&self) -> u64 {
        self.shared.id
    }

    fn erased(self: Arc<Self>) -> Arc<dyn Backend> {
        self
    }

    fn name(&self) -> &'static str {
        "host"
    }

    fn devices(&self) -> u32 {
        self.shared.arenas.len() as u32
    }

    fn capabilities(&self, device: u32) -> Result<Capabilities> {
        self.shared.arena(device)?;
        Ok(Capabilities {
            unified: true,
            concurrent_managed_access: true,
            system_scope: true,
            host_native_atomics: true,
            shared_memory: false,
            stream_ordered: false,
            largest_align: ALIGN,
            peers: std::vec::Vec::new(),
        })
    }

    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>> {
        Ok(Some(self.shared.arena(device)?.info()))
    }

    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        let Request { location, device, layout, options } = *request;
        if let Some(on) = on {
            self.stream(on)?;
        }
        let arena = self.shared.arena(device)?;
        let bytes = layout.size() as u64;
        let pinned_only = Options::WRITE_COMBINED | Options::PORTABLE | Options::MAPPED | Options::MUST_PIN;
        if location != MemoryLocation::Pinned && options.intersects(pinned_only) {
            return Err(Error::Unsupported { what: "an option of pinned memory, for another kind of memory," });
        }
        let (place, owner, address, is_pinned) = if location == MemoryLocation::Device {
            let offset = arena.take(bytes, layout.align() as u64)?;
            // SAFETY: just taken.
            let place = unsafe { arena.place(offset) };
            if options.contains(Options::ZEROED) {
                // SAFETY: just taken, for so many bytes.
                unsafe { place.0.write_bytes(0, layout.size()) };
            }
            (place, Owner::Arena(device, offset), arena.address(offset), false)
        } else {
            if layout.align() > PAGE {
                return Err(Error::Align { asked: layout.align() as u64, most: PAGE as u64 });
            }
            let mapping = Mapping::new(layout.size())?;
            let is_pinned = location == MemoryLocation::Pinned && mapping.lock();
            if options.contains(Options::MUST_PIN) && !is_pinned {
                return Err(Error::Unsupported { what: "locking so many pages into memory" });
            }
            let place = mapping.place();
            (place, Owner::Mapping(mapping), DeviceAddress::new(place.0.addr().get() as u64), is_pinned)
        };
        self.shared.ranges.insert(address.get(), Range { bytes, location, place, owner, is_dead: false });
        self.shared.counts.of(location).allocated(bytes);
        Ok(Block {
            device_address: (location != MemoryLocation::Host).then_some(address),
            host: (location != MemoryLocation::Device).then_some(place.0),
            layout,
            location,
            device,
            is_pinned,
            ready: None,
        })
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        self.shared.ranges.kill(block, "free")?;
        let block = Block { ready: None, ..*block };
        self.shared.limbo.after(&self.shared, uses, Held::Block(block));
        Ok(())
    }

    unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.shared.copy(copy, false) }
    }

    unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.shared.fill(fill, false) }
    }

    fn open_stream(&self, device: u32) -> Result<StreamId> {
        self.shared.arena(device)?;
        Queue::open(&self.shared)
    }

    fn close_stream(&self, stream: StreamId) {
        if let Some(stream) = self.shared.stream(stream) {
            stream.close();
        }
    }

    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        self.shared.check_copy(copy)?;
        self.queue(Operation::Copy(*copy), on)
    }

    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        self.shared.check_fill(fill)?;
        self.queue(Operation::Fill(*fill), on)
    }

    fn after(&self, ticket: Ticket, stream: StreamId) -> Result<()> {
        match self.shared.stream(ticket.stream) {
            Some(other) => self.queue(Operation::After(other, ticket.number), stream).map(drop),
            None => Ok(()),
        }
    }

    fn mark(&self, stream: StreamId) -> Result<Ticket> {
        Ok(Ticket { stream, number: self.stream(stream)?.last() })
    }

    fn reached(&self, ticket: Ticket) -> bool {
        self.shared.reached(ticket)
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        match self.shared.stream(ticket.stream) {
            Some(stream) => stream.wait(ticket.number, timeout),
            None => Ok(true),
        }
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        self.stream(stream)?.synchronize()?;
        self.shared.counts.synchronizations.fetch_add(1, Relaxed);
        Ok(())
    }

    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if image.abi.hash != expected.hash {
            return Err(Error::Abi { expected: *expected, got: image.abi });
        }
        let id = ModuleId(NEXT.fetch_add(1, Relaxed));
        self.shared.modules.write().unwrap_or_else(PoisonError::into_inner).insert(id, image.host);
        Ok(id)
    }

    fn unload(&self, module: ModuleId) {
        // A launch has its entry.
        self.shared.modules.write().unwrap_or_else(PoisonError::into_inner).remove(&module);
    }

    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        let Launch { module, name, arguments, groups } = *launch;
        let entries = self.shared.modules.read().unwrap_or_else(PoisonError::into_inner).get(&module).copied().unwrap_or(&[]);
        let entry = entry(entries, name, arguments.len())?;
        if groups == 0 {
            return Err(Error::Size { asked: 0, least: 1, most: u64::from(u32::MAX) });
        }
        self.queue(Operation::Launch(operation::Launch { entry, arguments: arguments.into(), groups }), on)
    }

    fn keep(&self, value: Box<dyn Send>, uses: &Uses) {
        self.shared.limbo.after(&self.shared, uses, Held::Value(value));
    }

    fn unreported(&self, _error: Error) {
        self.shared.counts.unreported.fetch_add(1, Relaxed);
    }
}

/// What a mapping is aligned to at least.
const PAGE: usize = 4096;

impl HostBackend {
    fn stream(&self, id: StreamId) -> Result<Arc<Queue>> {
        self.shared.stream(id).ok_or(Error::StreamClosed)
    }

    fn queue(&self, operation: Operation, on: StreamId) -> Result<Ticket> {
        #[cfg(feature = "tracing")]
        match &operation {
            Operation::Copy(copy) => tracing::trace!(stream = on.get(), bytes = copy.bytes, "copy queued"),
            Operation::Fill(fill) => tracing::trace!(stream = on.get(), bytes = fill.bytes(), "fill queued"),
            Operation::Launch(launch) => tracing::debug!(stream = on.get(), kernel = launch.entry.name, "launch queued"),
            Operation::After(..) => {}
        }
        let number = self.stream(on)?.push(operation)?;
        Ok(Ticket { stream: on, number })
    }
}
