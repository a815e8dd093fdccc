//! WGSL structs, as a shader compiler places members.

use std::collections::HashMap;

use naga::proc::Layouter;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{Module, TypeInner};
use ringmem::{Abi, Field, Layout, LayoutDescriptor, Shape, describe, layout_set, layout_table};

#[repr(C)]
struct Pair {
    left: i32,
    r#type: f32,
}
layout_table! {
    Pair: size 8, align 4;
    0 left: i32, "host";
    4 r#type: f32, "device";
}

/// Too low for words in WGSL, which aligns them to 8.
#[repr(C, packed(4))]
struct Low {
    small: u32,
    word: u64,
}
layout_table! {
    Low: size 12, align 4;
    0 small: u32, "host";
    4 word: u64, "host";
}

/// Not declared: no size or alignment of WGSL.
#[repr(C)]
struct Tiny {
    all: [u8; 2],
}
layout_table! {
    Tiny: size 2, align 1;
    0 all: [u8; 2], "host";
}

#[repr(C, align(32))]
struct Mixed {
    byte: u8,
    tiny: Tiny,
    char: i8,
    big: i32,
    half: u16,
    halves: [i16; 3],
    whole: u64,
    signed: i64,
    rate: f64,
    price: f32,
    pairs: [[Pair; 2]; 3],
    low: Low,
    nothing: [Pair; 0],
    bytes_0: u32,
    flags: [u8; 4],
    words: [u64; 5],
    _padding: [u8; 40],
}
layout_table! {
    Mixed: size 192, align 32;
    0   byte: u8, "a line\nbreak, and\u{2028}another";
    1   tiny: Tiny, "host";
    3   char: i8, "host */";
    4   big: i32, "host";
    8   half: u16, "device";
    10  halves: [i16; 3], "device";
    16  whole: u64, "device";
    24  signed: i64, "device";
    32  rate: f64, "device";
    40  price: f32, "device";
    44  pairs: [[Pair; 2]; 3], "host";
    92  low: Low, "host";
    104 nothing: [Pair; 0], "no one";
    104 bytes_0: u32, "host";
    108 flags: [u8; 4], "host";
    112 words: [u64; 5], "device";
    152 _padding: [u8; 40], "none: zero";
}

