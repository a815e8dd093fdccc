use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::{Error, Result};
use serde_json::Value;

pub(super) fn open(_pinned: Option<u64>) -> Result<(Arc<dyn Backend>, String)> {
    Err(Error::Unsupported { what: "CUDA without the feature `cuda` of ringmem-cli (rebuild with it)" })
}

pub(super) fn driver() -> Value {
    Value::String("unknown: built without the feature `cuda`, rebuild with it".to_owned())
}
