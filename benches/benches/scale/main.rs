//! `cargo bench -p ringmem-benches --bench scale -- [--json] [--quick] [NAME]...`: cost per operation as live objects grow.
//!
//! Device memory is a range of numbers here.

mod addresses;
mod memory;
mod queues;

use std::process::ExitCode;
use std::time::Instant;

use ringmem_benches::{Wanted, Work, grow};

fn each(mut operation: impl FnMut() + 'static) -> Work {
    Box::new(move |times| {
        let begun = Instant::now();
        (0..times).for_each(|_| operation());
        begun.elapsed().as_nanos() as f64 / times as f64
    })
}

fn main() -> ExitCode {
    let quantities: Vec<_> = memory::quantities().into_iter().chain(queues::quantities()).collect();
    grow("scale", &Wanted::from_args(), &quantities)
}
