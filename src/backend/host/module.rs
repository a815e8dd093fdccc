//! The kernels of an image, loaded.

use core::fmt;
use std::sync::Arc;

use ringmem_layouts::image::Entry;
use ringmem_layouts::{Abi, Image};

use super::device::Device;
use crate::{Error, Result};

/// An image's host kernels, on the backend that loaded it.
#[derive(Clone)]
pub struct Module {
    device: Arc<Device>,
    entries: &'static [Entry],
    abi: Abi,
}

impl Module {
    pub(super) fn new(device: &Arc<Device>, image: &Image, expected: &Abi) -> Result<Self> {
        if image.abi.hash != expected.hash {
            return Err(Error::Abi { expected: *expected, got: image.abi });
        }
        Ok(Self { device: Arc::clone(device), entries: image.host, abi: image.abi })
    }

    /// The kernels' names.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// What the image was compiled with.
    #[must_use]
    pub fn abi(&self) -> &Abi {
        &self.abi
    }

    /// The kernel of a name that takes so many arguments.
    pub(super) fn kernel(&self, name: &str, arguments: usize) -> Result<Entry> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else {
            return Err(Error::UnknownKernel { asked: name.into(), known: self.entries });
        };
        if entry.arguments != arguments {
            return Err(Error::Arguments { name: entry.name, expected: entry.arguments, got: arguments });
        }
        Ok(*entry)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
