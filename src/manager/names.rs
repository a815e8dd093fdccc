//! Locks are held for a map operation only. A buffer's name is taken during its creation, but not found.

use std::boxed::Box;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::Vec;

use foldhash::fast::RandomState;

use super::metadata::Metadata;
use crate::registry::slots::Index;
use crate::{Error, Result};

/// Maps, against contention. A power of two.
const SHARDS: usize = 16;

type Shard = HashMap<Box<str>, Option<Named>, RandomState>;

#[derive(Clone, Debug)]
pub(super) struct Named {
    pub index: Index,
    pub metadata: Arc<Metadata>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    shards: [RwLock<Shard>; SHARDS],
    /// By slot: a leased buffer cannot tell its name.
    slots: Mutex<Vec<Option<Named>>>,
}

#[must_use]
pub(super) struct Coming<'a> {
    names: &'a Names,
    name: &'a str,
    is_given: bool,
}

impl Names {
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

    /// `None` if another buffer has the slot now.
    pub fn of(&self, index: Index) -> Option<Named> {
        self.slots().get(index.index as usize)?.clone().filter(|named| named.index == index)
    }

    pub fn free(&self, named: &Named) {
        let is_this = |other: &Option<Named>| matches!(other, Some(other) if other.index == named.index);
        let name = &*named.metadata.name;
        let mut shard = self.write(name);
        if shard.get(name).is_some_and(is_this) {
            shard.remove(name);
        }
        drop(shard);
        drop(self.slots().get_mut(named.index.index as usize).filter(|other| is_this(other)).and_then(Option::take));
    }

    /// Ordered by name, not of one instant.
    pub fn all(&self) -> Vec<Named> {
        let here = |shard: &RwLock<Shard>| -> Vec<Named> {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().flatten().cloned().collect()
        };
        let mut all: Vec<Named> = self.shards.iter().flat_map(here).collect();
        all.sort_unstable_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        all
    }

    /// `visit` calls no user code.
    pub fn each(&self, mut visit: impl FnMut(&Metadata)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().flatten().for_each(|named| visit(&named.metadata));
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Named>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, name: &str) -> RwLockReadGuard<'_, Shard> {
        self.shard(name).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, name: &str) -> RwLockWriteGuard<'_, Shard> {
        self.shard(name).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, name: &str) -> &RwLock<Shard> {
        // The map hashes the whole name. The last letter often distinguishes names.
        let last = name.as_bytes().last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }
}

impl Coming<'_> {
    pub fn give(mut self, named: Named) {
        self.is_given = true;
        let slot = named.index.index as usize;
        {
            let mut slots = self.names.slots();
            if slots.len() <= slot {
                slots.resize_with(slot + 1, || None);
            }
            slots[slot] = Some(named.clone());
        }
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
