//! `examples/08_cpp/peer.cpp`, over `ringmem.hpp`.

use std::path::{Path, PathBuf};

use crate::compiler::{CPP17, FOLDER, Link, compile};
use crate::cpp_peer::{RING, Texts};

pub const TEXTS: Texts = Texts {
    no_consumer: "the consumer has left or died",
    owned_consumer: "busy: the ring has a consumer",
    owned_producer: "busy: the ring has a producer",
    other_messages: "type mismatch: ABI",
    missing: "cannot open ",
    short: "region too small: 100 bytes",
    zeros: "not formatted: magic is 0x0000000000000000",
    words: [
        (RING, 5, "ring is corrupt"),
        (RING, u64::MAX, "ring is corrupt"),
        (RING + 256 + 16, 3, "invalid capacity 3"),
        (RING + 256 + 16, 1 << 20, "region too small"),
        (RING + 256 + 24, 8, "slots of 8 bytes, expected 24"),
        (RING + 256 + 32, 1 << 40, "region too small"),
        (RING + 256 + 48, 2, "messages of kind 2, expected 1"),
        (64 + 8, 1 << 40, "invalid offset 1099511627776"),
        (64 + 8, 1160, "invalid offset 1160"),
        (64 + 16, 1 << 40, "invalid offset"),
        (32, 33, "33 entries"),
        (32, 0, "messages of kind 0, expected 5"),
    ],
};

/// Compiles the program with the header in `folder`.
pub fn build(folder: &Path) -> PathBuf {
    let source = Path::new(FOLDER).join("../examples/08_cpp/peer.cpp");
    compile(CPP17, &source, folder, Link::Shared).unwrap_or_else(|errors| panic!("{errors}"))
}
