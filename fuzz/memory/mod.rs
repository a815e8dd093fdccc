//! Parts of inputs.
#![allow(dead_code, reason = "each target uses a part")]

use arbitrary::Arbitrary;
use ringmem_layouts::{HostWord, Word};

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Message {
    Byte,
    Word,
    Odd,
    Words,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Start {
    Near(u8),
    NearTheEnd(u8),
    Any(u64),
}

impl Start {
    pub fn index(self) -> u64 {
        match self {
            Self::Near(steps) => steps.into(),
            Self::NearTheEnd(steps) => u64::MAX - u64::from(steps),
            Self::Any(start) => start,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Number {
    Near(i8),
    Any(u64),
}

pub fn store(word: &HostWord, number: Number) {
    let value = match number {
        Number::Near(step) => Word::load(word).wrapping_add_signed(step.into()),
        Number::Any(value) => value,
    };
    Word::store(word, value);
}
