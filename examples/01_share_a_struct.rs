//! A struct defined once for host and device, and its layout.
//!
//! `cargo run --example 01_share_a_struct`

use ringmem::{DeviceBytes, Layout, RingLayout, SharedLayout};

// A moved field, padding, or a type that devices cannot share is a compile error at that field.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(16))]
#[layout(message = 42, size = 16, writer = "the trader")]
struct Order {
    id: u64,
    price: f32,
    #[layout(at = 12)]
    quantity: u32,
}

// The size of a ring is a constant.
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
