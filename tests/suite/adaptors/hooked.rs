use std::alloc::Layout;
use std::sync::{Arc, Mutex};

use ringmem::Result;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, Block, Uses};
use ringmem::memory::{Device, DeviceOnly, Memory};
use ringmem::stream::Stream;

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

#[derive(Clone)]
pub struct Hooked {
    memory: Device,
    pub before_alloc: Hook,
    pub after_free: Hook,
}

impl Hooked {
    pub fn new(backend: &Arc<HostBackend>) -> Self {
        Self { memory: Device::new(backend, 0), before_alloc: Hook::default(), after_free: Hook::default() }
    }
}

pub fn set(hook: &Hook, work: impl FnOnce() + Send + 'static) {
    *hook.lock().expect("no panic") = Some(Box::new(work));
}

fn call(hook: &Hook) {
    let work = hook.lock().expect("no panic").take();
    if let Some(work) = work {
        work();
    }
}

// SAFETY: the blocks are the device's.
unsafe impl Memory for Hooked {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        call(&self.before_alloc);
        self.memory.alloc(layout, on)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        let outcome = unsafe { self.memory.free(block, uses) };
        call(&self.after_free);
        outcome
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }

    fn device(&self) -> u32 {
        self.memory.device()
    }
}
