//! Messages: words that all hold the message's number.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What every ring can carry: some need a default, some bytes.
pub trait Plain: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable {}

impl<T: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable> Plain for T {}

/// A message that can be told from every other.
pub trait Message: Plain {
    /// The message of this number.
    fn numbered(number: u64) -> Self;
    /// Panics unless it is the message of this number.
    fn check(&self, number: u64);
}

impl<const N: usize> Message for [u64; N]
where
    [u64; N]: Default,
{
    #[inline(always)]
    fn numbered(number: u64) -> Self {
        [number; N]
    }

    #[inline(always)]
    fn check(&self, number: u64) {
        // Word by word: a call of `memcmp` reads in wider pieces than were written, and waits for them longer than a message takes.
        if self.iter().fold(0, |odd, word| odd | (word ^ number)) != 0 {
            another(number, self[0]);
        }
    }
}

/// By value: an address taken would cost the loop a store for each message.
#[cold]
fn another(number: u64, word: u64) -> ! {
    panic!("message {number} came as {word}")
}
