//! The host's memory of virtual memory where the system's calls for it are not used: nothing can be reserved or created.

use std::ptr::NonNull;

use crate::code::{Answer, Code};

pub struct Store;

pub enum Pages {}

pub enum Range {}

impl Store {
    pub const fn new() -> Self {
        Self
    }

    pub fn pages(&self, _: u64) -> Answer<Pages> {
        Err(Code::NOT_SUPPORTED)
    }
}

impl Range {
    pub fn reserve(_: u64) -> Answer<Self> {
        Err(Code::NOT_SUPPORTED)
    }

    pub fn place(&self, _: u64) -> NonNull<u8> {
        match *self {}
    }

    pub fn insert(&self, _: u64, _: &Pages) -> Answer {
        match *self {}
    }

    pub fn remove(&self, _: u64, _: &Pages, _: bool) {
        match *self {}
    }
}
