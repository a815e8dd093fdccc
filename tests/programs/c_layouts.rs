//! The C header: every field accessed by name in C, C++ and Rust.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use ringmem::{Abi, ControlBlock, Field, Layout, LayoutDescriptor, Shape, describe, layout_set, layout_table};
use zerocopy::FromBytes;

#[derive(FromBytes)]
#[repr(C)]
struct Pair {
    left: i16,
    r#type: u16,
}
layout_table! {
    Pair: size 4, align 2;
    0 left: i16, "host";
    2 r#type: u16, "host";
}

#[derive(FromBytes)]
#[repr(C, align(32))]
struct Mixed {
    byte: u8,
    char: i8,
    small: i16,
    half: u16,
    flags: [u8; 2],
    signed: i32,
    count: u32,
    big: i64,
    whole: u64,
    price: f32,
    pairs: [Pair; 3],
    rate: f64,
    grid: [[i16; 2]; 3],
    _padding: [u8; 28],
}
layout_table! {
    Mixed: size 96, align 32;
    0  byte: u8, "host";
    1  char: i8, "device, when */ it /* likes \\";
    2  small: i16, "host";
    4  half: u16, "device";
    6  flags: [u8; 2], "host";
    8  signed: i32, "host";
    12 count: u32, "device";
    16 big: i64, "host";
    24 whole: u64, "device";
    32 price: f32, "the trader";
    36 pairs: [Pair; 3], "host";
    48 rate: f64, "the exchange";
    56 grid: [[i16; 2]; 3], "the trader";
    68 _padding: [u8; 28], "none: zero";
}

#[derive(FromBytes)]
#[repr(C, packed)]
struct Wire {
    kind: u8,
    length: u32,
    price: f64,
}
layout_table! {
    Wire: size 13, align 1;
    0 kind: u8, "the peer";
    1 length: u32, "the peer";
    5 price: f64, "the peer";
}

const ABI: Abi = Abi::of(layout_set!(ringmem_kernels::ABI.layouts; Mixed, Wire));

fn folder(name: &str, header: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_layouts").join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("layouts.h"), header).unwrap();
    folder
}

