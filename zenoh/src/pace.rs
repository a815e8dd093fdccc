use std::time::{Duration, Instant};

const YIELDING: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct Pace {
    idle: Option<Instant>,
    sleep: Duration,
}

impl Pace {
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns how long to sleep; zero means to yield.
    pub fn next(&mut self) -> Duration {
        if self.idle.get_or_insert_with(Instant::now).elapsed() >= YIELDING {
            self.sleep = (2 * self.sleep).clamp(SHORTEST, LONGEST);
        }
        self.sleep
    }
}
