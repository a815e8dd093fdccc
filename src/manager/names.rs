//! [`Names`]: the map from names to buffers.
//!
//! Locks are held for a map operation only. A name is taken while its buffer is being created, but not found.

use std::boxed::Box;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::Vec;

use foldhash::fast::RandomState;

use super::metadata::Metadata;
use crate::registry::slots::Index;
use crate::{Error, Result};

/// Maps, to reduce contention. A power of two.
const SHARDS: usize = 16;

/// `None` during the creation.
type Shard = HashMap<Box<str>, Option<Named>, RandomState>;

#[derive(Clone, Debug)]
pub(super) struct Named {
    pub index: Index,
    pub metadata: Arc<Metadata>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    shards: [RwLock<Shard>; SHARDS],
}

#[must_use]
pub(super) struct Coming<'a> {
    names: &'a Names,
    name: &'a str,
    is_given: bool,
}

impl Names {
    /// Takes a name.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](Error::AlreadyExists).
    pub fn take<'a>(&'a self, name: &'a str) -> Result<Coming<'a>> {
        match self.write(name).entry(name.into()) {
            Entry::Occupied(_) => Err(Error::AlreadyExists { name: name.into(), configs: None }),
            Entry::Vacant(place) => {
                place.insert(None);
                Ok(Coming { names: self, name, is_given: false })
            }
        }
    }

    pub fn find<R>(&self, name: &str, look: impl FnOnce(&Named) -> R) -> Option<R> {
        self.read(name).get(name)?.as_ref().map(look)
    }

    /// Frees the name, if it is this buffer's.
    pub fn free(&self, name: &str, index: Index) {
        let mut shard = self.write(name);
        if matches!(shard.get(name), Some(Some(named)) if named.index == index) {
            shard.remove(name);
        }
    }

    pub fn free_of(&self, index: Index) {
        let has = |named: &Option<Named>| named.as_ref().is_some_and(|named| named.index == index);
        for shard in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).retain(|_, named| !has(named));
        }
    }

    /// Returns all buffers in order of name, not of one instant.
    pub fn all(&self) -> Vec<Named> {
        let here = |shard: &RwLock<Shard>| -> Vec<Named> {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().flatten().cloned().collect()
        };
        let mut all: Vec<Named> = self.shards.iter().flat_map(here).collect();
        all.sort_unstable_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        all
    }

    /// Calls `visit`, which calls no user code, with each buffer, in no order.
    pub fn each(&self, mut visit: impl FnMut(&Metadata)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().flatten().for_each(|named| visit(&named.metadata));
        }
    }

    fn read(&self, name: &str) -> RwLockReadGuard<'_, Shard> {
        self.shard(name).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, name: &str) -> RwLockWriteGuard<'_, Shard> {
        self.shard(name).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, name: &str) -> &RwLock<Shard> {
        // The map hashes the whole name. Names often differ in their last letter.
        let last = name.as_bytes().last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }
}

impl Coming<'_> {
    pub fn give(mut self, named: Named) {
        self.is_given = true;
        self.names.write(self.name).insert(self.name.into(), Some(named));
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if !self.is_given {
            self.names.write(self.name).remove(self.name);
        }
    }
}
