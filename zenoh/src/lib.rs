//! Carries a ring to the same kind of ring on another host, over [zenoh](https://docs.rs/zenoh).
//!
//! A [`Relay::sender`] reads a [`Source`] and publishes its messages; a [`Relay::receiver`] pushes them into a [`Sink`]. One pair carries one direction
//! at one key.
//!
//! | source | sink | ring |
//! |---|---|---|
//! | [`SpscSource`] | [`SpscSink`] | `ring::spsc`, in place |
//! | [`Messages`] | [`MessageSink`] | other rings of messages; closures, for `Waiting` ends and a `Channel` |
//! | [`Frames`] | [`FrameSink`] | `ring::framed` |
//! | [`SharedSource`] | [`SharedSink`] | a ring between processes (`ringmem::shared`) |
//!
//! ```no_run
//! use ringmem::ring::spsc;
//! use ringmem_zenoh::{Relay, SpscSink, SpscSource};
//! use zenoh::Wait;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let session = zenoh::open(zenoh::Config::default()).wait()?;
//! // On one host:
//! let (mut producer, consumer) = spsc::bounded::<u64>(1024);
//! let sender = Relay::sender(&session, "plant/orders", SpscSource::new(consumer))?;
//! producer.push(7)?;
//!
//! // On the other host:
//! let (producer, mut consumer) = spsc::bounded::<u64>(1024);
//! let receiver = Relay::receiver(&session, "plant/orders", SpscSink::new(producer))?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! 1. **Order.** The sink gets a source's messages in order.
//! 2. **No loss, no doubling while both processes live**, also after a lost link or router.
//! 3. **The sender is killed.** A [`SharedSource`] keeps unacknowledged messages in its file. The next sender continues; nothing is lost or doubled.
//!    Sources in memory are lost with their process; sent messages arrive.
//! 4. **The receiver is killed.** The next receiver of a [`SharedSink`] opened by path continues without loss or doubling, even if the sender is
//!    killed too. Sinks in memory are lost with their process; the next receiver begins at the first unacknowledged message.
//! 5. **Backpressure.** At most [`window_bytes`](Options::window_bytes) are sent and not in the sink. A full sink stops the sender, then
//!    the producer. Whatever its peers send, each side holds at most twice the window of messages, one batch or message that exceeds it, 48 bytes for
//!    each frame, and zenoh's buffers of at most 512 batches (64 KiB each). zenoh itself assembles each arriving message first, of up to its setting
//!    `transport/link/rx/max_message_size`: by default 1 GiB, in `ringmem-relay` 8 MiB and a message of the ring.
//! 6. **Types.** The handshake compares kind of ring, size, kind and ABI hash of the messages. If they differ, the sender ends with
//!    [`Error::Mismatch`].
//! 7. **Invalid messages** at the keys are ignored and counted. A relay continues with the genuine peer's next handshake, which follows within
//!    about two [silences](Options::silence); so does one whose stored state has a number that the source cannot have. A hello alone changes nothing.
//!
//! # Not guaranteed
//!
//! - Power loss and system crashes: ring files are not synchronised to disk.
//! - Copied or restored ring files. A new file at an old path is a new ring.
//! - Two receivers at one key: an unspecified one gets messages. Two senders at one key take turns, slowly.
//! - Authentication: see below.
//! - Byte order: both hosts must have the same one; the ABI hash does not show it.
//!
//! # Hostile peers
//!
//! Nothing at the keys is authenticated or encrypted by the relay. A peer that may use them can:
//!
//! - read the messages (a subscriber of `KEY/data`);
//! - insert messages (data with the numbers that it read), lose them (acknowledgements, a false receiver's welcome) and double them (hellos and data that
//!   reset a source's number, or displace it by those of 8 other sources);
//! - delay them: by hellos and data of another source, which take turns with the genuine one; by a queryable at `KEY/hello` that does not answer, which
//!   prolongs each handshake to 1 s; by load;
//! - take a sender's place at the receiver, or the receiver's, for as long as it stays;
//! - end a sender with [`Error::Mismatch`], by a refusal while no receiver answers.
//!
//! It cannot end a receiver, stop a relay after it has left, exceed the memory above, or make a relay write anything but the stored state and messages
//! of the ring's type. Allow the keys only to the two hosts, by zenoh's access control with authenticated links (mutual TLS).
//!
//! With the feature `shared-memory` (not tested in CI), zenoh passes large batches between processes of one host in place.
//!
//! # Protocol
//!
//! `KEY/hello` queries the sequence number to continue at, at the start and after each [`silence`](Options::silence). `KEY/data` carries batches,
//! `KEY/ack` cumulative acknowledgements.
//!
//! A sender is *unbound* until a receiver welcomes it at a number from its first to its last unreleased message; then it sends, and asks again after a
//! silence or a gap. A receiver has one *current* source. A hello gets an *offer*: the number after the last message pushed for that source, if the
//! source still has messages from there on, otherwise the source's first. The source becomes the current one, and the state is stored, when its batch at
//! the offered number arrives.

mod envelope;
mod error;
mod metrics;
mod options;
mod pace;
mod receiver;
mod relay;
mod ring_type;
mod sender;
mod shared;
mod sink;
mod source;
mod spsc;
mod streams;

use std::hash::{BuildHasher, Hasher, RandomState};

use zenoh::key_expr::KeyExpr;

pub use error::Error;
pub use metrics::Metrics;
pub use options::Options;
pub use relay::Relay;
pub use ring_type::RingType;
pub use shared::{SharedSink, SharedSource};
pub use sink::{FrameSink, MessageSink, Sink};
pub use source::{Frames, Messages, Source};
pub use spsc::{SpscSink, SpscSource};

fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

fn keys(key: &str) -> Result<[KeyExpr<'static>; 3], Error> {
    let invalid = || Error::Key(key.to_owned());
    if key.contains(['*', '$']) {
        return Err(invalid());
    }
    let of = |suffix: &str| KeyExpr::try_from(format!("{key}/{suffix}")).map_err(|_| invalid());
    Ok([of("data")?, of("ack")?, of("hello")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_key_is_an_error() {
        assert_eq!(keys("a/b").unwrap()[1].as_str(), "a/b/ack");
        for key in ["", "a/*", "**", "/a", "a//b", "a$*"] {
            assert!(matches!(keys(key), Err(Error::Key(named)) if named == key), "{key}");
        }
    }
}
