//! Alignment above the fields' is declared at the first member, below it by `#pragma pack`.

use std::fmt::{self, Display, Formatter, Write};

use ringmem_layouts::{Abi, AbiHash, Field, Layout, LayoutDescriptor, RingHeader, Shape};

const HEAD: &str = "\
/* Structs that a host and a device share, made from their Rust definitions by ringmem. Changes belong there.
 *
 * What the other side may write meanwhile is read and written by 64-bit atomic operations only. Each field's comment is its offset and who
 * writes it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <assert.h>
#include <stdalign.h>
#endif
";

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "{HEAD}\n/* The hash of {}: a host loads no image that carries another. */", super::extent(abi))?;
    writeln!(f, "#define RINGMEM_ABI_HASH UINT64_C({:#018x})", abi.hash)?;
    // An empty struct has a byte in C++.
    let structs: Vec<_> =
        super::with_nested(abi.layouts).into_iter().filter(|layout| layout.shape == Shape::Struct && layout.size > 0).collect();
    for layout in &structs {
        Header { structs: &structs }.declare(layout, f)?;
    }
    Ok(())
}

struct Header<'a> {
    structs: &'a [&'a LayoutDescriptor],
}

impl Header<'_> {
    fn declare(&self, layout: &LayoutDescriptor, f: &mut Formatter<'_>) -> fmt::Result {
        let LayoutDescriptor { name: title, size, align, fields, hash, .. } = *layout;
        let name = self.name(layout);
        // Undeclared fields align nothing.
        let natural = fields.iter().filter(|field| field.size > 0).map(|field| field.layout.align).max().unwrap_or(1);
        writeln!(f, "\n/* {title}: {size} bytes, aligned to {align}, hash {hash:016x}. */")?;
        if align < natural {
            writeln!(f, "#pragma pack(push, {align})")?;
        }
        writeln!(f, "typedef struct {name} {{")?;
        let mut first = true;
        for field in fields {
            let comment = comment(field);
            if field.size == 0 {
                writeln!(f, "    /* {} has no bytes. {comment} */", field.name)?;
                continue;
            }
            f.write_str("    ")?;
            if first && align > natural {
                write!(f, "alignas({align}) ")?;
            }
            first = false;
            self.member(field, f)?;
            writeln!(f, "; /* {comment} */")?;
        }
        writeln!(f, "}} {name};")?;
        if align < natural {
            writeln!(f, "#pragma pack(pop)")?;
        }
        writeln!(f, r#"static_assert(sizeof({name}) == {size}, "{name} is not {size} bytes in size");"#)?;
        writeln!(f, r#"static_assert(alignof({name}) == {align}, "{name} is not aligned to {align} bytes");"#)?;
        writeln!(
            f,
            "#define RINGMEM_RING_OF_{name} UINT64_C({:#018x}) /* ConstantLine.abi of a ring of these messages */",
            ring_abi(hash)
        )?;
        for Field { name: field, offset, .. } in fields.iter().filter(|field| field.size > 0) {
            let field = identifier(field);
            writeln!(f, r#"static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field} is not at offset {offset}");"#)?;
        }
        Ok(())
    }

    /// `uint32_t tables[32][256]`.
    fn member(&self, field: &Field, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut lengths, mut inner) = (Vec::new(), field.layout);
        while let Shape::Array { element, length } = inner.shape {
            lengths.push(length);
            inner = element;
        }
        match (inner.shape, number(inner.name)) {
            (Shape::Number, Some(name)) => f.write_str(name)?,
            (Shape::Number, None) => {
                write!(f, "alignas({}) unsigned char", inner.align)?;
                lengths.push(inner.size);
            }
            _ => f.write_str(&self.name(inner))?,
        }
        write!(f, " {}", identifier(field.name))?;
        lengths.iter().try_for_each(|length| write!(f, "[{length}]"))
    }

    fn name(&self, layout: &LayoutDescriptor) -> String {
        let name = identifier(layout.name);
        let alone = !self.structs.iter().any(|other| other.name == layout.name && other.hash != layout.hash);
        if alone { name } else { format!("{name}_{:016x}", layout.hash) }
    }
}

/// Returns the value that the header of a ring has as the ABI of messages with the hash `message`.
const fn ring_abi(message: u64) -> u64 {
    AbiHash::new().number(<RingHeader<u64> as Layout>::DESCRIPTOR.hash).number(message).finish()
}

fn number(name: &str) -> Option<&'static str> {
    Some(match name {
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "word" => "uint64_t",
        "i8" => "int8_t",
        "i16" => "int16_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "f32" => "float",
        "f64" => "double",
        _ => return None,
    })
}

fn identifier(name: &str) -> String {
    let name = name.strip_prefix("r#").unwrap_or(name);
    if KEYWORDS.split_ascii_whitespace().any(|keyword| keyword == name) { format!("{name}_") } else { name.to_owned() }
}

/// C11, C23 and C++23, with alternative operators. Source: ISO/IEC 9899:2024, 6.4.1, and ISO/IEC 14882:2024, 5.11.
const KEYWORDS: &str = "\
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield \
    compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit \
    export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private \
    protected public register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch \
    template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile \
    wchar_t while xor xor_eq";

/// Splits sequences that end or open a comment.
fn comment(field: &Field) -> impl Display {
    fmt::from_fn(move |f| {
        write!(f, "{}: ", field.offset)?;
        let mut last = ' ';
        for character in field.writer.chars().map(|character| if character.is_control() { ' ' } else { character }) {
            if matches!((last, character), ('*', '/') | ('/', '*')) {
                f.write_char(' ')?;
            }
            f.write_char(character)?;
            last = character;
        }
        Ok(())
    })
}
