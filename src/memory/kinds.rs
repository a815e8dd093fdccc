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
            /// Returns a device's memory, without options.
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

        // SAFETY: a backend's promise for its blocks; the location determines the visibility.
        unsafe impl Memory for $name {
            type Visibility = $visibility;

            fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
                let request = Request { location: MemoryLocation::$name, device: self.device, layout, options: self.options };
                self.backend.allocate(&request, on.map(|stream| stream.on(&*self.backend)).transpose()?)
            }
            unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
                // SAFETY: the caller promises that the block is freed once and that only `uses` still use it; the backend allocated it for
                // this memory.
                unsafe { self.backend.free(block, uses) }
            }
            fn backend(&self) -> &Arc<dyn Backend> {
                &self.backend
            }
            fn device(&self) -> u32 {
                self.device
            }
            fn mapping_granularity(&self) -> Option<u64> {
                let is_plain = matches!(MemoryLocation::$name, MemoryLocation::Device) && self.options.is_empty();
                if is_plain { self.backend.capabilities(self.device).ok()?.mapping_granularity } else { None }
            }
            fn mappable(&self) -> Option<u64> {
                self.backend.mappable(self.device)
            }
        }
    )*};
}

kinds! {
    /// Device memory.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Buffer, Device};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let buffer = Buffer::<f32, _>::from_slice(Device::new(&backend, 0), &[1.0, 2.0])?;
    /// assert!(buffer.device_address().is_some()); // for a kernel
    /// assert_eq!(buffer.to_vec()?, [1.0, 2.0]); // a copy: the host cannot borrow it
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    Device: DeviceOnly;
    /// Page-locked host memory that devices can access.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Buffer, Pinned};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut buffer = Buffer::<u32, _>::new(Pinned::new(&backend, 0), 4)?;
    /// buffer.as_mut_slice()?.fill(7); // without a copy
    /// assert_eq!(buffer.as_slice()?, [7; 4]);
    /// assert!(buffer.device_address().is_some()); // a kernel can read it too
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    #[doc(alias = "HostAllocator")]
    Pinned: Both;
    /// Managed memory: one address for host and devices, with migrating pages.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Buffer, Unified};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut buffer = Buffer::<u32, _>::new(Unified::new(&backend, 0), 4)?;
    /// buffer.as_mut_slice()?.fill(7);
    /// let (host, device) = (buffer.as_ptr().unwrap(), buffer.device_address().unwrap());
    /// assert_eq!(host.addr().get() as u64, device.get()); // one address
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    #[doc(alias = "UnifiedAllocator")]
    Unified: Both;
    /// Pageable host memory, whose transfers are staged.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Buffer, Host};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let buffer = Buffer::<u32, _>::from_slice(Host::new(&backend, 0), &[1, 2, 3])?;
    /// assert_eq!(buffer.as_slice()?, [1, 2, 3]);
    /// assert!(!buffer.is_pinned());
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    Host: HostOnly;
}
