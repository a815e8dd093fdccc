//! A workspace that is not ours, over layouts of its own: it runs, and whatever changes on one side alone is said.
//!
//! The tests work on copies of `examples/workspace` with this repository's versions of what it depends on, so nothing is fetched.
#![cfg(feature = "std")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use serde_json::Value;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_file() {
            write(copy, &fs::read_to_string(&path).unwrap());
        } else if entry.file_name() != "target" {
            copy_files(&path, &copy);
        }
    }
}

/// A fresh copy with more members.
fn workspace(name: &str, members: &[String]) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user_workspace").join(name);
    let _ = fs::remove_dir_all(&copy);
    copy_files(&repository().join("examples/workspace"), &copy);
    let mut listed = String::new();
    for member in members {
        write!(listed, "{member:?}, ").unwrap();
    }
    let manifest = fs::read_to_string(copy.join("Cargo.toml")).unwrap();
    let manifest = replaced(&manifest, "members = [", &format!("members = [{listed}"));
    let manifest = manifest.replace("path = \"../..", &format!("path = \"{}", repository().display()));
    write(copy.join("Cargo.toml"), &manifest);
    // The versions that this workspace has, which are there without a network.
    fs::copy(repository().join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    copy
}

/// Without a compiler for GPUs, which would be called for each copy.
fn cargo(workspace: &Path, arguments: &[&str]) -> Output {
    command(workspace, arguments).env("RINGMEM_RUSTC", "/none").output().unwrap()
}

fn command(workspace: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    command
        .args(arguments)
        .arg("--offline")
        .current_dir(workspace)
        // One for all copies: what they depend on is compiled once.
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("user_workspace/target"))
        // Flags that a sanitizer run was built with are none of these programs' business.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// `text` with `from`, which it has once, replaced.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "`{from}` in\n{text}");
    text.replacen(from, to, 1)
}

fn shared() -> String {
    fs::read_to_string(repository().join("examples/workspace/shared/src/lib.rs")).unwrap()
}

/// The source of `shared` in its parts: before the message's struct, the struct, its table, and the rest.
fn parts() -> [String; 4] {
    let text = shared();
    let at = |mark: &str| text.find(mark).unwrap_or_else(|| panic!("`{mark}` in\n{text}"));
    let places = [0, at("#[repr(C, align(8))]"), at("layout_table! {\n    Particle"), at("impl RingMessage"), text.len()];
    [0, 1, 2, 3].map(|part| text[places[part]..places[part + 1]].to_owned())
}

/// The name of the package that holds a changed copy of `shared`.
fn package(case: &str) -> String {
    format!("changed-{}", case.replace([' ', '`'], "-"))
}

