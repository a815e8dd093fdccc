use ringmem::{Abi, describe};
use ringmem_kernels::{ABI, IMAGE};
use serde_json::Value;

use crate::program::{call, execute};

#[test]
fn the_json_object_has_every_layout_and_offset() {
    for ran in [call(&IMAGE, ["layout", "--json"]), execute(["layout", "--json"])] {
        let object = ran.json();
        assert_eq!(object["abi"], format!("{:016x}", ABI.hash));
        let layouts = object["layouts"].as_array().expect("a list");
        assert_eq!(layouts.len(), ABI.layouts.len());
        for (shown, layout) in layouts.iter().zip(ABI.layouts) {
            assert_eq!((&shown["name"], &shown["size"], &shown["align"]), (&layout.name.into(), &layout.size.into(), &layout.align.into()));
            assert_eq!(shown["hash"], format!("{:016x}", layout.hash));
            let fields = shown["fields"].as_array().expect("a list");
            assert_eq!(fields.len(), layout.fields.len());
            for (shown, field) in fields.iter().zip(layout.fields) {
                assert_eq!(
                    (&shown["name"], &shown["offset"], &shown["size"]),
                    (&field.name.into(), &field.offset.into(), &field.size.into())
                );
                assert_eq!((&shown["type"], &shown["writer"]), (&field.type_name.into(), &field.writer.into()));
            }
        }
    }
}

#[test]
fn the_offsets_match_the_documents() {
    let object = call(&IMAGE, ["layout", "--json"]).json();
    let offset = |layout: &str, field: &str| -> u64 {
        let named = |value: &&Value, name: &str| value["name"] == name;
        let layout =
            object["layouts"].as_array().expect("a list").iter().find(|value| named(value, layout)).expect("a layout of that name");
        layout["fields"].as_array().expect("a list").iter().find(|value| named(value, field)).expect("a field of that name")["offset"]
            .as_u64()
            .expect("a number")
    };
    for (layout, field, expected) in [
        ("ControlBlock", "abi", 0),
        ("ControlBlock", "command", 16),
        ("ControlBlock", "state", 64),
        ("ControlBlock", "abi_seen", 120),
        ("TelemetryBuffer", "updated_ns", 56),
        ("RingHeader", "consumer", 128),
        ("RingHeader", "constants", 256),
        ("ConstantLine", "message_kind", 48),
        ("Chunk", "first_word", 24),
        ("Counted", "checksum", 24),
        ("Echo", "words", 0),
        ("Work", "tables", 2048),
    ] {
        assert_eq!(offset(layout, field), expected, "{layout}.{field}");
    }
}

#[test]
fn the_text_output_has_every_table() {
    for ran in [call(&IMAGE, ["layout"]), execute(["layout"])] {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let mut lines = ran.out.lines();
        for layout in ABI.layouts {
            let title = format!("{}: {} bytes, aligned to {}, hash {:016x}", layout.name, layout.size, layout.align, layout.hash);
            assert_eq!(lines.next(), Some(title.as_str()));
            for field in layout.fields {
                let line = lines.next().expect("a line for each field");
                let mut words = line.split_whitespace();
                assert_eq!((words.next(), words.next()), (Some(field.offset.to_string().as_str()), Some(field.size.to_string().as_str())));
                assert_eq!(words.next(), Some(field.name), "{line}");
                assert!(line.contains(field.type_name) && line.ends_with(field.writer), "{line}");
            }
            assert_eq!(lines.next(), Some(""));
        }
        assert!(lines.next().is_some_and(|line| line.contains(&format!("{:016x}", ABI.hash))));
        assert_eq!(lines.next(), None);
    }
}

#[test]
fn each_format_matches_the_library() {
    for (format, expected) in [
        ("table", describe::table(&ABI).to_string()),
        ("json", describe::json(&ABI).to_string()),
        ("svg", describe::svg(&ABI).to_string()),
        ("c", describe::c(&ABI).to_string()),
    ] {
        for ran in [call(&IMAGE, ["layout", "--format", format]), execute(["layout", "--format", format])] {
            assert_eq!((ran.code, ran.err.as_str()), (0, ""));
            assert_eq!(ran.out, expected);
        }
    }
    assert_eq!(call(&IMAGE, ["layout", "--json"]).out, call(&IMAGE, ["layout", "--format", "json"]).out);
}

#[test]
fn one_struct_prints_with_the_hash_of_the_set() {
    let layout = ABI.layouts.iter().find(|layout| layout.name == "Chunk").expect("it is there");
    let chunk = Abi { layouts: std::slice::from_ref(layout), hash: ABI.hash };
    assert_eq!(call(&IMAGE, ["layout", "Chunk"]).out, describe::table(&chunk).to_string());
    assert_eq!(call(&IMAGE, ["layout", "--format", "c", "Chunk"]).out, describe::c(&chunk).to_string());
    let object = call(&IMAGE, ["layout", "Chunk", "--json"]).json();
    assert_eq!(
        (object["abi"].as_str(), object["layouts"].as_array().map(Vec::len)),
        (Some(format!("{:016x}", ABI.hash).as_str()), Some(1))
    );
}

