use ringmem_layouts::{SharedLayout, layout_table};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Described {
    pub bytes: [u8; 64],
}

layout_table! {
    Described: size 64, align 1;
    0  bytes: [u8; 64], "host";
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
pub struct Derived {
    pub bytes: [u8; 64],
}

fn main() {}
