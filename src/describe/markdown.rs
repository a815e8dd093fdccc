use std::fmt::{self, Formatter};

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

use crate::escape::markdown as cell;

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    for (place, layout) in abi.layouts.iter().enumerate() {
        f.write_str(if place == 0 { "" } else { "\n" })?;
        section(layout, f)?;
    }
    Ok(())
}

fn section(LayoutDescriptor { name, size, align, fields, hash, .. }: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "## {name}\n\n{size} bytes, aligned to {align}, hash `{hash:016x}`.\n")?;
    f.write_str("| offset | bytes | field | type | writer |\n|---:|---:|---|---|---|\n")?;
    for Field { name, offset, size, layout, writer, .. } in *fields {
        let kind = fmt::from_fn(|f| super::spelled(layout, f));
        writeln!(f, "| {offset} | {size} | `{name}` | `{kind}` | {} |", cell(writer))?;
    }
    Ok(())
}
