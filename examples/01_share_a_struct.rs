//! One struct, declared once, for host and device; and what its table knows about it.
//!
//! `cargo run --example 01_share_a_struct`

use ringmem::{Layout, RingLayout, RingMessage, layout_table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
struct Order {
    id: u64,
    price: f32,
    quantity: u32,
}

// Change an offset, a type or the struct above: it no longer compiles, on no target.
layout_table! {
    Order: size 16, align 16;
    0  id: u64, "the trader";
    8  price: f32, "the trader";
    12 quantity: u32, "the trader";
}

impl RingMessage for Order {
    const KIND: u64 = 42;
}

// Sizes are known before there is memory.
const RING: RingLayout = match RingLayout::of::<Order>(1024) {
    Ok(layout) => layout,
    Err(_) => panic!("1024 is a power of two"),
};

fn main() {
    let order = Order { id: 7, price: 9.5, quantity: 3 };
    println!("as bytes: {:02x?}", order.as_bytes());
    let layout = <Order as Layout>::DESCRIPTOR;
    for field in layout.fields {
        println!("{:>3} {:<8} {} ({} bytes), written by {}", field.offset, field.name, field.type_name, field.size, field.writer);
    }
    println!("both sides agree when both say {:016x}", layout.hash);
    println!("a ring of 1024 orders takes {} bytes", RING.size());
}
