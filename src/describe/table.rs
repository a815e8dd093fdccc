use std::fmt::{self, Formatter};

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

use crate::escape::terminal;

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    for layout in abi.layouts {
        block(layout, f)?;
    }
    writeln!(f, "ABI {:016x}: {}", abi.hash, super::extent(abi))
}

fn block(layout: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
    let LayoutDescriptor { name, size, align, fields, hash, .. } = *layout;
    writeln!(f, "{}: {size} bytes, aligned to {align}, hash {hash:016x}", terminal(name))?;
    let texts: Vec<[String; 2]> = fields.iter().map(|field| [field.name, field.type_name].map(|text| terminal(text).to_string())).collect();
    let [name, kind] = [0, 1].map(|column| texts.iter().map(|texts| texts[column].chars().count()).max().unwrap_or(0));
    for (Field { offset, size, writer, .. }, [name_text, kind_text]) in fields.iter().zip(&texts) {
        writeln!(f, "  {offset:>6} {size:>6}  {name_text:name$}  {kind_text:kind$}  {}", terminal(writer))?;
    }
    writeln!(f)
}
