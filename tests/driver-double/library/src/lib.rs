//! The driver double as a library that exports the driver's symbols.
//!
//! A package of its own, built by itself: with every feature of the workspace on, defmt's symbols would be among its exports, and their
//! names are no names to a linker.

pub use ringmem_driver_double::*;
