use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::block::ALIGN;

pub const HOST: i32 = -1;
pub const NOWHERE: i32 = -2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Page {
    pub read_mostly: bool,
    pub preferred: i32,
    pub prefetched: i32,
    pub accessed_by: (u64, bool),
}

pub struct Managed {
    pages: Mutex<Vec<Page>>,
}

impl Managed {
    pub fn new(len: u64) -> Self {
        let page = Page { read_mostly: false, preferred: NOWHERE, prefetched: NOWHERE, accessed_by: (0, false) };
        Self { pages: Mutex::new(vec![page; len.div_ceil(ALIGN) as usize]) }
    }

    pub fn change(&self, offset: u64, len: u64, change: impl Fn(&mut Page)) {
        let mut pages = self.pages();
        let range = range(offset, len, pages.len());
        pages[range].iter_mut().for_each(change);
    }

    pub fn agreed<R: PartialEq>(&self, offset: u64, len: u64, what: impl Fn(&Page) -> R) -> Option<R> {
        let pages = self.pages();
        let mut all = pages[range(offset, len, pages.len())].iter().map(what);
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    fn pages(&self) -> MutexGuard<'_, Vec<Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    pub fn accessed(&mut self, by: i32, does: bool) {
        match by {
            HOST => self.accessed_by.1 = does,
            device if does => self.accessed_by.0 |= 1 << device,
            device => self.accessed_by.0 &= !(1 << device),
        }
    }
}

fn range(offset: u64, len: u64, pages: usize) -> std::ops::Range<usize> {
    let first = (offset / ALIGN) as usize;
    first.min(pages)..((offset + len).div_ceil(ALIGN) as usize).min(pages)
}
