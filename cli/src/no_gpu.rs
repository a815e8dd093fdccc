//! The module `gpu` without the feature `cuda`.

use ringmem::{Error, Result};
use serde_json::Value;

use super::place::Place;

pub(super) fn open() -> Result<Place> {
    Err(Error::Unsupported { what: "CUDA in a program that was built without the feature `cuda`" })
}

pub(super) fn driver() -> Value {
    Value::String("not asked for: built without the feature `cuda`".to_owned())
}
