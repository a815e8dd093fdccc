//! A link against iceoryx2's own publish and subscribe: messages and bytes per second.
//!
//! `cargo bench --bench link -- [--quick] [--json]`: two threads, medians of rounds in turns; ours over theirs.

use std::thread;
use std::time::Instant;

use iceoryx2::prelude::*;
use ringmem::RingMessage;
use ringmem::ring::spsc;
use ringmem_iceoryx2::{Feed, Link, Message, Moved, Options, Publish};

const ROUNDS: usize = 15;
/// Samples of the subscriber's queue, slots of each ring, and loops between two polls of the other end.
const QUEUE: usize = 64;

type Service = ipc_threadsafe::Service;

fn link<T: RingMessage>(node: &Node<Service>, name: &str) -> Link<Service, Message<T>> {
    Link::messages_with::<T>(node, name, Options { queue: QUEUE, publishers: 1 }).unwrap()
}

/// The first and last bytes: enough to see a wrong message, and the same work for both.
fn check<T: RingMessage>(message: &T, number: u64) {
    let bytes = message.as_bytes();
    assert_eq!((&bytes[..8], &bytes[bytes.len() - 8..]), (&number.to_le_bytes()[..], &number.to_le_bytes()[..]));
}
