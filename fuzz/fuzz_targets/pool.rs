//! The pool against a list of allocated intervals: one thread, three streams.

#![no_main]

#[path = "../../tests/suite/pool/shadow.rs"]
mod shadow;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shadow::{Op, Shadow, Source};

#[derive(Arbitrary, Debug)]
struct Input {
    doublings: u8,
    is_exact: bool,
    source: u8,
    operations: Vec<Any>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Any {
    Take { bytes: u32, bits: u8, on: Option<u8> },
    Give { which: u16 },
    GiveQueued { which: u16, stream: u8 },
    Trim { kib: u16 },
    Prewarm { bytes: u16, count: u8 },
    Synchronize { stream: u8 },
}

impl Any {
    fn op(self) -> Op {
        match self {
            Self::Take { bytes, bits, on } => Op::Take { bytes: bytes & ((1 << (bits % 23)) - 1), on },
            Self::Give { which } => Op::Give { which },
            Self::GiveQueued { which, stream } => Op::GiveQueued { which, stream },
            Self::Trim { kib } => Op::Trim { kib },
            Self::Prewarm { bytes, count } => Op::Prewarm { bytes, count },
            Self::Synchronize { stream } => Op::Synchronize { stream },
        }
    }
}

fuzz_target!(|input: Input| {
    let source = [Source::Slabs, Source::Range, Source::ShortRange][usize::from(input.source % 3)];
    let mut shadow = Shadow::new(1 << (input.doublings % 4), input.is_exact, source);
    for any in input.operations.iter().take(300) {
        shadow.step(any.op());
        shadow.step(Op::Check);
    }
    shadow.finish();
});