fn add_changed(workspace: &Path, case: &str, source: &str) {
    let name = package(case);
    let manifest = fs::read_to_string(workspace.join("shared/Cargo.toml")).unwrap();
    write(workspace.join(&name).join("Cargo.toml"), &replaced(&manifest, "particles-shared", &name));
    write(workspace.join(&name).join("src/lib.rs"), source);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_example_runs() {
    let output = cargo(&workspace("as_it_is", &[]), &["run", "--quiet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "1000 particles moved by one second\n");
    // Cargo says this of its own accord or not at all; nobody else says anything.
    assert!(text(&output.stderr).lines().all(|line| line.starts_with("warning: particles-kernels@")), "{}", text(&output.stderr));
}

#[test]
fn its_kernels_are_compiled_for_a_gpu() {
    let workspace = workspace("compiled", &[]);
    let out = workspace.join("out");
    let manifest = fs::read_to_string(workspace.join("kernels/build.rs")).unwrap();
    // The file is looked for where this test knows it.
    let copied = format!("fs::copy(std::path::Path::new(&env::var_os(\"OUT_DIR\").unwrap()).join(\"kernels.ptx\"), {out:?}).ok();");
    let main =
        format!("use std::{{env, fs}};\nfn main() {{\n    ringmem_ptx_builder::embed(\"kernels.ptx\").unwrap();\n    {copied}\n}}\n");
    assert!(manifest.contains("ringmem_ptx_builder::embed(\"kernels.ptx\")"), "{manifest}");
    write(workspace.join("kernels/build.rs"), &main);
    let output = command(&workspace, &["build", "-vv", "-p", "particles-kernels"]).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ptx = fs::read_to_string(&out).unwrap();
    if ptx.is_empty() {
        assert!(said.contains("no compiler with the source of core") && said.contains("apt-get install rustc-web"), "{said}");
        eprintln!("not compiled for a GPU: there is no compiler for one here");
        return;
    }
    assert!(ptx.contains(".visible .entry step(") && ptx.contains(".visible .global .align 8 .b8 RINGMEM_ABI[8]"), "{ptx}");
    // Ours alone.
    assert_eq!(ptx.matches(".entry ").count(), 1);
}

const STRUCT: usize = 1;
const TABLE: usize = 2;

/// A change of the struct or of its table alone, and what the compiler says.
const ALONE: [(&str, usize, &str, &str, &str); 17] = [
    ("nothing", STRUCT, "", "", ""),
    ("type in the struct", STRUCT, "seconds_left: u32", "seconds_left: i32", "expected `*mut u32`, found `*mut i32`"),
    ("type in the table", TABLE, "seconds_left: u32", "seconds_left: f32", "expected `*mut f32`, found `*mut u32`"),
    (
        "order in the struct",
        STRUCT,
        "    pub mass: f32,\n    pub seconds_left: u32,\n",
        "    pub seconds_left: u32,\n    pub mass: f32,\n",
        "layout table: `Particle.mass` is not at offset 8",
    ),
    (
        "order in the table",
        TABLE,
        "    8  mass: f32, \"the sender\";\n    12 seconds_left: u32, \"the sender\";\n",
        "    12 seconds_left: u32, \"the sender\";\n    8  mass: f32, \"the sender\";\n",
        "layout table: padding without a name before `Particle.seconds_left`",
    ),
    (
        "nested fields change places in the struct",
        STRUCT,
        "position: Vector,\n    pub velocity: Vector",
        "velocity: Vector,\n    pub position: Vector",
        "layout table: `Particle.position` is not at offset 16",
    ),
    (
        "offset in the table",
        TABLE,
        "    12 seconds_left",
        "    16 seconds_left",
        "layout table: `Particle.seconds_left` is not at offset 16",
    ),
    ("size in the table", TABLE, "size 40", "size 48", "layout table: `Particle` is not 48 bytes in size"),
    ("alignment in the table", TABLE, "align 8", "align 16", "layout table: `Particle` is not aligned to 16 bytes"),
    ("alignment in the struct", STRUCT, "align(8)", "align(32)", "layout table: `Particle` is not 40 bytes in size"),
    (
        "padding in the struct",
        STRUCT,
        "    pub mass",
        "    pub _padding: u64,\n    pub mass",
        "layout table: `Particle` is not 40 bytes in size",
    ),
    (
        "padding in the table",
        TABLE,
        "    28 velocity: Vector, \"the sender\";\n",
        "    28 velocity: Vector, \"the sender\";\n    40 _padding: u64, \"nobody\";\n",
        "does not have a field named `_padding`",
    ),
    ("field gone from the struct", STRUCT, "    pub mass: f32,\n", "", "does not have a field named `mass`"),
    (
        "field gone from the table",
        TABLE,
        "    8  mass: f32, \"the sender\";\n",
        "",
        "layout table: padding without a name before `Particle.seconds_left`",
    ),
    ("field renamed in the struct", STRUCT, "mass", "weight", "does not have a field named `mass`"),
    ("nested type in the struct", STRUCT, "position: Vector", "position: [f32; 3]", "expected `*mut Vector`, found `*mut [f32; 3]`"),
    ("nested type in the table", TABLE, "position: Vector", "position: Place", "cannot find type `Place` in this scope"),
];

#[test]
fn a_struct_or_a_table_that_changes_alone_is_refused_by_the_compiler() {
    let members: Vec<String> = ALONE.iter().map(|(case, ..)| package(case)).collect();
    let workspace = workspace("alone", &members);
    for (case, part, from, to, _) in ALONE {
        let mut parts = parts();
        if !from.is_empty() {
            parts[part] = replaced(&parts[part], from, to);
        }
        add_changed(&workspace, case, &parts.concat());
    }
    let mut arguments = vec!["check", "--lib", "--keep-going", "--message-format=json"];
    arguments.extend(members.iter().flat_map(|member| ["-p", member]));
    let output = cargo(&workspace, &arguments);

    let mut outcomes: BTreeMap<String, (bool, String)> = BTreeMap::new();
    for line in text(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let Some(target) = message["target"]["name"].as_str() else { continue };
        let outcome = outcomes.entry(target.replace('_', "-")).or_default();
        match message["reason"].as_str() {
            Some("compiler-artifact") => outcome.0 = true,
            Some("compiler-message") if message["message"]["level"] == "error" => {
                outcome.1 += message["message"]["rendered"].as_str().unwrap();
            }
            _ => {}
        }
    }
    let mut wrong = String::new();
    for (case, .., phrase) in ALONE {
        match outcomes.get(&package(case)) {
            None => panic!("{case} was not compiled:\n{}", text(&output.stderr)),
            Some((compiled, errors)) if *compiled != phrase.is_empty() || !errors.contains(phrase) => {
                write!(wrong, "\n{case}: compiled: {compiled}, and not for `{phrase}`\n{errors}").unwrap();
            }
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// What is replaced, and by what.
type Change = (&'static str, &'static str);

/// A change of struct and table together, and lines of what is said where the other side has not changed. `*` stands for a hash.
const TOGETHER: [(&str, &[Change], &[&str]); 8] = [
    (
        "type",
        &[("seconds_left: u32,\n", "seconds_left: i32,\n"), ("seconds_left: u32, ", "seconds_left: i32, ")],
        &["`Particle`", "  expected    12  seconds_left: u32, 4 bytes, type *", "  got         12  seconds_left: i32, 4 bytes, type *"],
    ),
    (
        "order",
        &[
            ("    pub mass: f32,\n    pub seconds_left: u32,\n", "    pub seconds_left: u32,\n    pub mass: f32,\n"),
            ("    8  mass: f32, \"the sender\";\n    12 seconds_left: u32", "    8  seconds_left: u32, \"the sender\";\n    12 mass: f32"),
        ],
        &[
            "`Particle`",
            "  expected     8  mass: f32, 4 bytes, type *",
            "  got          8  seconds_left: u32, 4 bytes, type *",
            "  expected    12  seconds_left: u32, 4 bytes, type *",
            "  got         12  mass: f32, 4 bytes, type *",
        ],
    ),
    (
        "padding",
        &[
            ("    pub velocity: Vector,\n", "    pub velocity: Vector,\n    pub _padding: u64,\n"),
            ("    28 velocity: Vector, \"the sender\";\n", "    28 velocity: Vector, \"the sender\";\n    40 _padding: u64, \"nobody\";\n"),
            ("size 40", "size 48"),
        ],
        &["`Particle`", "  expected  size 40, align 8", "  got       size 48, align 8", "  got         40  _padding: u64, 8 bytes, type *"],
    ),
    (
        "offset",
        &[
            ("    pub mass: f32,\n", "    pub mass: f32,\n    pub _padding: [u8; 4],\n"),
            ("    pub velocity: Vector,\n", "    pub velocity: Vector,\n    pub _end: [u8; 4],\n"),
            ("    12 seconds_left", "    12 _padding: [u8; 4], \"nobody\";\n    16 seconds_left"),
            ("    16 position", "    20 position"),
            ("    28 velocity: Vector, \"the sender\";\n", "    32 velocity: Vector, \"the sender\";\n    44 _end: [u8; 4], \"nobody\";\n"),
            ("size 40", "size 48"),
        ],
        &["  expected    16  position: Vector, 12 bytes, type *", "  got         16  seconds_left: u32, 4 bytes, type *"],
    ),
    (
        "alignment",
        &[
            ("align(8)", "align(16)"),
            ("size 40, align 8", "size 48, align 16"),
            ("    pub velocity: Vector,\n", "    pub velocity: Vector,\n    pub _padding: u64,\n"),
            ("    28 velocity: Vector, \"the sender\";\n", "    28 velocity: Vector, \"the sender\";\n    40 _padding: u64, \"nobody\";\n"),
        ],
        &["  expected  size 40, align 8", "  got       size 48, align 16"],
    ),
    (
        "field gone",
        &[
            ("    pub mass: f32,\n", ""),
            ("    8  mass: f32, \"the sender\";\n", ""),
            ("    12 seconds_left", "    8  seconds_left"),
            ("    16 position", "    12 position"),
            ("    28 velocity: Vector, \"the sender\";\n", "    24 velocity: Vector, \"the sender\";\n    36 _end: [u8; 4], \"nobody\";\n"),
            ("    pub velocity: Vector,\n", "    pub velocity: Vector,\n    pub _end: [u8; 4],\n"),
        ],
        &["`Particle`", "  expected     8  mass: f32, 4 bytes, type *", "  got          8  seconds_left: u32, 4 bytes, type *"],
    ),
    (
        "nested type renamed",
        &[("Vector", "Place")],
        &[
            "`Vector`",
            "  got       nothing of that name",
            "`Place`",
            "  expected  nothing of that name",
            "  expected    16  position: Vector, 12 bytes, type *",
            "  got         16  position: Place, 12 bytes, type *",
        ],
    ),
    (
        "type in a nested type",
        &[("z: f32,\n", "z: i32,\n"), ("z: f32, ", "z: i32, ")],
        &[
            "`Vector`",
            "  expected     8  z: f32, 4 bytes, type *",
            "  got          8  z: i32, 4 bytes, type *",
            "`Particle`",
            "  expected    16  position: Vector, 12 bytes, type *",
            "  got         16  position: Vector, 12 bytes, type *",
        ],
    ),
];

/// Without the digits of its hashes.
fn pattern(line: &str) -> String {
    match line.split_once("type 0x") {
        Some((before, hash)) if hash.len() == 16 => format!("{before}type *"),
        _ => line.to_owned(),
    }
}

#[test]
fn a_side_that_changes_struct_and_table_is_refused_at_load_with_both_tables() {
    let mut members: Vec<String> = TOGETHER.iter().map(|(case, ..)| package(case)).collect();
    members.push("judge".to_owned());
    let workspace = workspace("together", &members);
    let mut manifest = "[package]\nname = \"judge\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
        particles-kernels.workspace = true\nparticles-shared.workspace = true\nringmem = { workspace = true, features = [\"std\"] }\n"
        .to_owned();
    let mut source = String::from(
        "use ringmem::{Abi, Image, backend::host::HostBackend};\n\
         fn say(case: &str, expected: Abi, abi: Abi) {\n    \
             let backend = HostBackend::builder().device_memory(1 << 16).build().unwrap();\n    \
             println!(\"case {case}\");\n    \
             if let Err(error) = ringmem::stream::Module::load(&backend, &Image { abi, ..particles_kernels::IMAGE }, &expected) { println!(\"{error}\"); }\n\
         }\nfn main() {\n    say(\"nothing\", particles_shared::ABI, particles_shared::ABI);\n",
    );
    for (case, changes, _) in TOGETHER {
        let changed = changes.iter().fold(shared(), |text, (from, to)| {
            assert!(text.contains(from), "{case}: `{from}`");
            text.replace(from, to)
        });
        add_changed(&workspace, case, &changed);
        let (name, library) = (package(case), package(case).replace('-', "_"));
        writeln!(manifest, "{name} = {{ path = \"../{name}\" }}").unwrap();
        writeln!(source, "    say({case:?}, particles_shared::ABI, {library}::ABI);").unwrap();
        writeln!(source, "    say(\"{case}, the other way\", {library}::ABI, particles_shared::ABI);").unwrap();
    }
    // It is shown where the set lists only what contains it.
    let nested = package("type in a nested type").replace('-', "_");
    let alone = |library: &str| format!("Abi::of(ringmem::layout_set!(; {library}::Particle))");
    let (ours, theirs) = (alone("particles_shared"), alone(&nested));
    writeln!(source, "    say(\"a set without the nested type\", const {{ {ours} }}, const {{ {theirs} }});").unwrap();
    write(workspace.join("judge/Cargo.toml"), &manifest);
    write(workspace.join("judge/src/main.rs"), &(source + "}\n"));

    let output = cargo(&workspace, &["run", "--quiet", "-p", "judge"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let about = |case: &str| -> Vec<String> {
        let lines = said.lines().skip_while(|line| *line != format!("case {case}")).skip(1);
        lines.take_while(|line| !line.starts_with("case ")).map(pattern).collect()
    };
    assert!(about("a set without the nested type").contains(&"  got          8  z: i32, 4 bytes, type *".to_owned()), "{said}");
    assert!(said.starts_with("case nothing\ncase "), "what has not changed is loaded:\n{said}");
    for (case, _, expected) in TOGETHER {
        let lines = about(case);
        for line in expected {
            assert!(lines.iter().any(|said| said == line), "{case}: `{line}` is not said:\n{}", lines.join("\n"));
        }
        // The same facts with the sides exchanged.
        let other = about(&format!("{case}, the other way"));
        assert!(other[0].starts_with("the image was compiled with other layouts: ABI 0x"), "{case}: {other:?}");
        assert_eq!(other.len(), lines.len(), "{case}:\n{}\n\n{}", lines.join("\n"), other.join("\n"));
    }
}

#[test]
fn kernels_compiled_with_a_changed_message_do_not_start() {
    let (case, changes, expected) = TOGETHER[1];
    let workspace = workspace("kernels_changed", &[package(case)]);
    add_changed(&workspace, case, &changes.iter().fold(shared(), |text, (from, to)| replaced(&text, from, to)));
    let kernels = workspace.join("kernels/Cargo.toml");
    let manifest = fs::read_to_string(&kernels).unwrap();
    let other = format!("particles-shared = {{ package = \"{0}\", path = \"../{0}\" }}", package(case));
    write(kernels, &replaced(&manifest, "particles-shared.workspace = true", &other));

    let output = cargo(&workspace, &["run", "--quiet"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{said}");
    let lines: Vec<String> = said.lines().map(pattern).collect();
    assert!(lines[0].starts_with("the image was compiled with other layouts: ABI 0x"), "{said}");
    assert_eq!(lines[1..], *expected, "{said}");
}

/// The lock file that is checked in, in which nothing is amended.
#[test]
fn the_example_s_own_versions_are_locked() {
    let output = command(&repository().join("examples/workspace"), &["tree", "--locked"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// What README says of a manifest is a manifest: every package and feature in it is there.
#[test]
fn what_readme_puts_into_a_manifest_is_there() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, block) = readme.split_once("```toml\n").expect("a manifest");
    let (block, _) = block.split_once("```").unwrap();
    let mut seen = 0;
    for line in block.lines().filter(|line| line.starts_with("ringmem")) {
        let (_, path) = line.split_once("path = \"../ringmem").unwrap_or_else(|| panic!("{line}"));
        let folder = repository().join(path.split_once('"').unwrap().0.trim_start_matches('/'));
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = {:?}\n", line.split(' ').next().unwrap())), "{line}");
        let features = line.split_once("features = [").map_or("", |(_, list)| list.split_once(']').unwrap().0);
        for feature in features.split(", ").filter(|feature| !feature.is_empty()) {
            assert!(manifest.contains(&format!("\n{} = [", feature.trim_matches('"'))), "{feature}: {line}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{block}");
}
