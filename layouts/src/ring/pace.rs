//! [`Pace`]: a short spin before polls that contend for the other end's cache line.

use core::hint::spin_loop;

/// The fence keeps speculative loads from fetching the line that the wait leaves to the other end.
#[inline(always)]
pub(super) fn pause(hints: u32) {
    for _ in 0..hints {
        spin_loop();
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads and writes nothing; it only delays later instructions.
    unsafe {
        core::arch::asm!("lfence", options(nostack, preserves_flags));
    }
}

/// Why a wait makes both ends faster, with figures: docs/internals/rings.md.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// The index from which a poll is preceded by a wait, or follows one.
    due: u64,
    /// Spin hints before the next poll, or 0; above [`BITS`](Self::BITS), slots from a failed wait to the next try. One word, to fit an end's
    /// registers.
    state: u32,
}

impl Pace {
    const BITS: u32 = 8;
    /// About one transfer of a line between cores and back.
    const FIRST: u32 = 16;
    const LONGEST: u32 = 64;
    /// Messages in a poll of an end that is well ahead.
    const PLENTY: u64 = 256;
    /// Bytes of a slot that is worth one hint.
    const SMALL: usize = 32;
    /// Slots from an empty poll to the next wait: an end that is waited for must not delay.
    const SOON: u64 = 4;
    /// Least and greatest slots between tries.
    const PATIENCE: [u32; 2] = [64, 1 << 13];

    pub(super) const fn new(index: u64) -> Self {
        Self::from(index.wrapping_add(Self::SOON), Self::PATIENCE[0], 0)
    }

    const fn from(due: u64, patience: u32, pauses: u32) -> Self {
        Self { due, state: patience << Self::BITS | pauses }
    }

    const fn pauses(self) -> u32 {
        self.state & ((1 << Self::BITS) - 1)
    }

    /// Whether a poll at `index` follows a [`wait`](Self::wait); then call [`seen`](Self::seen).
    #[inline(always)]
    pub(super) const fn is_due(&self, index: u64) -> bool {
        index.wrapping_sub(self.due) as i64 >= 0
    }

    #[cold]
    pub(super) fn wait(self) {
        if self.pauses() > 0 {
            pause(self.pauses());
        }
    }

    /// Called after a poll of `mask + 1` slots of `T`. By value, so that an end can live in registers.
    #[cold]
    pub(super) fn seen<T>(self, index: u64, mask: u64, found: u64) -> Self {
        // A slot of several lines takes as long as several slots.
        let weight = const { if size_of::<T>() < Self::SMALL { 1 } else { (size_of::<T>() / Self::SMALL) as u64 } };
        let (found, plenty) = (found.saturating_mul(weight), Self::PLENTY.min((mask + 1).saturating_mul(weight) / 4));
        let mut patience = self.state >> Self::BITS;
        let (rest, pauses) = match self.pauses() {
            _ if found == 0 => (Self::SOON, 0),
            0 if found < plenty => (0, Self::FIRST),
            0 => (u64::from(Self::PATIENCE[0]), 0),
            pauses if found < u64::from(pauses) => {
                patience = (patience * 2).min(Self::PATIENCE[1]);
                (u64::from(patience), 0)
            }
            pauses => {
                patience = Self::PATIENCE[0];
                (0, if found < plenty { (pauses * 2).min(Self::LONGEST) } else { pauses })
            }
        };
        Self::from(index.wrapping_add(rest), patience, pauses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 1024;

    fn look(pace: &mut Pace, index: u64, found: u64) -> u64 {
        if pace.is_due(index) {
            *pace = pace.seen::<u64>(index, CAPACITY - 1, found);
        }
        index.wrapping_add(found)
    }

    fn tried_after(pace: &mut Pace, index: &mut u64, found: u64) -> u64 {
        (1..=100_000)
            .find(|_| {
                *index = look(pace, *index, found);
                pace.pauses() > 0
            })
            .expect("a wait is tried")
    }

    #[test]
    fn a_ping_pong_consumer_never_pauses() {
        let mut pace = Pace::new(0);
        let mut index = 0;
        for _ in 0..10_000 {
            index = look(&mut pace, index, 1);
            assert_eq!(pace.pauses(), 0);
            index = look(&mut pace, index, 0);
            assert_eq!(pace.pauses(), 0);
        }
    }

    #[test]
    fn a_pause_grows_while_it_yields_larger_batches() {
        for start in [0, u64::MAX - 20] {
            let mut index = start;
            let mut pace = Pace::new(index);
            assert!(tried_after(&mut pace, &mut index, 2) <= 4);
            for pauses in [16, 32, 64, 64] {
                assert_eq!(pace.pauses(), pauses);
                index = look(&mut pace, index, 100);
            }
            index = look(&mut pace, index, 1000);
            assert_eq!(pace.pauses(), 64, "plenty: what brought it is kept");
            look(&mut pace, index, 0);
            assert_eq!(pace.pauses(), 0, "the other end has stopped");
        }
    }

    #[test]
    fn an_unprofitable_pause_is_tried_less_often() {
        let (mut index, mut pace) = (0, Pace::new(0));
        tried_after(&mut pace, &mut index, 1);
        for messages in [128, 256, 512, 1024, 2048, 4096, 8192, 8192] {
            index = look(&mut pace, index, 1);
            assert_eq!(pace.pauses(), 0);
            assert_eq!(tried_after(&mut pace, &mut index, 1), messages);
        }
    }

    #[test]
    fn a_quarter_full_small_ring_ends_pauses() {
        let pace = Pace::new(0);
        assert_eq!(pace.seen::<u64>(10, 15, 4).pauses(), 0);
    }

    #[test]
    fn a_pause_is_kept_for_large_messages() {
        let waiting = Pace::from(0, 64, 16);
        assert_eq!(waiting.seen::<u64>(10, CAPACITY - 1, 2).pauses(), 0);
        assert_eq!(waiting.seen::<[u64; 32]>(10, CAPACITY - 1, 2).pauses(), 32);
    }
}