mod other {
    #[repr(C)]
    pub struct Pair {
        pub all: [u64; 2],
    }
    ringmem::layout_table! {
        Pair: size 16, align 8;
        0 all: [u64; 2], "host";
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Member {
    offset: usize,
    size: usize,
    kind: String,
}

#[derive(Debug)]
struct Struct {
    size: usize,
    members: HashMap<String, Member>,
}

/// Returns a text's structs after the validator accepted a storage buffer of each.
fn structs(text: &str) -> HashMap<String, Struct> {
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {")).collect();
    let buffers = names.iter().enumerate();
    let buffers = buffers.map(|(number, name)| format!("@group(0) @binding({number}) var<storage> buffer_{number}: {name};\n"));
    let text = text.to_owned() + &buffers.collect::<String>();
    let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
    let checked = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
    checked.unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).expect("types with a layout");
    let read = |(_, kind): (_, &naga::Type)| {
        let TypeInner::Struct { members, span } = &kind.inner else { return None };
        let members = members.iter().map(|member| {
            let (size, kind) = (layouter[member.ty].size as usize, spelled(&module, member.ty));
            (member.name.clone().expect("a name"), Member { offset: member.offset as usize, size, kind })
        });
        Some((kind.name.clone().expect("a name"), Struct { size: *span as usize, members: members.collect() }))
    };
    let found: HashMap<_, _> = module.types.iter().filter_map(read).collect();
    assert_eq!(found.len(), names.len());
    found
}

fn spelled(module: &Module, kind: naga::Handle<naga::Type>) -> String {
    match &module.types[kind].inner {
        TypeInner::Scalar(scalar) => format!("{:?}{}", scalar.kind, 8 * scalar.width),
        TypeInner::Vector { size, scalar } => format!("{}x{:?}{}", *size as u8, scalar.kind, 8 * scalar.width),
        TypeInner::Array { base, .. } => format!("[{}]", spelled(module, *base)),
        TypeInner::Struct { .. } => module.types[kind].name.clone().expect("a name"),
        other => panic!("{other:?}"),
    }
}

/// Each field lies in one member of the struct: at its start, if the member has its name.
fn assert_placed(layout: &LayoutDescriptor, placed: &Struct) {
    assert_eq!(placed.size, layout.size, "{}", layout.name);
    let covered: usize = placed.members.values().map(|member| member.size).sum();
    assert_eq!(covered, layout.size, "{}: without padding", layout.name);
    for field in layout.fields.iter().filter(|field| field.size > 0) {
        let name = format!("{}.{}", layout.name, field.name);
        let field_name = field.name.strip_prefix("r#").unwrap_or(field.name);
        let holds = |member: &Member| member.offset <= field.offset && field.offset + field.size <= member.offset + member.size;
        assert_eq!(placed.members.values().filter(|member| holds(member)).count(), 1, "{name}");
        if let Some(member) = placed.members.get(field_name) {
            assert_eq!((member.offset, member.size), (field.offset, field.size), "{name}");
        }
    }
}

const ABI: Abi = Abi::of(layout_set!(ringmem_kernels::ABI.layouts; Mixed, Tiny, other::Pair));

#[test]
fn a_shader_compiler_places_each_field_at_its_offset() {
    let text = describe::wgsl(&ABI).to_string();
    let mut structs = structs(&text);
    let mut checked = 0;
    for layout in ABI.layouts.iter().filter(|layout| layout.name != "Tiny" && layout.name != "Pair") {
        assert_placed(layout, &structs.remove(layout.name).unwrap_or_else(|| panic!("{} is declared", layout.name)));
        checked += 1;
    }
    assert_eq!(checked, ABI.layouts.len() - 2);
    assert_placed(&Low::DESCRIPTOR, &structs["Low"]);
    for pair in [Pair::DESCRIPTOR, other::Pair::DESCRIPTOR] {
        assert_placed(&pair, &structs[&format!("Pair_{:016x}", pair.hash)]);
    }
    assert!(!structs.contains_key("Tiny") && text.contains("\n// Tiny: 2 bytes, aligned to 1, hash "));
    // naga does not report a first member's alignment.
    assert!(text.contains("struct Mixed {\n    // byte, 0: ") && text.contains("    @align(32) bytes_0_: array<u32, 1>,\n"), "{text}");
    assert!(text.contains("struct ControlBlock {\n    @align(128) abi: vec2<u32>, // 0: word, "), "{text}");
    assert!(text.contains("struct RingHeader {\n    producer: ProducerLine, // 0: "), "aligned as its lines are: {text}");
    let hash = format!("const RINGMEM_ABI_HASH = vec2<u32>({:#010x}u, {:#010x}u);", ABI.hash as u32, (ABI.hash >> 32) as u32);
    assert!(text.contains(&hash), "{text}");
}

#[test]
fn wgsl_members_have_types_and_share_words() {
    let structs = structs(&describe::wgsl(&Abi::of(layout_set!(; Mixed))).to_string());
    let members = &structs["Mixed"].members;
    let mut kinds: Vec<(usize, &str, &str)> =
        members.iter().map(|(name, member)| (member.offset, name.as_str(), member.kind.as_str())).collect();
    kinds.sort();
    let expected = [
        (0, "bytes_0_", "[Uint32]"),
        (4, "big", "Sint32"),
        (8, "bytes_8", "[Uint32]"),
        (16, "whole", "2xUint32"),
        (24, "signed", "2xUint32"),
        (32, "rate", "2xUint32"),
        (40, "price", "Float32"),
        (44, "pairs", "[[Pair]]"),
        (92, "low", "Low"),
        (104, "bytes_0", "Uint32"),
        (108, "flags", "[Uint32]"),
        (112, "words", "[2xUint32]"),
        (152, "_padding", "[Uint32]"),
    ];
    assert_eq!(kinds, expected);
    let mut low: Vec<(&str, usize)> = structs["Low"].members.iter().map(|(name, member)| (name.as_str(), member.offset)).collect();
    low.sort();
    assert_eq!(low, [("small", 0), ("word", 4)]);
    let mut pair: Vec<&str> = structs["Pair"].members.keys().map(String::as_str).collect();
    pair.sort();
    assert_eq!(pair, ["left", "type_"]);
}

#[test]
fn reserved_words_are_escaped_in_wgsl() {
    const NUMBER: &LayoutDescriptor = &u32::DESCRIPTOR;
    let names: Vec<&str> = naga::keywords::wgsl::RESERVED
        .iter()
        .copied()
        .chain(["array", "array_", "vec2", "u32", "__double", "f__double", "_", "f_", "r#type"])
        .collect();
    let fields = names.iter().enumerate().map(|(place, &name)| Field {
        name: name.to_owned().leak(),
        offset: 4 * place,
        size: 4,
        type_name: "u32",
        type_hash: NUMBER.hash,
        layout: NUMBER,
        writer: "host",
    });
    // `type` is in the list, and Rust has no two fields of one name.
    let fields: Vec<Field> = fields.filter(|field| field.name != "type").collect();
    let structs_of = |name: &'static str, fields: Vec<Field>| {
        let size = 4 * fields.len();
        let fields = fields.into_iter().enumerate().map(|(place, field)| Field { offset: 4 * place, ..field }).collect::<Vec<_>>().leak();
        let layout = LayoutDescriptor { name, size, align: 4, fields, hash: 1, shape: Shape::Struct };
        structs(&describe::wgsl(&Abi { layouts: vec![layout].leak(), hash: 2 }).to_string())
    };
    assert_eq!(structs_of("All", fields.clone())["All"].members.len(), fields.len());
    for name in ["array", "vec2", "u32", "struct", "__Order", "RINGMEM_ABI_HASH"] {
        let alone = vec![fields[0], Field { name: "more", ..fields[1] }];
        assert_eq!(structs_of(name, alone).len(), 1, "{name}");
    }
}
