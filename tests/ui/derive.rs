use ringmem_layouts::{LayoutDescriptor, SharedLayout, layout_set};

const _: &[LayoutDescriptor] = layout_set!(; Order);

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(size = 8)]
struct Inner {
    left: u32,
    right: u32,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(8))]
#[layout(message = 42, size = 32, align = 8, writer = "host")]
struct Order {
    id: u64,
    #[layout(at = 8)]
    price: f32,
    quantity: u32,
    inner: Inner,
    #[layout(writer = "device")]
    stamp: u64,
}

#[derive(Clone, Copy, ringmem::SharedLayout)]
#[repr(C)]
struct ByTheOtherCrate {
    orders: [Order; 2],
}

fn main() {}
