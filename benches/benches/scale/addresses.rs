use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringmem::Result;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, Block, DeviceAddress, MemoryLocation, Uses};
use ringmem::memory::{DeviceOnly, Memory};
use ringmem::stream::Stream;

pub struct Addresses {
    backend: Arc<dyn Backend>,
    next: AtomicU64,
}

impl Addresses {
    pub fn new() -> Arc<Self> {
        let backend = HostBackend::builder().build().expect("a backend").erased();
        Arc::new(Self { backend, next: AtomicU64::new(1 << 32) })
    }
}

// SAFETY: blocks share no addresses. The backend does not know them, so it refuses copies.
unsafe impl Memory for Addresses {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, _: Option<&Stream>) -> Result<Block> {
        let align = layout.align().max(256) as u64;
        let bytes = (layout.size() as u64).next_multiple_of(align) + align;
        let address = self.next.fetch_add(bytes, Relaxed).next_multiple_of(align);
        let block = Block::empty(MemoryLocation::Device, layout.align());
        Ok(Block { device_address: Some(DeviceAddress::new(address)), layout, ..block })
    }

    unsafe fn free(&self, _: &Block, _: &Uses) -> Result<()> {
        Ok(())
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn device(&self) -> u32 {
        0
    }
}
