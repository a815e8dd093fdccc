#![forbid(dead_code)]

use ringmem_layouts::layout_table;

/// Names of the prelude and of macros, which the user may take.
#[allow(non_camel_case_types)]
mod taken {
    pub struct Some;
    pub struct size_of;
}
use taken::{Some, size_of};

#[allow(unused_macros)]
macro_rules! stringify {
    ($($anything:tt)*) => {
        compile_error!("the user's macro")
    };
}
#[allow(unused_macros)]
macro_rules! offset_of {
    ($($anything:tt)*) => {
        compile_error!("the user's macro")
    };
}

#[repr(C)]
struct Inner {
    left: u32,
    right: u32,
}
layout_table! {
    Inner: size 8, align 4;
    0 left: u32, "host";
    4 right: u32, "host";
}

#[repr(C)]
struct Other {
    left: u32,
    right: f32,
}
layout_table! {
    Other: size 8, align 4;
    0 left: u32, "host";
    4 right: f32, "host";
}

#[repr(C, align(8))]
struct Order {
    id: u64,
    price: f32,
    quantity: u32,
    inner: Inner,
    stamp: u64,
}
layout_table! {
    Order: size 32, align 8;
    0  id: u64, "host";
    8  price: f32, "host";
    12 quantity: u32, "host";
    16 inner: Inner, "host";
    24 stamp: u64, "host";
}

fn main() {
    let _ = (Some, size_of);
}
