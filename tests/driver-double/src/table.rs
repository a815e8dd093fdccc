//! [`Table`]: handles, and what they stand for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::call;
use crate::code::{Answer, Code};

/// Handles lie where a process has nothing: whoever follows one faults.
const HANDLES: usize = 0xD1A0_0000_0000_0000_u64 as usize;

/// Things of one kind by handle. A handle is never used twice, and one of another kind is not found.
pub struct Table<T> {
    kind: usize,
    rows: Mutex<Rows<T>>,
}

struct Rows<T> {
    next: usize,
    live: BTreeMap<usize, Row<T>>,
}

struct Row<T> {
    thing: Arc<T>,
    /// Number of the call that made it.
    made: u64,
}

impl<T> Table<T> {
    /// A table whose handles carry `kind`, below 256.
    pub const fn new(kind: usize) -> Self {
        Self { kind, rows: Mutex::new(Rows { next: 1, live: BTreeMap::new() }) }
    }

    pub fn insert(&self, thing: T) -> usize {
        self.insert_arc(Arc::new(thing))
    }

    pub fn insert_arc(&self, thing: Arc<T>) -> usize {
        let mut rows = self.rows();
        let handle = HANDLES | self.kind << 40 | rows.next << 4;
        rows.next += 1;
        rows.live.insert(handle, Row { thing, made: call::current().0 });
        handle
    }

    pub fn find(&self, handle: usize) -> Answer<Arc<T>> {
        self.rows().live.get(&handle).map(|row| Arc::clone(&row.thing)).ok_or(Code::INVALID_HANDLE)
    }

    pub fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        self.rows().live.remove(&handle).map(|row| row.thing).ok_or(Code::INVALID_HANDLE)
    }

    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.rows().live.retain(|_, row| keep(&row.thing));
    }

    /// Handle and number of the making call of each.
    pub fn list(&self) -> Vec<(usize, u64)> {
        self.rows().live.iter().map(|(&handle, row)| (handle, row.made)).collect()
    }

    fn rows(&self) -> MutexGuard<'_, Rows<T>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