fn compile(compiler: &str, standard: &str, folder: &Path, arguments: &[&str]) -> Output {
    Command::new(compiler)
        .args([standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("this test needs {compiler} ({error}); on Debian: apt-get install gcc g++"))
}

const COMPILERS: [(&str, &str, &str); 4] =
    [("gcc", "-std=c11", "c"), ("gcc", "-std=c17", "c"), ("g++", "-std=c++11", "c++"), ("g++", "-std=c++17", "c++")];

fn value(turn: u64, path: &str, index: usize) -> u64 {
    let hash =
        path.bytes().fold(0xcbf2_9ce4_8422_2325 ^ turn, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn bytes(turn: u64, path: &str, index: usize, number: &LayoutDescriptor) -> Vec<u8> {
    let value = value(turn, path, index);
    match number.name {
        "f32" => ((value & 0xffff) as f32 + 0.5).to_le_bytes().to_vec(),
        "f64" => ((value & 0xffff) as f64 + 0.5).to_le_bytes().to_vec(),
        "i8" | "i16" | "i32" | "i64" => (-1 - (value & 0x7f) as i64).to_le_bytes()[..number.size].to_vec(),
        _ => value.to_le_bytes()[8 - number.size..].to_vec(),
    }
}

fn fill(turn: u64, layout: &LayoutDescriptor, path: &str, index: usize) -> Vec<u8> {
    match layout.shape {
        Shape::Number => bytes(turn, path, index, layout),
        Shape::Array { element, length } => (0..length).flat_map(|nth| fill(turn, element, path, index * length + nth)).collect(),
        Shape::Struct => {
            let mut all = vec![0; layout.size];
            for field in layout.fields {
                let name = field.name.strip_prefix("r#").unwrap_or(field.name);
                let filled = fill(turn, field.layout, &format!("{path}.{name}"), index);
                all[field.offset..field.offset + field.size].copy_from_slice(&filled);
            }
            all
        }
    }
}

fn all(turn: u64) -> Vec<u8> {
    ABI.layouts.iter().flat_map(|layout| fill(turn, layout, layout.name, 0)).collect()
}

#[test]
fn c_reads_rust_fields_by_name_and_writes_them_back() {
    let folder = folder("round_trip", &describe::c(&ABI).to_string());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/round_trip.c");
    for (compiler, standard, language) in COMPILERS {
        let program = folder.join(format!("round_trip{standard}"));
        let output = compile(compiler, standard, &folder, &["-x", language, source, "-o", program.to_str().unwrap()]);
        assert!(output.status.success(), "{compiler} {standard}:\n{}", String::from_utf8_lossy(&output.stderr));

        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let writer = thread::spawn(move || drop(input.write_all(&all(1))));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success(), "{compiler} {standard}: {}", String::from_utf8_lossy(&output.stderr));

        let expected = all(2);
        assert_eq!(output.stdout.len(), expected.len());
        let mut begin = 0;
        for layout in ABI.layouts {
            let end = begin + layout.size;
            assert_eq!(output.stdout[begin..end], expected[begin..end], "{compiler} {standard}: {}", layout.name);
            begin = end;
        }
        let before: usize = ABI.layouts.iter().take_while(|layout| layout.name != "ControlBlock").map(|layout| layout.size).sum();
        let block = ControlBlock::<u64>::read_from_prefix(&output.stdout[before..]).unwrap().0;
        assert_eq!(block.command, value(2, "ControlBlock.command", 0));
        assert_eq!(block.abi_seen, value(2, "ControlBlock.abi_seen", 0));
        let tail = &output.stdout[expected.len() - Mixed::DESCRIPTOR.size - Wire::DESCRIPTOR.size..];
        let (mixed, wire) = Mixed::read_from_prefix(tail).unwrap();
        assert_eq!(i64::from(mixed.signed), -1 - (value(2, "Mixed.signed", 0) & 0x7f) as i64);
        assert_eq!(mixed.pairs[2].r#type, (value(2, "Mixed.pairs.type", 2) >> 48) as u16);
        let price = Wire::read_from_bytes(wire).unwrap().price;
        assert_eq!(price, (value(2, "Wire.price", 0) & 0xffff) as f64 + 0.5);
    }
}

#[test]
fn a_changed_header_does_not_compile() {
    let header = describe::c(&ABI).to_string();
    let folder = folder("planted", &header);
    let check = |text: &str| {
        fs::write(folder.join("layouts.h"), text).unwrap();
        compile("gcc", "-std=c11", &folder, &["-fsyntax-only", "-include", "layouts.h", "-x", "c", "/dev/null"])
    };
    let right = check(&header);
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));

    let lines: Vec<&str> = header.lines().collect();
    let members: Vec<usize> = (0..lines.len()).filter(|&line| lines[line].starts_with("    ")).collect();
    let fields: usize = ABI.layouts.iter().map(|layout| layout.fields.len()).sum();
    assert_eq!(members.len(), fields + Pair::DESCRIPTOR.fields.len());
    let refused = |planted: &str, what: &str| {
        let output = check(planted);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{what} is accepted");
        assert!(said.contains("static assertion failed"), "{what}: {said}");
    };
    for member in &members {
        let planted = [&lines[..*member], &["    unsigned char planted;"], &lines[*member..]].concat().join("\n");
        refused(&planted, &format!("a byte before `{}`", lines[*member]));
    }
    for end in (0..lines.len()).filter(|&line| lines[line].starts_with("} ")) {
        let planted = [&lines[..end], &["    unsigned char planted;"], &lines[end..]].concat().join("\n");
        refused(&planted, &format!("a byte at the end of `{}`", lines[end]));
    }
    for member in members.iter().filter(|member| lines[**member].contains("alignas")) {
        let natural = lines[*member].split_once(") ").expect("what is aligned").1;
        let planted = [&lines[..*member], &[natural], &lines[*member + 1..]].concat().join("\n");
        refused(&planted, &format!("`{}` without its alignment", lines[*member]));
    }
    for pair in members.windows(2).filter(|pair| pair[0] + 1 == pair[1]) {
        let mut swapped = lines.clone();
        swapped.swap(pair[0], pair[1]);
        refused(&swapped.join("\n"), &format!("`{}` behind the next", lines[pair[0]]));
    }
}

#[repr(C, align(2))]
struct Half([u8; 2]);
// SAFETY: a number of 16 bits.
unsafe impl Layout for Half {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor::number::<Self>("f16");
}

mod other {
    #[repr(C)]
    pub struct Pair {
        pub left: f32,
    }
    ringmem::layout_table! {
        Pair: size 4, align 4;
        0 left: f32, "host";
    }
}

#[repr(C)]
struct Nothing {
    none: [u64; 0],
}
layout_table! {
    Nothing: size 0, align 8;
    0 none: [u64; 0], "nobody";
}

#[repr(C, align(8))]
struct Odd {
    nothing: Nothing,
    never: [Pair; 0],
    halves: [Half; 2],
    ours: Pair,
    theirs: [other::Pair; 2],
}
layout_table! {
    Odd: size 16, align 8;
    0 nothing: Nothing, "nobody /* ";
    0 never: [Pair; 0], "nobody */";
    0 halves: [Half; 2], "/*/";
    4 ours: Pair, "*/*";
    8 theirs: [other::Pair; 2], "line
line";
}

mod reserved {
    #![allow(non_camel_case_types, non_snake_case, reason = "names with a meaning in C")]

    use ringmem::layout_table;

    #[repr(C)]
    pub struct size_t {
        pub int8_t: u8,
    }
    layout_table! {
        size_t: size 1, align 1;
        0 int8_t: u8, "host";
    }

    #[repr(C)]
    pub struct RINGMEM_ABI_HASH {
        pub unix: u8,
    }
    layout_table! {
        RINGMEM_ABI_HASH: size 1, align 1;
        0 unix: u8, "host";
    }

    #[repr(C)]
    pub struct Names {
        pub int: u8,
        pub int_: u8,
        pub int__: u8,
        pub NULL: u8,
        pub NULL_: u8,
        pub INT8_MAX: u8,
        pub UINT64_C: u8,
        pub linux: u8,
        pub linux_: u8,
        pub size_t: size_t,
        pub RINGMEM_ABI_HASH: RINGMEM_ABI_HASH,
        pub errno: u8,
        pub __LINE__: u8,
        pub f___LINE__: u8,
        pub _Atomic: u8,
        pub offsetof: [u8; 1],
        pub uint8_t: u8,
        pub intmax_t: u8,
        pub SIZE_MAX: u8,
    }
    layout_table! {
        Names: size 19, align 1;
        0 int: u8, "host";
        1 int_: u8, "host";
        2 int__: u8, "host";
        3 NULL: u8, "host";
        4 NULL_: u8, "host";
        5 INT8_MAX: u8, "host";
        6 UINT64_C: u8, "host";
        7 linux: u8, "host";
        8 linux_: u8, "host";
        9 size_t: size_t, "host";
        10 RINGMEM_ABI_HASH: RINGMEM_ABI_HASH, "host";
        11 errno: u8, "host";
        12 __LINE__: u8, "host";
        13 f___LINE__: u8, "host";
        14 _Atomic: u8, "host";
        15 offsetof: [u8; 1], "host";
        16 uint8_t: u8, "host";
        17 intmax_t: u8, "host";
        18 SIZE_MAX: u8, "host";
    }

    #[repr(C)]
    pub struct Line {
        pub x: u8,
    }
    layout_table! {
        Line: size 1, align 1;
        0 x: u8, "host";
    }

    /// In C++, `Line Line;` changes the meaning of the name for the next member.
    #[repr(C)]
    pub struct Twice {
        pub Line: Line,
        pub Line_: Line,
    }
    layout_table! {
        Twice: size 2, align 1;
        0 Line: Line, "host";
        1 Line_: Line, "host";
    }
}

#[test]
fn names_with_a_meaning_in_c_compile_and_stay_different() {
    const SET: Abi = Abi::of(layout_set!(; reserved::Names, reserved::Twice));
    let header = describe::c(&SET).to_string();
    let folder = folder("reserved", &header);
    // GNU modes define `linux` and `unix`.
    for (compiler, standard, language) in COMPILERS.into_iter().chain([("gcc", "-std=gnu17", "c"), ("g++", "-std=gnu++20", "c++")]) {
        let all = ["-fsyntax-only", "-include", "errno.h", "-include", "layouts.h", "-x", language, "/dev/null"];
        let output = compile(compiler, standard, &folder, &all);
        assert!(output.status.success(), "{compiler} {standard}:\n{}\n{header}", String::from_utf8_lossy(&output.stderr));
    }
    for member in
        ["uint8_t int_;", "uint8_t int__;", "uint8_t int___;", "size_t_ size_t__;", "uint8_t linux_;", "uint8_t f___LINE__;", "Line Line_;"]
    {
        assert_eq!(header.matches(&format!("    {member} ")).count(), 1, "{member}\n{header}");
    }
}

#[test]
fn a_field_may_have_the_name_of_a_macro_of_the_c_library() {
    const HEADERS: [&str; 8] = ["errno.h", "float.h", "limits.h", "math.h", "signal.h", "stdio.h", "stdlib.h", "time.h"];
    const BYTE: &LayoutDescriptor = &u8::DESCRIPTOR;
    let included: Vec<&str> = HEADERS.iter().flat_map(|header| ["-include", header]).collect();
    let output = compile("gcc", "-std=c11", &folder("macros", ""), &[&included[..], &["-dM", "-E", "-x", "c", "/dev/null"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let defined = String::from_utf8(output.stdout).expect("text");
    let macros = defined.lines().filter_map(|line| line.strip_prefix("#define ")?.split(' ').next()).filter(|name| !name.contains('('));
    // With the extensions of POSIX that C++ programs get.
    let names: Vec<&str> = macros.chain(["M_PI", "M_SQRT1_2", "NSIG", "SSIZE_MAX", "sa_handler", "si_pid", "si_value"]).collect();
    assert!(["NAN", "CHAR_BIT", "EIO", "LDBL_MAX", "SIGINT", "RAND_MAX"].iter().all(|name| names.contains(name)), "{names:?}");
    let field = |(offset, name): (usize, &&str)| {
        let name = name.to_string().leak();
        Field { name, offset, size: 1, type_name: "u8", type_hash: BYTE.hash, layout: BYTE, writer: "host" }
    };
    let fields: Vec<Field> = names.iter().enumerate().map(field).collect();
    let layout =
        LayoutDescriptor { name: "Macros", size: fields.len(), align: 1, fields: fields.leak(), hash: 1, shape: Shape::Struct, kind: 0 };
    let header = describe::c(&Abi { layouts: vec![layout].leak(), hash: 2 }).to_string();
    let folder = folder("macros", &header);
    for (compiler, standard, language) in COMPILERS.into_iter().chain([("gcc", "-std=gnu17", "c")]) {
        let all = [&included[..], &["-fsyntax-only", "-include", "layouts.h", "-x", language, "/dev/null"]].concat();
        let output = compile(compiler, standard, &folder, &all);
        assert!(output.status.success(), "{compiler} {standard}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn layouts_without_a_c_equivalent_still_compile() {
    const SET: Abi = Abi::of(layout_set!(; Nothing, Odd, Odd, other::Pair));
    let header = describe::c(&SET).to_string();
    let folder = folder("odd", &header);
    for (compiler, standard, language) in COMPILERS {
        let output = compile(compiler, standard, &folder, &["-fsyntax-only", "-include", "layouts.h", "-x", language, "/dev/null"]);
        assert!(output.status.success(), "{compiler} {standard}:\n{}\n{header}", String::from_utf8_lossy(&output.stderr));
    }
    for declared in ["Pair", "Odd"].map(|name| format!("typedef struct {name}")) {
        assert!(header.contains(&declared), "{declared}\n{header}");
    }
    assert_eq!(header.matches("typedef struct ").count(), 3, "each once:\n{header}");
    assert!(header.contains(&format!("#define RINGMEM_ABI_HASH UINT64_C({:#018x})", SET.hash)), "{header}");
}
