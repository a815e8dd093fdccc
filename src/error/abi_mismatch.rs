use core::fmt;

use ringmem_layouts::{Abi, Field, LayoutDescriptor};

use crate::describe::with_nested;

pub(super) struct Difference<'a> {
    pub expected: &'a Abi,
    pub got: &'a Abi,
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, got } = self;
        write!(f, "the image was compiled with other layouts: ABI {:#018x} expected, {:#018x} got", expected.hash, got.hash)?;
        let [expected, got] = [expected, got].map(|abi| with_nested(abi.layouts));
        let mut shown = false;
        for layout in &expected {
            let other = named(&got, layout.name);
            if other.is_none_or(|other| other.hash != layout.hash) {
                shown = true;
                write!(f, "\n`{}`", layout.name)?;
                table(f, Some(layout), other)?;
            }
        }
        for layout in got.iter().filter(|layout| named(&expected, layout.name).is_none()) {
            shown = true;
            write!(f, "\n`{}`", layout.name)?;
            table(f, None, Some(layout))?;
        }
        if !shown {
            write!(f, "\nthe tables are alike, so one of the hashes is not that of its tables")?;
        }
        Ok(())
    }
}

fn named<'a>(layouts: &[&'a LayoutDescriptor], name: &str) -> Option<&'a LayoutDescriptor> {
    layouts.iter().find(|layout| layout.name == name).copied()
}

fn table(f: &mut fmt::Formatter<'_>, expected: Option<&LayoutDescriptor>, got: Option<&LayoutDescriptor>) -> fmt::Result {
    if expected.map(|layout| (layout.size, layout.align)) != got.map(|layout| (layout.size, layout.align)) {
        for (side, layout) in [("expected", expected), ("got", got)] {
            match layout {
                Some(layout) => write!(f, "\n  {side:<8}  size {}, align {}", layout.size, layout.align)?,
                None => write!(f, "\n  {side:<8}  nothing of that name")?,
            }
        }
    }
    let fields = |layout: Option<&LayoutDescriptor>| layout.map_or(&[][..], |layout| layout.fields);
    let (expected, got) = (fields(expected), fields(got));
    for line in 0..expected.len().max(got.len()) {
        let (expected, got) = (expected.get(line), got.get(line));
        // A field's writer is documentation, not ABI.
        if expected.map(abi_of) != got.map(abi_of) {
            for (side, field) in [("expected", expected), ("got", got)] {
                if let Some(field) = field {
                    let Field { name, offset, size, type_name, type_hash, .. } = field;
                    write!(f, "\n  {side:<8} {offset:>5}  {name}: {type_name}, {size} bytes, type {type_hash:#018x}")?;
                }
            }
        }
    }
    Ok(())
}

fn abi_of(field: &Field) -> (&'static str, usize, u64) {
    (field.name, field.offset, field.type_hash)
}
