//! Programs in C, C++ and Python over the shared and the static library.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ringmem_driver_double::libraries;

use crate::rig::ended;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pools");
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// The library that cargo built for these tests.
fn library(extension: &str) -> PathBuf {
    let program = env::current_exe().expect("this program");
    let path = program.parent().expect("a folder").join(format!("libringmem_capi.{extension}"));
    assert!(path.exists(), "{}", path.display());
    path
}

/// Compiles a program; returns its path.
fn compiled(compiler: &str, arguments: &[&str], source: &str, link: &[&Path]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pools");
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join(format!("{source}.{}", link.len()));
    let mut command = Command::new(compiler);
    command.args(arguments).args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-I", HEADERS]).arg(Path::new(SOURCES).join(source));
    command.args(link).args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&program);
    let output = command.output().unwrap_or_else(|error| panic!("this test needs {compiler} ({error})"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program on the driver double.
fn run(mut command: Command) -> (String, String) {
    command.env("LD_LIBRARY_PATH", libraries().expect("the double is built")).env("RINGMEM_DOUBLE_LEAKS", "1");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child");
    let Output { status, stdout, stderr } = ended(child);
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success() && !said[1].contains("violation"), "{status}: {said:?}");
    let [out, err] = said;
    (out, err)
}

#[test]
fn a_c_program_uses_a_pool_of_either_library() {
    let shared = library("so");
    let rpath = format!("-Wl,-rpath,{}", shared.parent().expect("a folder").display());
    let programs = [
        compiled("cc", &["-std=c11", "-g", &rpath], "pool.c", &[&shared]),
        compiled("cc", &["-std=c11", "-g"], "pool.c", &[&library("a"), Path::new("-lc")]),
    ];
    for (program, devices) in programs.iter().flat_map(|program| ["simulated", "cuda"].map(|devices| (program, devices))) {
        let mut command = Command::new(program);
        command.arg(devices);
        let (out, _) = run(command);
        let expected = "out of memory: 33 MiB requested, more than the limit of the pool, 32 MiB\n\
                        reused 1, 1 live, 2 allocations\n";
        assert_eq!(out, expected, "{devices}");
    }
}

#[test]
fn a_cpp_program_gets_failures_as_exceptions_and_may_unload() {
    let program = compiled("g++", &["-std=c++17", "-g"], "torch.cpp", &[]);
    let mut command = Command::new(program);
    command.arg(library("so")).env("RINGMEM_TORCH", "limit=64MiB");
    let (out, err) = run(command);
    let lines: Vec<&str> = out.lines().collect();
    let facts = [
        "too much: out of memory: 1 TiB requested, more than the limit of the pool, 64 MiB",
        "device: no device 7",
        "graph: CUDA graphs and memory pools",
        "unloaded: 0",
    ];
    assert!(lines.len() == 4 && lines.iter().zip(facts).all(|(line, fact)| line.starts_with(fact)), "{out}{err}");
}

#[test]
fn a_python_program_uses_a_pool() {
    let mut command = Command::new("python3");
    command.arg(Path::new(SOURCES).join("pool.py")).arg(library("so"));
    let (out, err) = run(command);
    let lines: Vec<&str> = out.lines().collect();
    let facts = ["out of memory: out of memory: 9 MiB requested", "busy: the pool has 1 live block of 1000 bytes"];
    assert!(lines.len() == 2 && lines.iter().zip(facts).all(|(line, fact)| line.starts_with(fact)), "{out}{err}");
}

/// The lines run as they stand in the guide, with modules in the place of PyTorch and CuPy.
#[test]
fn the_lines_of_the_guide_select_the_allocator() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/python.md")).expect("the guide");
    let blocks: Vec<&str> = guide.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [torch, figures, cupy] = blocks[..] else { panic!("{blocks:?}") };
    assert!(torch.trim().lines().count() <= 10, "ten lines at most");
    let path = library("so");
    for (lines, expected) in [
        (torch, "torch ['begin_allocate_to_pool', 'init_fn', 'memory_fraction_fn', 'record_stream_fn', 'reset_fn']\n"),
        (figures, "0 0 0.0\n"),
        (cupy, "cupy\n"),
    ] {
        let mut command = Command::new("python3");
        let lines = lines.replace("target/release/libringmem_capi.so", path.to_str().expect("UTF-8")).replace("pools.json", "/dev/null");
        command.args(["-B", "-c", &lines]).env("PYTHONPATH", Path::new(SOURCES).join("fake")).env("RINGMEM_TORCH", "simulated=64MiB");
        let (out, err) = run(command);
        assert_eq!(out, expected, "{err}");
    }
}

/// A Python with NumPy 2.1 or later: that of `RINGMEM_PYTHON`, or the one on the path.
fn python_with_numpy() -> Option<String> {
    let has_numpy = |python: &String| {
        let asked = "import numpy; raise SystemExit(tuple(map(int, numpy.__version__.split('.')[:2])) < (2, 1))";
        let output = Command::new(python).args(["-c", asked]).output();
        output.is_ok_and(|output| output.status.success())
    };
    env::var("RINGMEM_PYTHON").into_iter().chain(["python3".to_owned()]).find(has_numpy)
}

#[test]
fn a_python_program_shares_memory_with_numpy() {
    let Some(python) = python_with_numpy() else {
        println!("left out: neither RINGMEM_PYTHON nor python3 has NumPy 2.1");
        return;
    };
    for devices in ["simulated", "cuda"] {
        let mut command = Command::new(&python);
        command.arg(Path::new(SOURCES).join("arrays.py")).arg(library("so")).arg(devices);
        let (out, err) = run(command);
        assert!(out.starts_with("NumPy 2"), "{devices}: {out}{err}");
    }
}
