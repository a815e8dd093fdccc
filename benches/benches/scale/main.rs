//! `cargo bench -p ringmem-benches --bench scale -- [--json] [--quick] [NAME]...`: cost per operation as the number of live objects grows.
//!
//! Device memory is a range of numbers here: 1 TiB of slabs takes no memory. No operation accesses the bytes.

mod addresses;
mod memory;
mod queues;

use std::process::ExitCode;
use std::time::Instant;

use ringmem_benches::{Wanted, Work, grow};

/// Uniform numbers, alike in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * most as u64) >> 32) as usize
    }
}

/// Times one operation after another.
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
