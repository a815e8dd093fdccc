//! Parts of inputs.
#![allow(dead_code, reason = "each target uses a part")]

use arbitrary::Arbitrary;
use ringmem_layouts::{HostWord, RingLayout, RingMessage, Word};

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

/// Returns the message with this index of a lossy ring or a mailbox, if its slot has it.
pub fn lossy_message<T: RingMessage>(words: &[HostWord], layout: &RingLayout, capacity: usize, index: u64) -> Option<T> {
    let size = 1 + size_of::<T>().div_ceil(8);
    let slot = &words[layout.slots_offset() as usize / 8 + (index % capacity as u64) as usize * size..][..size];
    let mut value = T::zeroed();
    for (bytes, word) in value.as_bytes_mut().chunks_mut(8).zip(&slot[1..]) {
        bytes.copy_from_slice(&Word::load(word).to_ne_bytes()[..bytes.len()]);
    }
    (Word::load(&slot[0]) == index.wrapping_add(1)).then_some(value)
}
