use ringmem::{Abi, LAYOUTS, SharedLayout, layout_set};

/// From Rust to C++.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Order {
    pub id: u64,
    pub price: f64,
    pub quantity: u64,
}

/// From C++ to Rust.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
pub struct Fill {
    pub id: u64,
    pub cost: f64,
}

pub const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order, Fill));
