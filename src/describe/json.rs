use std::fmt::{self, Formatter};

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

use crate::escape::json as quoted;

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, r#"{{"abi":"{:016x}","layouts":"#, abi.hash)?;
    list(f, abi.layouts, layout)?;
    f.write_str("}\n")
}

fn layout(LayoutDescriptor { name, size, align, fields, hash, .. }: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, r#"{{"name":{},"size":{size},"align":{align},"hash":"{hash:016x}","fields":"#, quoted(name))?;
    list(f, *fields, field)?;
    f.write_str("}")
}

fn field(Field { name, offset, size, type_name, writer, .. }: &Field, f: &mut Formatter<'_>) -> fmt::Result {
    let (name, kind, writer) = (quoted(name), quoted(type_name), quoted(writer));
    write!(f, r#"{{"name":{name},"offset":{offset},"size":{size},"type":{kind},"writer":{writer}}}"#)
}

pub(crate) fn list<T>(
    f: &mut Formatter<'_>,
    values: impl IntoIterator<Item = T>,
    one: impl Fn(T, &mut Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (place, value) in values.into_iter().enumerate() {
        f.write_str(if place == 0 { "" } else { "," })?;
        one(value, f)?;
    }
    f.write_str("]")
}
