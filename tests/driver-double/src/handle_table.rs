use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry;

const HANDLES: usize = 0xD1A0_0000_0000_0000_u64 as usize;

pub struct Table<T> {
    kind: usize,
    what: &'static str,
    rows: Mutex<Rows<T>>,
}

struct Rows<T> {
    next: usize,
    live: BTreeMap<usize, Row<T>>,
}

struct Row<T> {
    thing: Arc<T>,
    made: u64,
}

impl<T> Table<T> {
    pub const fn new(kind: usize, what: &'static str) -> Self {
        Self { kind, what, rows: Mutex::new(Rows { next: 1, live: BTreeMap::new() }) }
    }

    pub fn insert(&self, thing: T) -> usize {
        self.insert_arc(Arc::new(thing))
    }

    pub fn insert_arc(&self, thing: Arc<T>) -> usize {
        let mut rows = self.rows();
        let handle = self.handle(rows.next);
        rows.next += 1;
        rows.live.insert(handle, Row { thing, made: entry::current().0 });
        handle
    }

    pub fn find(&self, handle: usize) -> Answer<Arc<T>> {
        let rows = self.rows();
        rows.live.get(&handle).map(|row| Arc::clone(&row.thing)).ok_or_else(|| self.refuse(&rows, handle))
    }

    pub fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        let mut rows = self.rows();
        rows.live.remove(&handle).map(|row| row.thing).ok_or_else(|| self.refuse(&rows, handle))
    }

    pub fn handle_of(&self, thing: &Arc<T>) -> Option<usize> {
        self.rows().live.iter().find(|(_, row)| Arc::ptr_eq(&row.thing, thing)).map(|(&handle, _)| handle)
    }

    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.rows().live.retain(|_, row| keep(&row.thing));
    }

    pub fn list(&self, such: impl Fn(&T) -> bool) -> Vec<(usize, u64)> {
        self.rows().live.iter().filter(|(_, row)| such(&row.thing)).map(|(&handle, row)| (handle, row.made)).collect()
    }

    fn refuse(&self, rows: &Rows<T>, handle: usize) -> Code {
        if (self.handle(1)..self.handle(rows.next)).contains(&handle) {
            Driver::the().violations.of_call(&format!("uses {} {handle:#x}, which was destroyed", self.what));
        }
        Code::INVALID_HANDLE
    }

    const fn handle(&self, index: usize) -> usize {
        HANDLES | self.kind << 40 | index << 4
    }

    fn rows(&self) -> MutexGuard<'_, Rows<T>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
