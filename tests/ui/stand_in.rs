use ringmem_layouts::{DeviceBytes, SharedLayout};

/// A module in the place of the crate, whose checks and numbers say what its author likes.
mod stand_in {
    pub use ringmem_layouts::{__shared_layout, Field, Layout, LayoutDescriptor, RingMessage};

    pub mod __private {
        pub mod core {
            pub mod mem {
                pub use core::mem::offset_of;
                pub const fn size_of<T>() -> usize {
                    ::core::mem::size_of::<T>()
                }
            }
            pub use core::{option, stringify};
        }
        pub const fn no_padding(_: &str, _: &str, _: usize, _: usize) {}
        pub const fn number_of_message(_: &str, _: u64) {}
        pub const fn offset(_: &str, _: &str, _: usize, _: usize) {}
        pub const fn size_and_align<T>(_: &str, _: Option<usize>, _: Option<usize>) {}
    }
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(crate = stand_in, message = 1)]
struct Inner {
    flag: u32,
    value: u32,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
struct Outer {
    inner: [Inner; 2],
}

const _: () = <Outer as DeviceBytes>::CHECKED;

fn main() {}
