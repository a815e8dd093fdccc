//! Who comes to be: a name, an element type, a configuration, and memory for it.

use core::panic::Location;
use std::boxed::Box;
use std::sync::Arc;

use super::entry::{Entry, Held};
use super::metadata::{Element, Metadata};
use super::names::Named;
use super::{BufferConfig, BufferId, MemoryManager};
use crate::config::ConfigError;
use crate::memory::{Memory, Origin, Reservation};
use crate::{DeviceBytes, Error, Rejected, Result};

impl<M: Memory + Clone> MemoryManager<M> {
    /// A buffer with `len` live elements, in which is what was in the memory, and the capacity that its configuration asks for at first.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](Error::AlreadyExists), also for a name that another thread is giving just now; [`Config`](Error::Config) for a configuration that
    /// makes no sense or is for elements of another size; [`Size`](Error::Size) for more than it allows;
    /// [`Limit`](Error::Limit); what the memory refuses. Nothing was created.
    #[track_caller]
    pub fn create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        self.make(name, len, config, None)
    }

    /// The same with bytes that were [reserved](Self::reserve), as many as the buffer takes; the rest stays reserved, and all of them where nothing was
    /// created.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`Size`](Error::Size) where the reservation is too short, [`Unsupported`](Error::Unsupported) where it is another manager's.
    #[track_caller]
    pub fn create_in<T: DeviceBytes>(
        &self,
        reservation: &mut Reservation,
        name: &str,
        len: usize,
        config: BufferConfig,
    ) -> Result<BufferId<T>> {
        self.make(name, len, config, Some(reservation))
    }

    /// The buffer of that name, or a new one. One that is there stays as it is, with its own length.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`find`](Self::find); [`AlreadyExists`](Error::AlreadyExists) where the buffer is there with another configuration;
    /// [`AlreadyExists`](Error::AlreadyExists) while another thread is creating it.
    #[track_caller]
    pub fn get_or_create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        if let Some(id) = self.found(name, config)? {
            return Ok(id);
        }
        match self.create(name, len, config) {
            // Another thread was quicker, or has not done yet.
            Err(error @ Error::AlreadyExists { .. }) => self.found(name, config)?.ok_or(error),
            created => created,
        }
    }

    /// Returns whether a buffer of `bytes` bytes could be created now: within the limit, and in one piece of the memory at an alignment of 8.
    ///
    /// It allocates such a block and frees it at once, so it takes as long as [`create`](Self::create), which may wait for pending frees. If a running
    /// kernel [defers](crate::backend::Extension::defers_free) the free, the bytes count as used until that kernel ends; a [`Pool`](crate::pool::Pool) defers
    /// none. Another thread may allocate the bytes before the caller does: [`reserve`](Self::reserve) reserves them within the limit.
    #[must_use]
    #[track_caller]
    pub fn can_allocate(&self, bytes: u64) -> bool {
        self.here().is_ok() && self.shared.try_block(bytes, &Origin::here()).is_ok()
    }

    /// The buffer of that name, if it is what it should be; `None` for no buffer.
    fn found<T: DeviceBytes>(&self, name: &str, config: BufferConfig) -> Result<Option<BufferId<T>>> {
        self.here()?;
        let Some((index, metadata)) = self.shared.names.find(name, |named| (named.index, Arc::clone(&named.metadata))) else {
            return Ok(None);
        };
        metadata.element.check::<T>()?;
        if metadata.config != config {
            return Err(Error::AlreadyExists {
                name: name.into(),
                configs: Some(Box::new([metadata.config, config].map(|config| format!("{config:?}")))),
            });
        }
        Ok(Some(BufferId::new(self.shared.number, index)))
    }

    #[track_caller]
    fn make<T: DeviceBytes>(
        &self,
        name: &str,
        len: usize,
        config: BufferConfig,
        mut reservation: Option<&mut Reservation>,
    ) -> Result<BufferId<T>> {
        self.here()?;
        let shared = &*self.shared;
        let element = Element::of::<T>()?;
        config.validate()?;
        if let Some(wanted) = config.bytes_per_element.filter(|&bytes| bytes as usize != element.size) {
            return Err(ConfigError::Element { wanted, got: element.size as u64 }.into());
        }
        let capacity = config.capacity_exact(len as u64, element.size as u64)? as usize;
        let bytes = element.layout(capacity)?.size() as u64;
        let coming = shared.names.take(name)?;
        let (caller, shown) = (Location::caller(), Arc::<str>::from(name));
        let origin = Origin { name: Some(Arc::clone(&shown)), caller };
        let metadata = || Arc::new(Metadata::new(Arc::clone(&shown), caller, element, config, len, capacity, shared.now()));
        let (held, metadata) = match &mut reservation {
            None => {
                let reservation = shared.reserve(bytes)?;
                (Held::new(shared.block(&element, capacity, None, &origin)?, reservation), metadata())
            }
            // Its bytes count already: they are taken off when the memory is there, and after the last that may panic.
            Some(from) => {
                if !from.is_of(&shared.budget) {
                    return Err(Error::Unsupported { what: "a reservation of another manager" });
                }
                if from.bytes() < bytes {
                    return Err(Error::Size { what: "size in bytes", asked: bytes, least: 0, most: from.bytes() });
                }
                let block = shared.block(&element, capacity, None, &origin)?;
                let metadata = metadata();
                (Held::new(block, from.split(bytes)?), metadata)
            }
        };
        let entry = Entry { metadata: Arc::clone(&metadata), held };
        let index = shared.slots.insert(entry).map_err(|Rejected { error, value }| {
            if let Some(from) = reservation {
                value.held.go_back(from);
            }
            error
        })?;
        coming.give(Named { index, metadata });
        shared.counts.created();
        Ok(BufferId::new(shared.number, index))
    }
}
