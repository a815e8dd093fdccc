//! Locks are held for a map operation only. A buffer's name is taken during its creation, but not found.

use core::borrow::Borrow;
use core::hash::{Hash, Hasher};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::Vec;

use foldhash::fast::RandomState;

use super::metadata::Metadata;
use crate::registry::slots::Index;
use crate::{Error, Result};

/// Maps, against contention. A power of two.
const SHARDS: usize = 16;

type Shard = HashSet<Named, RandomState>;

/// Compared and hashed by the name, which the metadata store once for all maps.
#[derive(Clone, Debug)]
struct Named(Arc<Metadata>);

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

#[derive(Debug, Default)]
pub(super) struct Names {
    shards: [RwLock<Shard>; SHARDS],
    /// By slot: a leased buffer cannot tell its name.
    slots: Mutex<Vec<Option<Arc<Metadata>>>>,
}

/// A taken name, which no caller finds before [`give`](Self::give). It is free again if this is dropped without.
#[must_use]
pub(super) struct Coming<'a> {
    names: &'a Names,
    metadata: &'a Arc<Metadata>,
}

impl Names {
    pub fn take<'a>(&'a self, metadata: &'a Arc<Metadata>) -> Result<Coming<'a>> {
        if !self.write(&metadata.name).insert(Named(Arc::clone(metadata))) {
            return Err(Error::AlreadyExists { name: (&*metadata.name).into(), configs: None });
        }
        Ok(Coming { names: self, metadata })
    }

    pub fn find<R>(&self, name: &str, look: impl FnOnce(Index, &Arc<Metadata>) -> R) -> Option<R> {
        let shard = self.read(name);
        let Named(metadata) = shard.get(name)?;
        Some(look(metadata.index()?, metadata))
    }

    /// `None` if another buffer has the slot now.
    pub fn of(&self, index: Index) -> Option<Arc<Metadata>> {
        self.slots().get(index.index as usize)?.clone().filter(|metadata| metadata.index() == Some(index))
    }

    pub fn free(&self, metadata: &Arc<Metadata>) {
        let is_this = |other: &Arc<Metadata>| Arc::ptr_eq(other, metadata);
        let name = &*metadata.name;
        let mut shard = self.write(name);
        if shard.get(name).is_some_and(|Named(other)| is_this(other)) {
            shard.remove(name);
        }
        drop(shard);
        let Some(index) = metadata.index() else { return };
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(index.index as usize).filter(|slot| slot.as_ref().is_some_and(is_this)) {
            *slot = None;
        }
    }

    /// Ordered by name, not of one instant. Each has an index.
    pub fn all(&self) -> Vec<Arc<Metadata>> {
        let mut all = Vec::new();
        self.each(|metadata| all.push(Arc::clone(metadata)));
        all.sort_unstable_by(|a: &Arc<Metadata>, b| a.name.cmp(&b.name));
        all
    }

    /// `visit` calls no user code.
    pub fn each(&self, mut visit: impl FnMut(&Arc<Metadata>)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.iter().filter(|Named(metadata)| metadata.index().is_some()).for_each(|Named(metadata)| visit(metadata));
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Arc<Metadata>>>> {
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
    pub fn give(self, index: Index) {
        let slot = index.index as usize;
        let mut slots = self.names.slots();
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        slots[slot] = Some(Arc::clone(self.metadata));
        drop(slots);
        self.metadata.set_index(index);
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if self.metadata.index().is_none() {
            self.names.write(&self.metadata.name).remove(&*self.metadata.name);
        }
    }
}
