use std::fmt::{self, Display, Formatter, Write};

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

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

/// Stays in its cell, without markup.
fn cell(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        for character in text.chars() {
            match character {
                '|' | '\\' | '`' | '*' | '_' | '<' | '[' => write!(f, "\\{character}")?,
                '\0'..' ' => f.write_char(' ')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    })
}
