//! What the host and the kernels both see: compiled for both, declared once.
#![no_std]

use ringmem_layouts::{Abi, LAYOUTS, RingMessage, layout_set, layout_table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Metres, or metres per second.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Vector {
    pub x: f32,
    pub y: f32,
    pub z: f32,
}

layout_table! {
    Vector: size 12, align 4;
    0 x: f32, "the sender";
    4 y: f32, "the sender";
    8 z: f32, "the sender";
}

/// A message: to the kernel as it is, back as it will be a second later.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Particle {
    pub id: u64,
    pub mass: f32,
    pub seconds_left: u32,
    pub position: Vector,
    pub velocity: Vector,
}

layout_table! {
    Particle: size 40, align 8;
    0  id: u64, "the sender";
    8  mass: f32, "the sender";
    12 seconds_left: u32, "the sender";
    16 position: Vector, "the sender";
    28 velocity: Vector, "the sender";
}

impl RingMessage for Particle {
    const KIND: u64 = 1;
}

/// ringmem's layouts and ours: the host refuses kernels that were compiled with others.
pub const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Vector, Particle));
