use core::fmt;
use std::sync::Arc;

use ringmem_layouts::{Abi, Image};

use crate::Result;
use crate::backend::{Backend, ModuleId};

/// An image's loaded kernels, shared by clones.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::Module;
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// assert!(module.names().any(|name| name == "vector_add"));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
pub struct Module {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    id: ModuleId,
    image: Image,
}

impl Module {
    /// Loads an image compiled with the expected layouts.
    ///
    /// # Errors
    ///
    /// [`Abi`](crate::Error::Abi) with both layouts; the driver's error.
    pub fn load<B: Backend + ?Sized>(backend: &Arc<B>, image: &Image, expected: &Abi) -> Result<Self> {
        let backend = Arc::clone(backend).erased();
        let id = backend.load(image, expected)?;
        Ok(Self { shared: Arc::new(Shared { backend, id, image: *image }) })
    }

    /// Returns the kernels' names.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &'static str> {
        self.shared.image.host.iter().map(|entry| entry.name)
    }

    /// Returns the image's layouts.
    #[must_use]
    pub fn abi(&self) -> &Abi {
        &self.shared.image.abi
    }

    /// Returns the backend that loaded it.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Addresses identify an image only where they are equal: a constant has one per use.
    pub(super) fn is_of(&self, image: &Image) -> bool {
        let own = &self.shared.image;
        core::ptr::eq(own.ptx, image.ptx) && core::ptr::eq(own.host, image.host) && own.abi.hash == image.abi.hash
    }

    pub(super) fn id(&self) -> ModuleId {
        self.shared.id
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.backend.unload(self.id);
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
