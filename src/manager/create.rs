//! The ways into a manager: a buffer is created under a name, or registered.
//!
//! # Order of steps of a creation
//!
//! 1. Check the configuration, which allocates nothing.
//! 2. Take the name, so that of two creations of one name, only one allocates. Lookups do not find the name yet.
//! 3. Reserve the bytes, before the allocation: otherwise the blocks of two threads could exceed the limit for a moment.
//! 4. Allocate the block, with the retries and the fallback of the policy. This is the last call that may panic.
//! 5. Move the bytes from the reservation into the buffer, insert it, and let lookups find the name.
//!
//! A failure or panic in steps 3 to 5 frees the name and the block, and a reservation of the caller keeps all of its bytes.

#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::alloc::Layout;
use core::panic::Location;
use std::boxed::Box;
use std::sync::Arc;

use super::element::Element;
use super::entry::{Counted, Entry, Kind};
use super::names::Named;
use super::{BufferConfig, BufferId, MemoryManager, Store};
use crate::config::ConfigError;
use crate::memory::{Buffer, Memory, Origin, Reservation, max_bytes};
use crate::stream::Stream;
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
        self.table.here().is_ok() && self.store().try_block(bytes, &Origin::here()).is_ok()
    }

    fn found<T: DeviceBytes>(&self, name: &str, config: BufferConfig) -> Result<Option<BufferId<T>>> {
        self.table.here()?;
        let Some((index, named)) = self.store().names.find(name, |index, named| (index, Arc::clone(named))) else {
            return Ok(None);
        };
        named.element.check::<T>()?;
        if named.config() != config {
            return Err(Error::AlreadyExists {
                name: name.into(),
                configs: Some(Box::new([named.config(), config].map(|config| format!("{config:?}")))),
            });
        }
        Ok(Some(BufferId::new(self.table.number(), index)))
    }

    #[track_caller]
    fn make<T: DeviceBytes>(
        &self,
        name: &str,
        len: usize,
        config: BufferConfig,
        reservation: Option<&mut Reservation>,
    ) -> Result<BufferId<T>> {
        self.table.here()?;
        let store = self.store();
        let element = Element::of::<T>();
        config.validate()?;
        if let Some(wanted) = config.bytes_per_element.filter(|&bytes| bytes as usize != element.size()) {
            return Err(ConfigError::Element { wanted, got: element.size() as u64 }.into());
        }
        let capacity = config.capacity_exact(len as u64, element.size() as u64)? as usize;
        let bytes = element.layout(capacity)?.size() as u64;
        let named = Arc::new(Named::new(name.into(), Location::caller(), element, config, len, capacity, store.now()));
        let taken = store.names.take(&named)?;
        let (mut own, from);
        match reservation {
            None => {
                own = store.reserve(bytes)?;
                from = &mut own;
            }
            Some(given) if !given.is_of(&store.budget) => {
                return Err(Error::Unsupported { what: "a reservation of another manager" });
            }
            Some(given) if given.bytes() < bytes => {
                return Err(Error::Size { what: "size in bytes", asked: bytes, least: 0, most: given.bytes() });
            }
            Some(given) => from = given,
        }
        let (block, is_fallback) = store.block(&element, capacity, None, &named.origin())?;
        named.set_first_block(is_fallback);
        let counted = Counted::new(block, from)?;
        let entry = Entry { counted, kind: Kind::Created(Arc::clone(&named)) };
        let index = taken.give(|| self.table.insert(entry)).map_err(|Rejected { error, value }| {
            value.counted.cancel(from);
            error
        })?;
        store.counts.created();
        Ok(BufferId::new(self.table.number(), index))
    }
}

impl<M: Memory> MemoryManager<M> {
    /// Registers a buffer and returns its id. The buffer may be of another memory of this type, and counts towards the limit. It does not grow.
    /// Zero-sized elements do not compile.
    ///
    /// # Errors
    ///
    /// The buffer, with [`Limit`](Error::Limit), [`IdError::Full`](crate::error::IdError::Full), or [`Unsupported`](Error::Unsupported) in a forked
    /// process.
    pub fn register<T: DeviceBytes>(&self, buffer: Buffer<T, M>) -> Result<BufferId<T>, Rejected<Buffer<T, M>>> {
        let element = Element::of::<T>();
        let reservation = match self.reserve(buffer.size_bytes() as u64) {
            Ok(reservation) => reservation,
            Err(error) => return Err(Rejected { error, value: buffer }),
        };
        // SAFETY: any bytes are whole bytes.
        let bytes = unsafe { buffer.retyped::<u8>() };
        let entry = Entry { counted: Counted::with(bytes, reservation), kind: Kind::Registered(element) };
        match self.table.insert(entry) {
            Ok(index) => Ok(BufferId::new(self.table.number(), index)),
            // SAFETY: it was a buffer of `T` above.
            Err(Rejected { error, value }) => Err(Rejected { error, value: unsafe { value.counted.into_buffer().retyped() } }),
        }
    }
}

impl<M: Memory + Clone> Store<M> {
    fn try_block(&self, bytes: u64, origin: &Origin) -> Result<()> {
        let mut reservation = self.reserve(bytes)?;
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align_of::<u64>()).ok());
        let layout = layout.ok_or_else(|| Error::Size {
            what: "size in bytes",
            asked: bytes,
            least: 0,
            most: max_bytes(align_of::<u64>()) as u64,
        })?;
        let (block, _) = origin.around(|| self.allocate(layout, None))?;
        Counted::new(block, &mut reservation).map(drop)
    }

    /// Allocates a block; returns also whether it is of the fallback memory.
    pub(super) fn block(&self, element: &Element, capacity: usize, on: Option<&Stream>, origin: &Origin) -> Result<(Buffer<u8, M>, bool)> {
        let layout = element.layout(capacity)?;
        origin.around(|| self.allocate(layout, on))
    }

    fn allocate(&self, layout: Layout, on: Option<&Stream>) -> Result<(Buffer<u8, M>, bool)> {
        let from = |memory: &M, is_fallback| Ok((Buffer::bytes(memory.clone(), layout, on)?, is_fallback));
        self.guard.retry_or(|| from(&self.memory, false), self.fallback.as_ref().map(|memory| || from(memory, true)))
    }
}
