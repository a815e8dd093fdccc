//! The code blocks of `docs/guide/c.md`, as programs.

use std::fs;
use std::path::Path;

use ringmem::describe;
use ringmem::{Abi, LAYOUTS, SharedLayout, layout_set};

use crate::compiler::{C, CPP17, FOLDER, Link, compile, folder, libraries, prints};

/// As on the page.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
struct Order {
    id: u64,
    price: f64,
}

fn blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string(Path::new(FOLDER).join("../docs/guide/c.md")).unwrap();
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).map(|rest| rest.split_once("```").expect("the block's end").0.to_owned()).collect()
}

#[test]
fn the_programs_of_the_guide_run() {
    let folder = folder("guide");
    fs::write(folder.join("layouts.h"), describe::c(&Abi::of(layout_set!(LAYOUTS; Order))).to_string()).unwrap();
    let order = "order 7 at 2.5\n";
    for (compiler, language, texts) in [(C, "c", &[order, "the same block, 1 live\n"][..]), (CPP17, "cpp", &[order])] {
        let blocks = blocks(language);
        assert_eq!(blocks.len(), texts.len(), "{language}");
        for ((block, text), number) in blocks.iter().zip(texts).zip(1..) {
            let source = folder.join(format!("guide{number}.{language}"));
            fs::write(&source, block).unwrap();
            let program = compile(compiler, &source, &folder, Link::Shared).unwrap_or_else(|errors| panic!("{errors}"));
            prints(&program, &[], text);
        }
    }
    let [python] = &blocks("python")[..] else { panic!("one program in Python") };
    let script = folder.join("guide.py");
    let library = libraries().join("libringmem_capi.so");
    fs::write(&script, python.replace("target/release/libringmem_capi.so", library.to_str().expect("UTF-8"))).unwrap();
    prints(Path::new("python3"), &[&script], "order 7 at 2.5\n");
    let rust: String = blocks("rust,ignore").concat();
    for line in ["#[layout(message = 1)]", "struct Order {", "id: u64,", "price: f64,"] {
        assert!(rust.contains(line), "{line}");
    }
}
