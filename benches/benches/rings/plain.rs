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
        assert!(*self == [number; N], "message {number} came as {}", self[0]);
    }
}
