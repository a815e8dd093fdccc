//! Lints, attributes and names that a user may have: nothing warns.

#![deny(warnings)]
#![forbid(dead_code, unsafe_code)]

/// A crate with another name, or one that exports it again.
pub mod facade {
    pub use ringmem_kernels as kernels;
}

pub mod structs {
    #[derive(Clone, Copy, ringmem_kernels::SharedLayout)]
    #[repr(C)]
    #[layout(message = 1, size = 16)]
    #[deprecated = "use Number"]
    pub struct Old {
        #[deprecated = "use second"]
        pub first: u64,
        #[layout(at = 8)]
        pub second: u64,
    }

    #[derive(Clone, Copy, ringmem_layouts::SharedLayout)]
    #[repr(C)]
    #[allow(deprecated)]
    pub struct Container {
        pub old: Old,
    }

    #[derive(Clone, Copy, ringmem_kernels::SharedLayout)]
    #[repr(C)]
    #[layout(message = 2, crate = super::facade::kernels::layouts)]
    pub struct Number {
        pub value: u64,
    }
}

pub mod names {
    #![no_implicit_prelude]

    use super::structs::Number;

    /// A tool of the compiler has this name.
    mod diagnostic {}

    #[derive(::core::clone::Clone, ::core::marker::Copy, ::ringmem_kernels::SharedLayout)]
    #[repr(C)]
    pub struct Here {
        pub value: u64,
    }

    const _: ::ringmem_layouts::LayoutDescriptor = <Here as ::ringmem_layouts::Layout>::DESCRIPTOR;

    super::facade::kernels::kernels! {
        /// A keyword.
        pub persistent fn r#move(now: &Number, then: &mut Number) {
            then.value = now.value;
        }

        #[cfg(any())]
        pub persistent fn absent(now: &Missing, then: &mut Missing) {
            then.value = now.missing;
        }

        /// Another keyword.
        pub flagged fn r#type(r#in: &mut u64, r#fn: &Number, r#for: &mut u32) {
            *r#in += r#fn.value;
            *r#for = *r#in as u32;
        }

        #[cfg(any())]
        #[cfg(any())]
        pub unsafe grid fn absent_too(words: Missing) = missing;

        /// A kernel that a newer one replaces.
        #[deprecated = "use r#move"]
        pub persistent fn old(state: &mut u64, now: &Number, then: &mut Number) {
            *state += now.value;
            then.value = *state;
        }

        /// Names of the expansion, and keywords.
        #[deprecated = "use r#move"]
        pub grid fn r#loop(at: ::ringmem_kernels::Index, r#count: &u32, host: &[Number], r#arguments: &mut u64, words: f32, r#enum: [u8; 3]) {
            *r#arguments = at.len() as u64 + host.len() as u64 + *count as u64 + words as u64 + r#enum[0] as u64;
        }

        #[cfg(any())]
        pub grid fn absent_three(missing: &mut Missing) {}

        #[cfg(all())]
        pub flagged fn present(now: &u32, then: &mut Number) {
            then.value = *now as u64;
        }
    }

    /// The image has the kernels that are compiled, in their order.
    const _: () = {
        ::core::assert!(IMAGE.host.len() == 5 && MOVE.name().len() == 4 && TYPE.name().len() == 4 && PRESENT.name().len() == 7);
        ::core::assert!(IMAGE.host[1].name.as_bytes()[0] == b't' && IMAGE.host[3].name.as_bytes()[0] == b'l' && IMAGE.host[4].name.as_bytes()[0] == b'p');
    };
}

fn main() {
    let mut then = structs::Number { value: 0 };
    names::r#move(&structs::Number { value: 2 }, &mut then);
    assert_eq!(then.value, 2);
}
