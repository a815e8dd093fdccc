use crate::give_up;

pub const SIZES: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

trait Number: Copy {
    fn reduced(self, other: Self, operation: i32) -> Self;
}

macro_rules! numbers {
    ($add:ident, $multiply:ident: $($number:ty),+) => {$(
        impl Number for $number {
            fn reduced(self, other: Self, operation: i32) -> Self {
                match operation {
                    0 => self.$add(other),
                    1 => self.$multiply(other),
                    2 => self.max(other),
                    _ => self.min(other),
                }
            }
        }
    )+};
}
use std::ops::{Add, Mul};
numbers!(wrapping_add, wrapping_mul: i8, u8, i32, u32, i64, u64);
numbers!(add, mul: f32, f64);

/// Of a normal number, or 0.
fn half_to_single(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = if bits & 0x7C00 == 0 { 0 } else { ((bits & 0x7FFF) << 13) + (112 << 23) };
    f32::from_bits((bits & 0x8000) << 16 | magnitude)
}

/// Truncates; of a normal number, or 0.
fn single_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = (bits & 0x7FFF_FFFF).saturating_sub(112 << 23) >> 13;
    ((bits >> 16 & 0x8000) | magnitude) as u16
}

fn each<const N: usize>(into: &mut [u8], with: &[u8], reduced: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (into, with) in into.as_chunks_mut::<N>().0.iter_mut().zip(with.as_chunks::<N>().0) {
        *into = reduced(*into, *with);
    }
}

/// `into` and `with` have whole elements of a type with a size above.
pub fn reduce(element: i32, operation: i32, into: &mut [u8], with: &[u8]) {
    macro_rules! numbers {
        ($number:ty) => {
            each(into, with, |a, b| <$number>::from_le_bytes(a).reduced(<$number>::from_le_bytes(b), operation).to_le_bytes())
        };
    }
    let through_single = |to: fn(u16) -> f32, from: fn(f32) -> u16| {
        move |a, b| from(to(u16::from_le_bytes(a)).reduced(to(u16::from_le_bytes(b)), operation)).to_le_bytes()
    };
    match element {
        0 => numbers!(i8),
        1 => numbers!(u8),
        2 => numbers!(i32),
        3 => numbers!(u32),
        4 => numbers!(i64),
        5 => numbers!(u64),
        6 => each(into, with, through_single(half_to_single, single_to_half)),
        7 => numbers!(f32),
        8 => numbers!(f64),
        9 => each(into, with, through_single(|bits| f32::from_bits(u32::from(bits) << 16), |value| (value.to_bits() >> 16) as u16)),
        _ => give_up("an element type that was not checked"),
    }
}
