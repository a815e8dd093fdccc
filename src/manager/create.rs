use core::panic::Location;
use std::boxed::Box;
use std::sync::Arc;

use super::entry::{Entry, Held};
use super::metadata::Metadata;
use super::{BufferConfig, BufferId, MemoryManager};
use crate::config::ConfigError;
use crate::memory::{Memory, Origin, Reservation};
use crate::registry::stored::Element;
use crate::{DeviceBytes, Error, Rejected, Result};

impl<M: Memory + Clone> MemoryManager<M> {
    /// Creates a buffer with `len` live elements of unspecified contents.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](Error::AlreadyExists), also while another thread creates it; [`Config`](Error::Config) for an invalid configuration, or one for
    /// another element size; [`Size`](Error::Size) above its maximum; [`Limit`](Error::Limit); the memory's or its [fallback](super::Builder::fallback)'s
    /// error. Nothing is created.
    #[track_caller]
    pub fn create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        self.make(name, len, config, None)
    }

    /// As [`create`](Self::create), with [reserved](Self::reserve) bytes. The rest stays reserved; after an error, all.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`Size`](Error::Size) for too few bytes, [`Unsupported`](Error::Unsupported) for another manager's.
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

    /// Returns the buffer of that name, at its present length, or creates it.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`find`](Self::find); [`AlreadyExists`](Error::AlreadyExists) for another configuration.
    #[track_caller]
    pub fn get_or_create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        if let Some(id) = self.found(name, config)? {
            return Ok(id);
        }
        match self.create(name, len, config) {
            Err(error @ Error::AlreadyExists { .. }) => self.found(name, config)?.ok_or(error),
            created => created,
        }
    }

    /// Returns whether a buffer of `bytes` bytes could be created now. It allocates such a block and frees it, which takes as long as
    /// [`create`](Self::create).
    ///
    /// If a running kernel [defers](crate::backend::Backend::defers_free) the free, the bytes count until it ends; a [`Pool`](crate::pool::Pool)
    /// defers none. To keep bytes, use [`reserve`](Self::reserve).
    #[must_use]
    #[track_caller]
    pub fn can_allocate(&self, bytes: u64) -> bool {
        self.slots.here().is_ok() && self.shared.try_block(bytes, &Origin::here()).is_ok()
    }

    fn found<T: DeviceBytes>(&self, name: &str, config: BufferConfig) -> Result<Option<BufferId<T>>> {
        self.slots.here()?;
        let Some((index, metadata)) = self.shared.names.find(name, |index, metadata| (index, Arc::clone(metadata))) else {
            return Ok(None);
        };
        metadata.element.check::<T>()?;
        if metadata.config != config {
            return Err(Error::AlreadyExists {
                name: name.into(),
                configs: Some(Box::new([metadata.config, config].map(|config| format!("{config:?}")))),
            });
        }
        Ok(Some(BufferId::new(self.slots.number(), index)))
    }

    #[track_caller]
    fn make<T: DeviceBytes>(
        &self,
        name: &str,
        len: usize,
        config: BufferConfig,
        reservation: Option<&mut Reservation>,
    ) -> Result<BufferId<T>> {
        self.slots.here()?;
        let shared = &*self.shared;
        let element = Element::of::<T>();
        config.validate()?;
        if let Some(wanted) = config.bytes_per_element.filter(|&bytes| bytes as usize != element.size()) {
            return Err(ConfigError::Element { wanted, got: element.size() as u64 }.into());
        }
        let capacity = config.capacity_exact(len as u64, element.size() as u64)? as usize;
        let bytes = element.layout(capacity)?.size() as u64;
        let metadata = Arc::new(Metadata::new(name.into(), Location::caller(), element, config, len, capacity, shared.now()));
        let coming = shared.names.take(&metadata)?;
        let (mut own, from);
        match reservation {
            None => {
                own = shared.reserve(bytes)?;
                from = &mut own;
            }
            Some(given) if !given.is_of(&shared.budget) => {
                return Err(Error::Unsupported { what: "a reservation of another manager" });
            }
            Some(given) if given.bytes() < bytes => {
                return Err(Error::Size { what: "size in bytes", asked: bytes, least: 0, most: given.bytes() });
            }
            Some(given) => from = given,
        }
        let (block, is_fallback) = shared.block(&element, capacity, None, &metadata.origin())?;
        metadata.set_fallback(is_fallback);
        // After the last call that may panic.
        let held = Held::new(block, from.split(bytes)?);
        let entry = Entry { metadata: Arc::clone(&metadata), shared: Arc::clone(&self.shared), held };
        let index = self.slots.insert(entry).map_err(|Rejected { error, value }| {
            value.held.go_back(from);
            error
        })?;
        coming.give(index);
        shared.counts.created();
        Ok(BufferId::new(self.slots.number(), index))
    }
}
