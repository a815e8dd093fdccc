use std::sync::Arc;
use std::vec::Vec;

use super::LeaseMut;
use super::resize::{Step, resize};
use crate::memory::Memory;
use crate::{DeviceBytes, Error, Result};

/// Starting a copy takes as long as copying thousands of bytes.
const STAGE: usize = 64 << 10;

/// The end of a buffer, for [`LeaseMut::append`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 0, BufferConfig::new())?;
/// manager.lease_mut(id)?.append(|end| (0..10_000).try_for_each(|number| end.push(number)))?;
/// assert_eq!((manager.lease(id)?.len(), backend.counters().uploads.count), (10_000, 1)); // one copy
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Append<'l, 'a, T: DeviceBytes, M: Memory> {
    lease: &'l mut LeaseMut<'a, T, M>,
    staged: Vec<T>,
    len: usize,
}

impl<T: DeviceBytes, M: Memory + Clone> Append<'_, '_, T, M> {
    /// Appends an element.
    ///
    /// # Errors
    ///
    /// As [`LeaseMut::ensure_capacity`], or the copy's error. Return it from the closure.
    pub fn push(&mut self, element: T) -> Result<()> {
        if self.staged.len() == self.staged.capacity() {
            self.flush()?;
            let stage = (STAGE / size_of::<T>()).max(1);
            self.staged.try_reserve_exact(stage).map_err(|_| short::<T>(stage))?;
        }
        self.staged.push(element);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.lease.write_at(self.len, &self.staged)?;
        self.len += self.staged.len();
        self.staged.clear();
        Ok(())
    }
}

impl<'a, T: DeviceBytes, M: Memory + Clone> LeaseMut<'a, T, M> {
    /// Appends an element with its own copy. For many elements, use [`append`](Self::append).
    ///
    /// # Errors
    ///
    /// As [`extend_from_slice`](Self::extend_from_slice).
    pub fn push(&mut self, element: T) -> Result<()> {
        self.extend_from_slice(&[element])
    }

    /// Appends elements with one copy, and grows by the buffer's [growth](super::Growth).
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity), or the copy's error. The length is unchanged.
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<()> {
        let len = self.len();
        self.write_at(len, elements)?;
        self.value.metadata.set_len(len + elements.len());
        Ok(())
    }

    /// [`append`](Self::append)s all elements of an iterator.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn extend(&mut self, elements: impl IntoIterator<Item = T>) -> Result<()> {
        self.append(|end| elements.into_iter().try_for_each(|element| end.push(element)))
    }

    /// Lets `write` push elements, copied in batches of 64 KiB. They become live when `write` returns; after a failure or panic, none does.
    ///
    /// # Errors
    ///
    /// The error of `write`, or as [`extend_from_slice`](Self::extend_from_slice). The length is unchanged; the capacity may have grown.
    pub fn append<R>(&mut self, write: impl FnOnce(&mut Append<'_, 'a, T, M>) -> Result<R>) -> Result<R> {
        let len = self.len();
        let mut end = Append { lease: &mut *self, staged: Vec::new(), len };
        let written = write(&mut end)?;
        end.flush()?;
        let len = end.len;
        self.value.metadata.set_len(len);
        Ok(written)
    }

    fn write_at(&mut self, at: usize, elements: &[T]) -> Result<()> {
        self.value.table().here()?;
        let Some(end) = at.checked_add(elements.len()) else {
            return Err(Error::Size {
                what: "size in bytes",
                asked: u64::MAX,
                least: self.value.metadata.config.min_bytes,
                most: self.value.metadata.config.most(),
            });
        };
        let len = self.len();
        if end > self.capacity() {
            let shared = Arc::clone(&self.value.shared);
            resize(&shared, &mut [Step::grow(&mut self.value, end, len)?.keeping(at)], None)?;
        }
        let shared = Arc::clone(&self.value.shared);
        shared.guard.retry(|| self.room(end).slice(at..)?.copy_from(elements))
    }
}

fn short<T>(elements: usize) -> Error {
    Error::Map { bytes: (elements as u64).saturating_mul(size_of::<T>() as u64), source: std::io::ErrorKind::OutOfMemory.into() }
}
