//! [`Pace`]: when to poll an index by a copy.

use core::time::Duration;
use std::time::Instant;

pub(super) struct Pace {
    least: Duration,
    now: Duration,
    begun: Option<Instant>,
    seen: Option<u64>,
}

impl Pace {
    const SLOWEST: u32 = 64;

    pub const fn new(least: Duration) -> Self {
        Self { least, now: least, begun: None, seen: None }
    }

    pub fn begin(&mut self, at: Instant) -> bool {
        let due = self.begun.is_none_or(|begun| at.saturating_duration_since(begun) >= self.now);
        if due {
            self.begun = Some(at);
        }
        due
    }

    pub fn polled(&mut self, index: u64) {
        if self.seen.replace(index) == Some(index) {
            self.now = (self.now * 2).min(self.least * Self::SLOWEST);
        } else {
            self.hurry();
        }
    }

    pub const fn hurry(&mut self) {
        self.now = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_micros(50);

    fn interval(pace: &mut Pace, at: Instant) -> Duration {
        let mut waited = Duration::ZERO;
        while !pace.begin(at + waited) {
            waited += LEAST;
        }
        waited
    }

    #[test]
    fn the_interval_doubles_while_idle_and_resets_on_a_change() {
        let (mut pace, mut at) = (Pace::new(LEAST), Instant::now());
        assert!(pace.begin(at) && !pace.begin(at), "the first is due, and the next is not");
        pace.polled(7);
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            let waited = interval(&mut pace, at);
            assert_eq!(waited, LEAST * times);
            at += waited;
            pace.polled(7);
        }
        assert!(!pace.begin(at + LEAST * 20));
        pace.hurry();
        assert!(!pace.begin(at + LEAST / 2) && pace.begin(at + LEAST * 20));
        at += LEAST * 20;
        pace.polled(7);
        assert_eq!(interval(&mut pace, at), LEAST * 2);
        at += LEAST * 2;
        pace.polled(8);
        assert_eq!(interval(&mut pace, at), LEAST, "another index is something");
    }
}
