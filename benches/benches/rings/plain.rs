use zerocopy::{FromBytes, Immutable, IntoBytes};

pub trait Plain: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable {}

impl<T: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable> Plain for T {}

pub trait Message: Plain {
    fn numbered(number: u64) -> Self;
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
        // `memcmp` loads wider pieces than were stored, which defeats store forwarding.
        if self.iter().fold(0, |odd, word| odd | (word ^ number)) != 0 {
            another(number, self[0]);
        }
    }
}

/// By value: a reference costs the loop a store per message.
#[cold]
fn another(number: u64, word: u64) -> ! {
    panic!("message {number} came as {word}")
}
