//! Crates with the names of ringmem's are others: `kernels!` means the crate that it is from, in safe code.

#![deny(warnings)]
#![forbid(unsafe_code)]

extern crate core as ringmem_kernels;
extern crate core as ringmem_layouts;
pub extern crate ringmem_kernels as kernels_of_another_name;

/// A crate that exports it again.
mod facade {
    pub use kernels_of_another_name as kernels;
}

#[derive(Clone, Copy, facade::kernels::SharedLayout)]
#[repr(C)]
#[layout(message = 1, crate = facade::kernels::layouts)]
pub struct Number {
    value: u64,
}

facade::kernels::kernels! {
    layouts: Number;

    pub persistent fn double(now: &Number, then: &mut Number) {
        then.value = 2 * now.value;
    }

    pub grid fn add(at: facade::kernels::Index, x: &[u32], y: &mut u32) {
        *y += x[at.get()];
    }
}

/// Types that a macro passes on are in invisible groups.
macro_rules! copy {
    ($at:ty, $x:ty, $y:ty) => {
        crate::facade::kernels::kernels! {
            pub grid fn copy(at: $at, x: $x, y: $y) {
                *y = x[at.get()];
            }
        }
    };
}

mod passed {
    copy!(crate::facade::kernels::Index, &[u32], &mut u32);
}

fn main() {
    let mut copied = 0;
    passed::copy(facade::kernels::Index::new(1, 2), &[1, 2], &mut copied);
    assert_eq!((copied, passed::COPY.name()), (2, "copy"));
    let (mut then, mut y) = (Number { value: 0 }, 1);
    double(&Number { value: 2 }, &mut then);
    add(facade::kernels::Index::new(0, 1), &[2], &mut y);
    assert_eq!((then.value, y, DOUBLE.name(), ADD.name()), (4, 3, "double", "add"));
}
