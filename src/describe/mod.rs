//! Layouts as tables, JSON, C headers and SVG byte maps.
//!
//! Output comes from descriptors that the compiler has checked; the same set of layouts gives the same text. Names, and the texts that say who writes
//! a field, are escaped.
//!
//! ```
//! use ringmem::{Abi, LAYOUTS, describe, layout_set, layout_table};
//!
//! #[repr(C)]
//! struct Order { id: u64, price: f32, quantity: u32 }
//! layout_table! {
//!     Order: size 16, align 8;
//!     0  id: u64, "the trader";
//!     8  price: f32, "the trader";
//!     12 quantity: u32, "the trader";
//! }
//!
//! const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order));
//! let header = describe::c(&ABI).to_string();
//! assert!(header.contains("    float price; /* 8: the trader */"));
//! assert!(header.contains("static_assert(offsetof(Order, price) == 8,"));
//! ```
//!
//! `Abi { layouts: std::slice::from_ref(layout), hash: abi.hash }` is one struct with the hash of its set.

mod c;
pub(crate) mod json;
mod svg;
mod table;

use std::fmt::{self, Display, Formatter};

use ringmem_layouts::{Abi, LayoutDescriptor, Shape, set_hash};

/// Prints each field's offset, size, name, type and writer, for a terminal.
pub fn table(abi: &Abi) -> impl Display {
    fmt::from_fn(move |f| table::write(abi, f))
}

/// Prints one line: `abi`, and `layouts` with `name`, `size`, `align`, `hash` and `fields`, these with `name`, `offset`, `size`, `type` and
/// `writer`. Hashes are 16 hexadecimal digits: JSON numbers have 53 bits.
pub fn json(abi: &Abi) -> impl Display {
    fmt::from_fn(move |f| json::write(abi, f))
}

/// Prints a header for C11 and C++11 that asserts sizes, alignments and offsets. Nested structs come first.
///
/// `RINGMEM_RING_OF_` and a struct's name is `ConstantLine.abi` in a ring of such messages, for a C++ process at the other end to check
/// (`examples/08_cpp`). A field without bytes is a comment: C has none. An integer without a C type is an array of bytes.
///
/// A name with a meaning in C, C++ or a standard header, such as `int`, `NULL`, `linux` or `size_t`, gets an underscore at its end, a reserved one
/// such as `__LINE__` the prefix `f_`. Different fields keep different names: `int_` becomes `int__`.
pub fn c(abi: &Abi) -> impl Display {
    fmt::from_fn(move |f| c::write(abi, f))
}

/// Draws each struct's bytes, eight per row, coloured by writer.
pub fn svg(abi: &Abi) -> impl Display {
    fmt::from_fn(move |f| svg::write(abi, f))
}

fn extent(abi: &Abi) -> &'static str {
    if abi.hash == set_hash(abi.layouts) { "all of them together, in order of name" } else { "the full set that this struct belongs to" }
}

/// Resolves aliases and generics: `[word; 3]`.
fn spelled(layout: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
    match layout.shape {
        Shape::Number | Shape::Struct => f.write_str(layout.name),
        Shape::Array { element, length } => {
            f.write_str("[")?;
            spelled(element, f)?;
            write!(f, "; {length}]")
        }
    }
}

pub(crate) fn with_nested(layouts: &[LayoutDescriptor]) -> Vec<&LayoutDescriptor> {
    fn add<'a>(layout: &'a LayoutDescriptor, known: &mut Vec<&'a LayoutDescriptor>) {
        if !known.iter().any(|other| (other.name, other.hash) == (layout.name, layout.hash)) {
            nested(layout, known);
            known.push(layout);
        }
    }
    fn nested<'a>(layout: &'a LayoutDescriptor, known: &mut Vec<&'a LayoutDescriptor>) {
        let parts: Vec<&LayoutDescriptor> = match layout.shape {
            Shape::Number => vec![],
            Shape::Array { element, .. } => vec![element],
            Shape::Struct => layout.fields.iter().map(|field| field.layout).collect(),
        };
        for part in parts {
            if part.shape == Shape::Struct { add(part, known) } else { nested(part, known) }
        }
    }
    let mut known = Vec::new();
    for layout in layouts {
        add(layout, &mut known);
    }
    known
}
