use std::fmt::{self, Formatter};

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    for layout in abi.layouts {
        block(layout, f)?;
    }
    writeln!(f, "ABI {:016x}: {}", abi.hash, super::extent(abi))
}

fn block(layout: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}: {} bytes, aligned to {}, hash {:016x}", layout.name, layout.size, layout.align, layout.hash)?;
    let width = |column: fn(&Field) -> &str| layout.fields.iter().map(|field| column(field).chars().count()).max().unwrap_or(0);
    let (name, kind) = (width(|field| field.name), width(|field| field.type_name));
    for field in layout.fields {
        writeln!(f, "  {:>6} {:>6}  {:name$}  {:kind$}  {}", field.offset, field.size, field.name, field.type_name, field.writer)?;
    }
    writeln!(f)
}
