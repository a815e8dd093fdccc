//! What this crate adds to the operating system and the standard library: an asymmetric barrier, files that are replaced at once, forks, a clock, and
//! panics that lose nothing. Imports no other module of the crate.

pub(crate) mod barrier;
pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod fork;
pub(crate) mod panic;
pub(crate) mod path;
