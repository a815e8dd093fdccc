use std::thread;
use std::time::Duration;

use crate::block::Span;
use crate::code::{Answer, Code};
use crate::driver::Driver;

pub const FLUSH: u32 = 1 << 30;
const NAME: &str = "a wait for a word";

#[derive(Clone, Copy)]
pub enum Condition {
    Reaches(u64),
    Equals(u64),
    HasAnyOf(u64),
    LacksAnyOf(u64),
}

impl Condition {
    pub fn new(flags: u32, value: u64) -> Answer<Self> {
        Ok(match flags & !FLUSH {
            0 => Self::Reaches(value),
            1 => Self::Equals(value),
            2 => Self::HasAnyOf(value),
            3 => Self::LacksAnyOf(value),
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    pub const fn holds(self, word: u64) -> bool {
        match self {
            Self::Reaches(value) => word.wrapping_sub(value).cast_signed() >= 0,
            Self::Equals(value) => word == value,
            Self::HasAnyOf(value) => word & value != 0,
            Self::LacksAnyOf(value) => !(word | value) != 0,
        }
    }

    pub fn wait(self, driver: &Driver, device: u32, of: &Span) {
        driver.engine.runs(NAME);
        let mut times = 0_u32;
        while !self.holds(of.read()) && !driver.devices[device as usize].context.is_broken() {
            times = times.saturating_add(1);
            if times < 1000 { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
        }
        driver.engine.left(NAME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_follows_its_flag() {
        let holds = |flags, value, word| Condition::new(flags, value).is_ok_and(|condition| condition.holds(word));
        assert_eq!(
            [holds(0, 5, 4), holds(0, 5, 5), holds(0, 5, 6), holds(0, u64::MAX, 1), holds(0, 1, u64::MAX)],
            [false, true, true, true, false]
        );
        assert_eq!([holds(1, 5, 5), holds(1, 5, 6), holds(2, 6, 2), holds(2, 6, 1)], [true, false, true, false]);
        assert_eq!([holds(3, 1, !1), holds(3, 1, 2), holds(FLUSH | 1, 5, 5), holds(4, 0, 0)], [false, true, true, false]);
    }
}
