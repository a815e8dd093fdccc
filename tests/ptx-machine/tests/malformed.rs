//! Malformed texts are errors with a line.

use ringmem_ptx_machine::{Image, Kind};

#[track_caller]
fn fails(text: &str, line: u32) {
    let fault = Image::parse(text).expect_err("it is malformed");
    assert!(matches!(fault.kind, Kind::Syntax | Kind::UnknownOpcode) && fault.line == line, "{:?} {fault}", fault.kind);
}

fn module(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n{declarations}\n.visible .entry f()\n{{\n.reg .pred %p<9>;\n.reg .b16 %rs<9>;\n\
         .reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n{body}\nret;\n}}\n"
    )
}

#[test]
fn a_truncated_text_is_reported() {
    fails(".version 8.6\n.visible", 2);
    fails(".version 8.6\n.target sm_90 /* open", 2);
    fails(".version 8.6\n.target sm_90\n.section .debug {\n.b8 1", 4);
    fails(".version 8.6\n.visible .entry f()\n{\n.pragma \"nounroll\"", 4);
}

#[test]
fn impossible_sizes_are_reported() {
    for declaration in [
        ".global .b64 x[0x2000000000000000];",
        ".global .b8 x[0xffffffffffffffff];",
        ".global .b32 x[0xffffffff][0xffffffff];",
        ".global .b8 x[68719476736];",
        ".global .align 3 .b8 x[8];",
        ".global .align 0x8000000000000000 .b8 x[8];",
        ".global .align 8192 .b8 x[8];",
        ".extern .shared .b8 x[];",
        ".shared .b8 x[16777216];",
    ] {
        fails(&module(declaration, ""), 4);
    }
    for body in [
        ".local .b8 x[524289];",
        ".local .b8 x[0xffffffffffffffff];",
        ".shared .b8 x[0xffffffff];",
        "{ .param .b8 x[32769]; }",
        ".reg .b32 %x<65537>;",
        ".reg .b32 %x<0xffffffffffffffff>;",
    ] {
        fails(&module("", body), 11);
    }
}

#[test]
fn impossible_operands_are_reported() {
    for body in [
        "mov.b64 {%rd1}, %rd2;",
        "mov.b64 %rd1, {};",
        "mov.b16 %rs1, {%rs2, %rs3, %rs4, %rs5};",
        "mul.wide.u64 %rd1, %rd2, %rd3;",
        "mad.wide.s64 %rd1, %rd2, %rd3, %rd4;",
    ] {
        fails(&module("", body), 11);
    }
}

#[test]
fn deep_nesting_is_reported() {
    const DEPTH: usize = 100_000;
    for part in ["{", "(", "%r1|"] {
        fails(&module("", &format!("mov.b32 %r1, {};", part.repeat(DEPTH))), 11);
    }
    assert!(Image::parse(&module("", &("{".repeat(DEPTH) + &"}".repeat(DEPTH)))).is_ok());
}

#[test]
fn a_name_declared_twice_in_a_scope_is_reported() {
    fails(&module("", "$a:\n$a:"), 12);
    fails(&module("", ".reg .b32 %r<3>;"), 11);
    assert!(Image::parse(&module("", "{\n$a:\n}\n{\n$a:\n}")).is_ok());
    fails(&module("", "{\n$a:\n}\nbra $a;"), 14);
}
