//! The memories of a backend: device, pinned, managed; and pageable host memory beside them.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use super::{Both, DeviceOnly, HostOnly, Memory};
use crate::Result;
use crate::backend::{Backend, Block, MemoryLocation, Options, Request, Uses};
use crate::stream::Stream;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $visibility:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<B: Backend + ?Sized = dyn Backend> {
            backend: Arc<dyn Backend>,
            device: u32,
            options: Options,
            _backend: PhantomData<fn(&B)>,
        }

        impl<B: Backend + ?Sized> $name<B> {
            /// The memory of a device, without options.
            #[must_use]
            pub fn new(backend: &Arc<B>, device: u32) -> Self {
                Self { backend: Arc::clone(backend).erased(), device, options: Options::empty(), _backend: PhantomData }
            }

            /// The same with options for every allocation.
            #[must_use]
            pub fn with(mut self, options: Options) -> Self {
                self.options = options;
                self
            }
        }

        impl<B: Backend + ?Sized> Clone for $name<B> {
            fn clone(&self) -> Self {
                Self { backend: Arc::clone(&self.backend), device: self.device, options: self.options, _backend: PhantomData }
            }
        }

        impl<B: Backend + ?Sized> fmt::Debug for $name<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("backend", &self.backend.name())
                    .field("device", &self.device)
                    .field("options", &self.options)
                    .finish()
            }
        }

        // SAFETY: a backend promises of its blocks what this trait asks for, and gives them where the location says.
        unsafe impl<B: Backend + ?Sized> Memory for $name<B> {
            type Visibility = $visibility;

            fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
                let request = Request { location: MemoryLocation::$name, device: self.device, layout, options: self.options };
                self.backend.allocate(&request, on.map(|stream| stream.on(&*self.backend)).transpose()?)
            }
            unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { self.backend.free(&block, uses) }
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
    /// A device's own memory.
    Device: DeviceOnly;
    /// Page-locked host memory, at an address that devices see.
    Pinned: Both;
    /// Managed memory: one address on both sides, pages that move.
    Unified: Both;
    /// Pageable host memory: transfers from it are staged.
    Host: HostOnly;
}
