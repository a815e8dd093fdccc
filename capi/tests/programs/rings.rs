//! The ring functions from C, C++ and Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringmem::describe;

use crate::compiler::{C, CPP17, CPP20, FOLDER, HAS_SANITIZERS, Link, compile, folder, libraries, prints};
use crate::cpp_peer::messages::ABI;
use crate::process::ended;

fn source(name: &str) -> PathBuf {
    Path::new(FOLDER).join("tests/programs").join(name)
}

/// Compiles a program of this folder, and runs it on an empty folder.
fn passes(compiler: [&str; 2], name: &str, link: Link) {
    let folder = folder(&format!("{name}{}-{}", compiler[1], link as u8));
    fs::write(folder.join("layouts.h"), describe::c(&ABI).to_string()).unwrap();
    let program = compile(compiler, &source(name), &folder, link).unwrap_or_else(|errors| panic!("{errors}"));
    let files = tempfile::tempdir().unwrap();
    prints(&program, &[files.path()], "ok\n");
}

#[test]
fn a_c_program_uses_the_shared_library() {
    passes(C, "rings.c", Link::Shared);
}

#[test]
fn a_c_program_uses_the_static_library() {
    passes(C, "rings.c", Link::Static);
}

#[test]
fn a_cpp17_program_uses_the_shared_library() {
    passes(CPP17, "rings.cpp", Link::Shared);
}

#[test]
fn a_cpp20_program_uses_the_shared_library() {
    passes(CPP20, "rings.cpp", Link::Shared);
}

/// Handles that are not freed are errors, too.
#[test]
fn sanitizers_find_no_error_in_the_programs() {
    if *HAS_SANITIZERS {
        passes(C, "rings.c", Link::Sanitized);
        passes(CPP17, "rings.cpp", Link::Sanitized);
        passes(CPP20, "rings.cpp", Link::Sanitized);
    }
}

#[test]
fn clang_compiles_the_headers_without_warnings() {
    for (compiler, name) in
        [(["clang", "-std=c11"], "rings.c"), (["clang++", "-std=c++17"], "rings.cpp"), (["clang++", "-std=c++20"], "rings.cpp")]
    {
        match Command::new(compiler[0]).arg("--version").stdout(Stdio::null()).status() {
            Ok(_) => passes(compiler, name, Link::Shared),
            Err(_) => eprintln!("left out: there is no {}", compiler[0]),
        }
    }
}

#[test]
fn a_python_program_uses_the_library_by_ctypes() {
    let files = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command.arg(source("rings.py")).arg(libraries().join("libringmem_capi.so")).arg(files.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output = ended(child.unwrap_or_else(|error| panic!("this test needs python3 ({error})")));
    assert!(output.status.success() && output.stdout == b"ok\n", "{output:?}");
}

#[test]
fn a_message_that_is_no_plain_declared_struct_does_not_compile() {
    let folder = folder("refused");
    for (name, code, fact) in [
        ("copied", "struct Bad { uint64_t id; ~Bad() {} };\nRINGMEM_MESSAGE(Bad);", "a message is copied between processes as bytes"),
        (
            "layout",
            "struct Base { uint64_t id; };\nstruct Bad : Base { uint64_t more; };\nRINGMEM_MESSAGE(Bad);",
            "a message has the layout of a C struct",
        ),
        ("undeclared", "struct Bad { uint64_t id; };", "the struct is no message yet: declare it with RINGMEM_MESSAGE"),
    ] {
        let path = folder.join(format!("{name}.cpp"));
        let numbers = "#define RINGMEM_KIND_OF_Bad 1\n#define RINGMEM_RING_OF_Bad 1";
        let program = "int main() { return ringmem::ring::create<Bad>(4) ? 0 : 1; }";
        fs::write(&path, format!("#include <ringmem.hpp>\n{numbers}\n{code}\n{program}\n")).unwrap();
        let errors = compile(CPP17, &path, &folder, Link::Shared).expect_err(name);
        assert!(errors.contains(fact), "{errors}");
    }
}
