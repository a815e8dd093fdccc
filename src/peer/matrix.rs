use core::fmt;
use std::boxed::Box;

use crate::backend::Backend;
use crate::{Error, Result};

/// Access between devices, per direction.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::peer::Matrix;
///
/// let backend = HostBackend::builder().devices(3).peer(0, 1).build()?;
/// let matrix = Matrix::of(&*backend)?;
/// assert!(matrix.can_reach(0, 1) && !matrix.can_reach(1, 0));
/// assert_eq!(matrix.iter().collect::<Vec<_>>(), [(0, 1)]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Matrix {
    devices: u32,
    /// By `from * devices + to`.
    pairs: Box<[bool]>,
}

impl Matrix {
    /// Returns the access that a backend's devices can enable.
    ///
    /// # Errors
    ///
    /// As [`Backend::capabilities`].
    pub fn of(backend: &dyn Backend) -> Result<Self> {
        let mut matrix = Self::none(backend.devices());
        for from in 0..matrix.devices {
            for to in backend.capabilities(from)?.peers {
                matrix.set(from, to, true);
            }
        }
        Ok(matrix)
    }

    pub(super) fn none(devices: u32) -> Self {
        let pairs = (0..devices).flat_map(|from| (0..devices).map(move |to| from == to)).collect();
        Self { devices, pairs }
    }

    /// Returns the number of devices.
    #[must_use]
    pub const fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns whether `from` can access the memory of `to`; false for an unknown device.
    #[must_use]
    pub fn can_reach(&self, from: u32, to: u32) -> bool {
        self.index(from, to).is_some_and(|index| self.pairs[index])
    }

    /// Iterates over pairs of different devices with access.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let pairs = (0..self.devices).flat_map(|from| (0..self.devices).map(move |to| (from, to)));
        pairs.filter(|&(from, to)| from != to && self.can_reach(from, to))
    }

    pub(super) fn check(&self, device: u32) -> Result<()> {
        if device < self.devices { Ok(()) } else { Err(Error::NoDevice { asked: device, devices: self.devices }) }
    }

    pub(super) fn set(&mut self, from: u32, to: u32, reaches: bool) {
        if let Some(index) = self.index(from, to) {
            self.pairs[index] = reaches;
        }
    }

    fn index(&self, from: u32, to: u32) -> Option<usize> {
        (from < self.devices && to < self.devices).then(|| from as usize * self.devices as usize + to as usize)
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matrix").field("devices", &self.devices).field("pairs", &self.iter().collect::<std::vec::Vec<_>>()).finish()
    }
}
