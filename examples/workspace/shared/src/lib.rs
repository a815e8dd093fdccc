//! What the host and the kernels both see: compiled for both, declared once.
#![no_std]

use ringmem_layouts::{Abi, LAYOUTS, SharedLayout, layout_set};

/// Metres, or metres per second.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(size = 12, writer = "the sender")]
pub struct Vector {
    pub x: f32,
    pub y: f32,
    pub z: f32,
}

/// A message: to the kernel as it is, back as it will be a second later.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C, align(8))]
#[layout(size = 40, message = 1, writer = "the sender")]
pub struct Particle {
    pub id: u64,
    pub mass: f32,
    pub seconds_left: u32,
    pub position: Vector,
    pub velocity: Vector,
}

/// ringmem's layouts and ours: the host refuses kernels that were compiled with others.
pub const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Vector, Particle));
