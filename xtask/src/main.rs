//! Development tasks: `cargo xtask COMMAND`.

mod bare_metal;
mod check;
mod compare;
mod doc_kernels;
mod driver_double;
mod features;
mod gpu_bundle;
mod header;
mod image;
mod instructions;
mod layouts;
mod loops;
mod module;
mod mutants;
mod packages;
mod planted;
mod ptxas;
mod report;
mod results;
mod sass;
mod valgrind;

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use ringmem::streaming::FileSink;
use serde_json::Value;

type Failure = Box<dyn Error>;

const USAGE: &str = "\
cargo xtask COMMAND

  ptx                       compiles kernels-rs for nvptx64 and writes kernels-rs/ptx/ringmem.ptx
  ptx --check               compiles it and compares, writes nothing
  ptx-check [FILE]          memory operations, traps and local memory of the PTX against kernels-rs/ptx/memory-operations.txt
  ptx-check --bless [FILE]  rewrites that table
  ptx-check --planted       compiles a kernel whose ordering is lost and demands that the check finds it
  doc-kernels               compiles the kernels in code blocks of READMEs, guide and rustdoc for nvptx64
  ptxas [FILE]              assembles the PTX for sm_75 to sm_100; demands no stack frame and no spills, and of kernels-rs, where nvdisasm is
                            there, few instructions a batch
  features [LOG]            demands that the tests of docs/internals/features.md exist and, if a log of `cargo test` is named, that they passed, and that
                            the doctests of ringmem were merged
  coverage FILE             demands 95 % of the product's lines, and 90 % of each folder's, of a JSON summary of `cargo llvm-cov`
  gpu-results FILE [PART..] demands of the bundle's results.json that these parts passed; without names, that all were skipped for a reason
  rows FILE                 demands that a bench's output is rows in JSON
  layouts                   writes docs/guide/layouts.md and the pictures in docs/guide/layouts
  layouts --check           compares them with the structs, writes nothing
  header                    writes capi/include/ringmem.h
  header --check            compares it with the functions, writes nothing
  gpu-bundle                makes target/gpu-bundle: programs, PTX and run.sh for a machine with a GPU and nothing else
  gpu-bundle --try          makes it, and runs it without a driver and on the driver double
  gpu-bundle --try --unoptimised
                            the same, of programs as the tests build them
  driver-double FOLDER      links the driver double as FOLDER/libcuda.so.1, for LD_LIBRARY_PATH
  packages                  builds each package from its own archive, and demands its licences, no files of tests, and each crate in one version
  valgrind                  runs the tests of one thread of ringmem-layouts under valgrind: no uninitialised reads, no leaks
  compare [REVISION]        runs the benches rings, memory and messages of this tree and another in turn, some twenty minutes; by default of the last
                            tag, else of the commit before; fails where a row of ours takes more than 1.5 times as long
  instructions              counts the instructions of the hot paths; fails where one takes over 2 % more than in benches/instructions.txt
  instructions --bless      rewrites that table
  report [--quick]          runs all benches; keeps the rows in docs/internals/results and writes docs/performance.md, its charts and the README's table
  report [--quick] BENCH... runs some benches and prints their tables, writes nothing
  report --render           writes these from the newest results, without a run
  report --check            compares them with the newest results, writes nothing
  mutants [PREFIX]          runs the breaks of tests/breaks: each must fail the test that it names
  mutants --check LOG       tries none: each must be of code that is there and compiles, and the log of `cargo test` must have its test
  bare-metal                runs the rings on a Cortex-M4 under QEMU, between an interrupt and main, and prints the bytes of their code

  RINGMEM_RUSTC, RINGMEM_CARGO   the compiler for `ptx`, `doc-kernels` and `bare-metal`, before rustup's nightly with rust-src and Debian's rustc-web
  RINGMEM_PTXAS                  the assembler for `ptxas`, before PATH and Python's site-packages
  RINGMEM_TRACES                 a folder of recorded traces for `report` and its bench `fit`, as an absolute path";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["ptx"] => image::write(),
        ["ptx", "--check"] => image::compare(),
        ["ptx-check"] => check_file(&image::path()),
        ["ptx-check", "--bless"] => bless_file(&image::path()),
        ["ptx-check", "--planted"] => planted::run(),
        ["ptx-check", "--bless", file] => bless_file(file.as_ref()),
        ["ptx-check", file] if !file.starts_with('-') => check_file(file.as_ref()),
        ["doc-kernels"] => doc_kernels::run(),
        ["features"] => features::check(None),
        ["features", log] if !log.starts_with('-') => features::check(Some(log.as_ref())),
        ["coverage", file] => results::coverage(file.as_ref()),
        ["gpu-results", file, ref parts @ ..] => results::gpu(file.as_ref(), parts),
        ["rows", file] => results::rows(file.as_ref()),
        ["layouts"] => layouts::write(),
        ["layouts", "--check"] => layouts::compare(),
        ["header"] => header::write(),
        ["header", "--check"] => header::compare(),
        ["gpu-bundle"] => gpu_bundle::run(),
        ["gpu-bundle", "--try"] => gpu_bundle::try_out(true),
        ["gpu-bundle", "--try", "--unoptimised"] => gpu_bundle::try_out(false),
        ["driver-double", folder] if !folder.starts_with('-') => driver_double::link(folder.as_ref()),
        ["packages"] => packages::run(),
        ["valgrind"] => valgrind::run(),
        ["compare"] => compare::run(None),
        ["compare", revision] if !revision.starts_with('-') => compare::run(Some(revision)),
        ["instructions"] => instructions::check(),
        ["instructions", "--bless"] => instructions::bless(),
        ["report", "--render"] => report::render(),
        ["report", "--check"] => report::check(),
        ["report", "--quick", ref names @ ..] => report::run(true, names),
        ["report", ref names @ ..] => report::run(false, names),
        ["mutants"] => mutants::run(None),
        ["mutants", "--check", log] if !log.starts_with('-') => mutants::check(log.as_ref()),
        ["mutants", area] if !area.starts_with('-') => mutants::run(Some(area)),
        ["bare-metal"] => bare_metal::run(),
        ["ptxas"] => ptxas::run(&image::path()),
        ["ptxas", file] if !file.starts_with('-') => ptxas::run(file.as_ref()),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("unknown: {}\n\n{USAGE}", arguments.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Cargo's folder of outputs.
fn built() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Separate from cargo's own: neither waits for the other's lock.
fn target() -> PathBuf {
    built().join("ptx")
}

/// This cargo, in the root of the workspace.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Builds the packages and targets that the tests build: with others, cargo would build all of them once more.
const OF_TESTS: [&str; 5] = ["build", "--quiet", "--all-features", "--bins", "--examples"];

/// What a cargo with these arguments has built, now or before, as its messages.
fn artifacts(arguments: &[&str]) -> Result<Vec<Value>, Failure> {
    let output = cargo().args(arguments).arg("--message-format=json").stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", arguments.join(" "), output.status).into());
    }
    Ok(messages(&output.stdout))
}

