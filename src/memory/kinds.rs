//! A backend's memories.

use core::alloc::Layout;
use core::fmt;
use std::sync::Arc;

use super::{Both, DeviceOnly, HostOnly, Memory};
use crate::Result;
use crate::backend::{Backend, Block, MemoryLocation, Options, Request, Uses};
use crate::stream::Stream;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $visibility:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            backend: Arc<dyn Backend>,
            device: u32,
            options: Options,
        }

        impl $name {
            /// Returns the memory of a device, without options.
            #[must_use]
            pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> Self {
                Self { backend: Arc::clone(backend).erased(), device, options: Options::empty() }
            }

            /// Sets the options of every allocation.
            #[must_use]
            pub fn with(mut self, options: Options) -> Self {
                self.options = options;
                self
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("backend", &self.backend.name())
                    .field("device", &self.device)
                    .field("options", &self.options)
                    .finish()
            }
        }

        // SAFETY: a backend promises the same of its blocks; the location determines the visibility.
        unsafe impl Memory for $name {
            type Visibility = $visibility;

            fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
                let request = Request { location: MemoryLocation::$name, device: self.device, layout, options: self.options };
                self.backend.allocate(&request, on.map(|stream| stream.on(&*self.backend)).transpose()?)
            }
            unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { self.backend.free(block, uses) }
            }
            fn backend(&self) -> &Arc<dyn Backend> {
                &self.backend
            }
            fn device(&self) -> u32 {
                self.device
            }
        }
    )*};
}

kinds! {
    /// Device memory.
    Device: DeviceOnly;
    /// Page-locked host memory that devices can access.
    #[doc(alias = "HostAllocator")]
    Pinned: Both;
    /// Managed memory: one address for host and devices, with migrating pages.
    #[doc(alias = "UnifiedAllocator")]
    Unified: Both;
    /// Pageable host memory, whose transfers are staged.
    Host: HostOnly;
}
