//! Two threads or more at the ends of a ring. A small program, which ThreadSanitizer can run optimised.

#[path = "../suite/count.rs"]
mod count;
#[path = "../suite/patience.rs"]
mod patience;
#[path = "../suite/ring_memory.rs"]
mod ring_memory;

mod framed;
mod lossy;
mod paired;
mod rings;

const DEPTH: u64 = if cfg!(debug_assertions) { 1 } else { 8 };
