//! Reference models that random operations on rings are compared with, also by the fuzz targets. The tests are in `*_model.rs`.

pub mod framed;
pub mod lossy;
pub mod paired;
pub mod queue;
