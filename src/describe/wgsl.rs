use std::fmt::{self, Display, Formatter, Write};

use ringmem_layouts::{Abi, Field, LayoutDescriptor, Shape};

const HEAD: &str = "\
// Structs that a host and a device share, made from their Rust definitions by ringmem. Changes belong there.
//
// For the storage address space. A number of 64 bits is a vec2<u32>, low word first. Numbers of less than 32 bits are in words, the first byte
// lowest. WGSL has no 64-bit atomic access: a word that the other side writes during a dispatch can be torn.
// Each comment is an offset, the field's type in Rust, where `word` is a u64, and the field's writer.
";

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "{HEAD}\n// The hash of {}.", super::extent(abi))?;
    writeln!(f, "const RINGMEM_ABI_HASH = vec2<u32>({:#010x}u, {:#010x}u);", abi.hash as u32, (abi.hash >> 32) as u32)?;
    let structs: Vec<_> = super::with_nested(abi.layouts).into_iter().filter(|layout| layout.shape == Shape::Struct).collect();
    for layout in &structs {
        Module { structs: &structs }.declare(layout, f)?;
    }
    Ok(())
}

/// WGSL declares sizes and alignments in multiples of 4.
const fn fits(layout: &LayoutDescriptor) -> bool {
    layout.size > 0 && layout.size.is_multiple_of(4) && layout.align >= 4
}

struct Module<'a> {
    structs: &'a [&'a LayoutDescriptor],
}

impl Module<'_> {
    fn declare(&self, layout: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
        let LayoutDescriptor { name: title, size, align, fields, hash, .. } = *layout;
        writeln!(f, "\n// {title}: {size} bytes, aligned to {align}, hash {hash:016x}.")?;
        if !fits(layout) {
            return writeln!(f, "// WGSL has no such struct: sizes and alignments there are multiples of 4.");
        }
        writeln!(f, "struct {} {{", self.name(layout))?;
        // A struct has its members' alignment; more must be declared.
        let is_natural = align == 4 || fields.iter().any(|field| field.layout.align == align && self.member(layout, field).is_some());
        let mut align_first = if is_natural { String::new() } else { format!("@align({align}) ") };
        let mut rest = fields.iter().filter(|field| field.size > 0).peekable();
        while let Some(field) = rest.next() {
            if let Some(spelled) = self.member(layout, field) {
                let name = identifier(field.name);
                writeln!(f, "    {}{name}: {spelled}, // {}", std::mem::take(&mut align_first), comment(field))?;
                continue;
            }
            let (begin, mut end) = (field.offset, field.offset + field.size);
            let mut name = identifier(field.name);
            writeln!(f, "    // {}, {}", identifier(field.name), comment(field))?;
            while let Some(next) = rest.next_if(|next| self.member(layout, next).is_none()) {
                name = format!("bytes_{begin}");
                writeln!(f, "    // {}, {}", identifier(next.name), comment(next))?;
                end = next.offset + next.size;
            }
            while fields.iter().any(|other| other.name == name && other.offset != begin) {
                name.push('_');
            }
            let words = (end - begin).div_ceil(4);
            writeln!(f, "    {}{name}: array<u32, {words}>,", std::mem::take(&mut align_first))?;
        }
        writeln!(f, "}}")
    }

    fn member(&self, layout: &LayoutDescriptor, field: &Field) -> Option<String> {
        let (spelled, align) = self.spelled(field.layout)?;
        (field.offset.is_multiple_of(align) && align <= layout.align).then_some(spelled)
    }

    fn spelled(&self, layout: &LayoutDescriptor) -> Option<(String, usize)> {
        match layout.shape {
            Shape::Number => number(layout.name).map(|(name, align)| (name.to_owned(), align)),
            Shape::Array { length: 0, .. } => None,
            Shape::Array { element, length } => {
                let (inner, align) = self.spelled(element)?;
                element.size.is_multiple_of(align).then(|| (format!("array<{inner}, {length}>"), align))
            }
            Shape::Struct => fits(layout).then(|| (self.name(layout), layout.align)),
        }
    }

    fn name(&self, layout: &LayoutDescriptor) -> String {
        let name = identifier(layout.name);
        let alone = !self.structs.iter().any(|other| other.name == layout.name && other.hash != layout.hash);
        if alone { name } else { format!("{name}_{:016x}", layout.hash) }
    }
}

fn number(name: &str) -> Option<(&'static str, usize)> {
    Some(match name {
        "u32" => ("u32", 4),
        "i32" => ("i32", 4),
        "f32" => ("f32", 4),
        "word" | "i64" | "f64" => ("vec2<u32>", 8),
        _ => return None,
    })
}

/// Reserved words and the types used here get an underscore; a leading `__`, which WGSL reserves, a letter.
fn identifier(name: &str) -> String {
    let name = name.strip_prefix("r#").unwrap_or(name);
    let is_taken = RESERVED.split_ascii_whitespace().any(|word| word == name);
    match name {
        _ if name.starts_with("__") => format!("f{name}"),
        "_" => "f_".to_owned(),
        _ if is_taken => format!("{name}_"),
        _ => name.to_owned(),
    }
}

/// Types used here, keywords and reserved words. Source: WGSL, W3C Candidate Recommendation Draft of 2025-08-09, 15.1 and 15.2.
const RESERVED: &str = "\
    array f32 i32 u32 vec2 RINGMEM_ABI_HASH \
    alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let loop override requires \
    return struct switch true var while \
    NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become cast catch class co_await co_return \
    co_yield coherent column_major common compile compile_fragment concept const_cast consteval constexpr constinit crate debugger decltype \
    delete demote demote_to_helper do dynamic_cast enum explicit export extends extern external fallthrough filter final finally friend from \
    fxgroup get goto groupshared highp impl implements import inline instanceof interface layout lowp macro macro_rules match mediump meta mod \
    module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent noperspective null nullptr of operator \
    package packoffset partition pass patch pixelfragment precise precision premerge priv protected pub public readonly ref regardless register \
    reinterpret_cast require resource restrict self set shared sizeof smooth snorm static static_assert static_cast std subroutine super target \
    template this thread_local throw trait try type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual \
    volatile wgsl where with writeonly yield";

/// Prints one line: any line break ends a comment in WGSL.
fn comment(field: &Field) -> impl Display {
    fmt::from_fn(move |f| {
        write!(f, "{}: ", field.offset)?;
        super::spelled(field.layout, f)?;
        if !field.writer.is_empty() {
            f.write_str(", ")?;
        }
        for character in field.writer.chars() {
            let breaks = character.is_control() || matches!(character, '\u{2028}' | '\u{2029}');
            f.write_char(if breaks { ' ' } else { character })?;
        }
        Ok(())
    })
}