/// The messages of a cargo with `--message-format=json`.
fn messages(stdout: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs a command, which must succeed; prints it, and how long it took.
fn execute(command: &mut Command) -> Result<(), Failure> {
    run_with(command, &[0])
}

/// As [`execute`], with other codes of success.
fn run_with(command: &mut Command, codes: &[i32]) -> Result<(), Failure> {
    let text = text_of(command);
    println!("+ {text}");
    let begun = Instant::now();
    let status = command.status().map_err(|error| format!("{text}: {error}"))?;
    let seconds = begun.elapsed().as_secs();
    if seconds >= 3 {
        println!("  took {seconds} s");
    }
    if status.code().is_some_and(|code| codes.contains(&code)) { Ok(()) } else { Err(format!("{text}: {status}").into()) }
}

/// The variables that it sets, and its words.
fn text_of(command: &Command) -> String {
    let settings = command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.display(), value?.display())));
    let words = [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.display().to_string());
    settings.chain(words).collect::<Vec<_>>().join(" ")
}

fn answer(program: &Path, arguments: &[impl AsRef<OsStr>]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(ringmem_ptx_builder::output(command)?)
}

/// Says that a check is left out, which the machine of a developer permits and CI does not.
fn skipped(why: &str) -> Result<(), Failure> {
    println!("{why}");
    if std::env::var_os("CI").is_some() { Err("CI leaves no check out".into()) } else { Ok(()) }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut sink = FileSink::create(path)?;
    sink.write_all(text.as_bytes())?;
    Ok(sink.commit()?)
}

fn table_of(file: &Path) -> PathBuf {
    file.with_file_name("memory-operations.txt")
}

fn check_file(file: &Path) -> Result<(), Failure> {
    let table = check::Table::parse(&read(&table_of(file))?)?;
    let module = check::Module::parse(&read(file)?)?;
    report(file, &module, check::rules(&module).into_iter().chain(check::against(&module, &table)).collect())
}

fn bless_file(file: &Path) -> Result<(), Failure> {
    let module = check::Module::parse(&read(file)?)?;
    report(file, &module, check::rules(&module))?;
    let table = table_of(file);
    write(&table, &check::Table::of(&module).to_string())?;
    println!("wrote {}: read it before you commit it, `atom.gpu` and `trap` above all", table.display());
    Ok(())
}

fn report(file: &Path, module: &check::Module, findings: Vec<check::Finding>) -> Result<(), Failure> {
    if !findings.is_empty() {
        let lines: Vec<String> = findings.iter().map(|finding| format!("{}: {finding}", file.display())).collect();
        return Err(lines.join("\n").into());
    }
    print!("{}", check::Table::of(module));
    println!("RINGMEM_ABI {:#018x}", module.abi.expect("its absence is a finding"));
    let functions = module.functions.iter().filter(|function| !function.entry).count();
    println!("{}: {} kernels, {functions} functions left uninlined: ok", file.display(), module.functions.len() - functions);
    Ok(())
}
