//! `tests/c/protocol_peer.cpp`: the peer of `examples/08_cpp` that implements the protocol itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpp_peer::{RING, Texts};

pub const TEXTS: Texts = Texts {
    no_consumer: "nobody takes the fills",
    owned_consumer: "this end has an owner: ",
    owned_producer: "this end has an owner: ",
    other_messages: "not such a ring: other messages",
    missing: "open ",
    short: "not such a ring: too small",
    zeros: "not such a ring: no region",
    words: [
        (RING, 5, "the producer's index is out of range"),
        (RING, u64::MAX, "the producer's index is out of range"),
        (RING + 256 + 16, 3, "another geometry"),
        (RING + 256 + 16, 1 << 20, "outside its entry"),
        (RING + 256 + 24, 8, "slots of another size"),
        (RING + 256 + 32, 1 << 40, "another geometry"),
        (RING + 256 + 48, 2, "another kind of message"),
        (64 + 8, 1 << 40, "outside the file"),
        (64 + 8, 1160, "outside the file"),
        (64 + 16, 1 << 40, "outside the file"),
        (32, 33, "too many entries"),
        (32, 0, "no entry"),
    ],
};

/// Compiles the program with the header in `folder`.
pub fn build(folder: &Path) -> PathBuf {
    let program = folder.join("peer");
    let output = Command::new("g++")
        .args(["-std=c++20", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/protocol_peer.cpp"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("this test needs g++ ({error}); on Debian: apt-get install g++"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
