//! What stands for the GPUs in a program that was built without the feature `cuda`.

use std::sync::Arc;

use serde_json::Value;

use crate::backend::{Backend, Copy, StreamId};
use crate::{Error, Result};

pub(super) fn open() -> Result<(Arc<dyn Backend>, Bare, String)> {
    Err(Error::Unsupported { what: "CUDA in a program that was built without the feature `cuda`" })
}

pub(super) fn driver() -> Value {
    Value::String("not asked for: built without the feature `cuda`".to_owned())
}

/// A driver, of which there is none.
pub(super) enum Bare {}

impl Bare {
    pub fn source(&self) -> Result<String> {
        match *self {}
    }

    pub fn bind(&self) -> Result<()> {
        match *self {}
    }

    pub unsafe fn copy(&self, _: &Copy, _: StreamId) -> Result<()> {
        match *self {}
    }

    pub fn ordered_block(&self, _: usize, _: StreamId) -> Result<()> {
        match *self {}
    }

    pub fn block(&self, _: usize) -> Result<()> {
        match *self {}
    }
}