#[test]
fn an_unknown_struct_or_format_is_named_in_the_error() {
    for (arguments, fact) in [
        (["layout", "Chunks", "--json"], "no struct named Chunks: this program has BufferReference, ControlBlock, "),
        (["layout", "--format", "xml"], "invalid value 'xml'"),
        (["layout", "--json", "--format=c"], "cannot be used with"),
    ] {
        let ran = call(&IMAGE, arguments);
        assert_eq!(ran.out, "");
        ran.refuses(2, &[fact]);
    }
}

#[test]
fn a_similar_struct_is_suggested() {
    for (name, similar) in
        [("controlblock", "ControlBlock"), ("Chunks", "Chunk"), ("telemetry_buffer", "TelemetryBuffer"), ("ring_headers", "RingHeader")]
    {
        call(&IMAGE, ["layout", name]).refuses(2, &[&format!("; did you mean {similar}? For structs of your own")]);
    }
    for name in ["Order", "", &"x".repeat(100_000)] {
        let ran = call(&IMAGE, ["layout", name]);
        ran.refuses(2, &["; for structs of your own"]);
        assert!(!ran.err.contains("did you mean"), "{name}");
    }
}

#[test]
fn check_with_a_name_compares_only_its_declarations() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ringmem.h");
    let name = path.to_str().expect("text");
    let header = call(&IMAGE, ["layout", "--format", "c"]).out;
    let check = |text: &str, of: &str| {
        std::fs::write(&path, text).expect("a file");
        call(&IMAGE, ["layout", "--check", name, of])
    };
    for layout in ABI.layouts {
        let ran = check(&header, layout.name);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", layout.name);
    }
    let number = |text: &str, of: &str| 1 + text.lines().position(|line| line.contains(of)).expect("a line");
    // A difference in another struct is none of this one's, in a nested one it is.
    let changed = header.replace("uint64_t message_kind; ", "uint32_t message_kind; ");
    let place = format!("{name}:{}: found `    uint32_t message_kind; /* 48: ", number(&changed, "uint32_t message_kind"));
    assert_eq!(check(&changed, "ControlBlock").code, 0);
    for of in ["ConstantLine", "RingHeader"] {
        check(&changed, of).refuses(1, &[&place]);
    }
    let changed = header.replace(&format!("HASH UINT64_C({:#018x})", ABI.hash), "HASH UINT64_C(0x1)");
    check(&changed, "Chunk")
        .refuses(1, &[&format!("{name}:{}: found `#define RINGMEM_ABI_HASH UINT64_C(0x1)`", number(&changed, "(0x1)"))]);
    let alone = call(&IMAGE, ["layout", "Chunk", "--format", "c"]).out;
    check(&alone, "ControlBlock").refuses(1, &["found the end of the file, expected `/* ControlBlock: 128 bytes"]);
    check("", "Chunk").refuses(1, &[":1: found the end of the file, expected `#define RINGMEM_ABI_HASH"]);
}

#[test]
fn check_names_the_first_difference_of_a_header() {
    let header = call(&IMAGE, ["layout", "--format", "c"]).out;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ringmem.h");
    let name = path.to_str().expect("text");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        call(&IMAGE, ["layout", "--check", name])
    };
    let same = check(&header);
    assert_eq!((same.code, same.err.as_str(), same.out), (0, "", format!("{name} matches the layouts of this program\n")));
    assert_eq!(check(&header.replace('\n', "\r\n")).code, 0, "line ends of another system");
    let last = header.lines().count();
    let number = 1 + header.lines().position(|line| line.contains("typedef struct RingHeader")).expect("a struct");
    let at = |number: usize, fact: &str| format!("{name}:{number}: {fact}");
    for (text, fact) in [
        (
            header.replace("typedef struct RingHeader", "typedef struct Ring"),
            at(number, "found `typedef struct Ring {`, expected `typedef struct RingHeader {`"),
        ),
        (format!("{header}\n"), at(last + 1, "found ``, expected the end of the file")),
        (format!("{header}{}", "x".repeat(100_000)), at(last + 1, &format!("found `{}`, expected the end", "x".repeat(200)))),
        (
            header.lines().take(last - 1).fold(String::new(), |text, line| text + line + "\n"),
            at(last, "found the end of the file, expected `static_assert"),
        ),
        (String::new(), at(1, "found the end of the file, expected `/*")),
        ("\u{1b}[31m".to_owned(), at(1, "found `\\u{1b}[31m`")),
    ] {
        let ran = check(&text);
        assert_eq!(ran.out, "");
        ran.refuses(1, &[&fact]);
    }
    std::fs::write(&path, call(&IMAGE, ["layout", "Chunk", "--format", "c"]).out).expect("a file");
    assert_eq!(call(&IMAGE, ["layout", "Chunk", "--check", name]).code, 0);
    call(&IMAGE, ["layout", "--check", folder.path().to_str().expect("text")]).refuses(1, &["not a regular file"]);
    call(&IMAGE, ["layout", "--check", "/nowhere/x.h"]).refuses(1, &["cannot open /nowhere/x.h", "No such file"]);
    call(&IMAGE, ["layout", "--check", name, "--json"]).refuses(2, &["--check", "--json"]);
}
