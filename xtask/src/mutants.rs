//! Breaks the code on purpose: every break in `tests/breaks` must fail its test.
//!
//! One build contains all breaks, each behind an environment switch. cargo-mutants cannot make them: weaker orderings, lost drops, wrong lock scopes.
//!
//! [`run`] takes minutes to build, and up to an hour. [`check`] tries no break: it finds those that changes of code or tests have left behind.

mod list;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::list::{Break, Test};
use crate::{Failure, features, read};

/// Many breaks show as endless waits.
const LIMIT: Duration = Duration::from_secs(60);

/// A test that watches a thread not returning sees nothing if the thread was not scheduled meanwhile: it fails to find its break, and never fails without one.
/// A break has survived if its test passes this often.
const RUNS: u32 = 5;

const SWITCH: &str = "RINGMEM_BREAK";

/// Each break is of code that is there and compiles, and its test is in a log of passed tests.
pub fn check(log: &Path) -> Result<(), Failure> {
    let breaks = list::read()?;
    tree::write(&breaks)?;
    let mut command = in_tree(&["check", "--lib"]);
    for package in breaks.iter().map(|found| tree::package_of(&found.file)).collect::<Result<BTreeSet<_>, _>>()? {
        command.args(["-p", &package]);
    }
    compiled(&mut command)?;
    let log = read(log)?;
    let passed = features::passed(&log);
    let missing: Vec<String> = breaks
        .iter()
        .filter(|found| !passed.contains(&*found.test.name))
        .map(|found| format!("{}: {} is not in the log of passed tests", found.name, found.test))
        .collect();
    if missing.is_empty() {
        println!("{} breaks compile, and their tests pass without them", breaks.len());
        return Ok(());
    }
    Err(missing.join("\n").into())
}

pub fn run(area: Option<&str>) -> Result<(), Failure> {
    let mut breaks = list::read()?;
    tree::write(&breaks)?;
    if let Some(area) = area {
        breaks.retain(|found| found.name.starts_with(area));
        if breaks.is_empty() {
            return Err(format!("no break begins with `{area}`").into());
        }
    }
    let begin = Instant::now();
    let programs = build(&breaks)?;
    let built = begin.elapsed();
    for (key, tests) in by_program(&breaks) {
        unbroken(program(&programs, &key)?, &Vec::from_iter(tests))?;
    }
    println!("built in {:.0} s, passed unbroken in {:.0} s", built.as_secs_f64(), (begin.elapsed() - built).as_secs_f64());
    let survivors = tried(&breaks, &programs)?;
    println!("{} of {} breaks found", breaks.len() - survivors.len(), breaks.len());
    if survivors.is_empty() { Ok(()) } else { Err(survivors.join("\n").into()) }
}

/// Tries one break after the other, on each core. Returns those that survived.
fn tried(breaks: &[Break], programs: &Programs) -> Result<Vec<String>, Failure> {
    let next = AtomicUsize::new(0);
    let on_one_core = || {
        let mut survivors = Vec::new();
        while let Some(found) = breaks.get(next.fetch_add(1, Relaxed)) {
            let begun = Instant::now();
            // A boxed error stays in its thread.
            let run = killed(programs, found).map_err(|failure| failure.to_string())?;
            let late = run.filter(|run| *run > 1).map(|run| format!(", in run {run}")).unwrap_or_default();
            let verdict = if run.is_some() { "found   " } else { "SURVIVED" };
            println!("{verdict} {:6.2} s  {}{late}", begun.elapsed().as_secs_f64(), found.name);
            if run.is_none() {
                survivors.push(format!("{}: {} passes", found.name, found.test));
            }
        }
        Ok::<_, String>(survivors)
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let started: Vec<_> = (0..cores).map(|_| scope.spawn(on_one_core)).collect();
        let mut survivors = Vec::new();
        for core in started {
            survivors.extend(core.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(survivors)
    })
}

type Programs = BTreeMap<(String, String), Program>;

struct Program {
    executable: PathBuf,
    package: PathBuf,
}

fn by_program(breaks: &[Break]) -> BTreeMap<(String, String), BTreeSet<&str>> {
    let mut found = BTreeMap::<_, BTreeSet<&str>>::new();
    for Test { package, program, name } in breaks.iter().map(|found| &found.test) {
        found.entry((package.clone(), program.clone())).or_default().insert(name);
    }
    found
}

/// The C interface is built by itself: with the feature `defmt`, which the others turn on, its shared library cannot be linked.
const ALONE: &str = "ringmem-capi";

fn build(breaks: &[Break]) -> Result<Programs, Failure> {
    let (alone, others): (Vec<_>, Vec<_>) = by_program(breaks).into_keys().partition(|(package, _)| package == ALONE);
    let mut programs = Programs::new();
    for wanted in [others, alone].iter().filter(|wanted| !wanted.is_empty()) {
        programs.extend(build_together(wanted)?);
    }
    Ok(programs)
}

fn in_tree(words: &[&str]) -> Command {
    let mut command = crate::cargo();
    command.args(words).args(["--all-features", "--quiet", "--message-format=json"]).current_dir(tree::path());
    // What the tree depends on is built once for it and for the product.
    command.env("CARGO_TARGET_DIR", tree::target()).env("CARGO_BUILD_BUILD_DIR", crate::built());
    command
}

/// Returns cargo's messages. The switches cause warnings, which are not shown.
fn compiled(command: &mut Command) -> Result<Vec<Value>, Failure> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let messages = crate::messages(&output.stdout);
    if output.status.success() {
        return Ok(messages);
    }
    let is_error = |message: &&Value| message["message"]["level"] == "error";
    let errors: Vec<&str> = messages.iter().filter(is_error).filter_map(|message| message["message"]["rendered"].as_str()).collect();
    Err(format!("the broken tree does not compile:\n{}", errors.concat()).into())
}

fn build_together(wanted: &[(String, String)]) -> Result<Programs, Failure> {
    let mut command = in_tree(&["test", "--no-run"]);
    for package in wanted.iter().map(|(package, _)| package).collect::<BTreeSet<_>>() {
        command.args(["-p", package]);
    }
    for program in wanted.iter().map(|(_, program)| program.as_str()).collect::<BTreeSet<_>>() {
        match program {
            "lib" => command.arg("--lib"),
            name => command.args(["--test", name]),
        };
    }
    let mut programs = Programs::new();
    for message in compiled(&mut command)?.iter().filter(|message| message["profile"]["test"] == true) {
        let (Some(executable), Some(manifest)) = (message["executable"].as_str(), message["manifest_path"].as_str()) else { continue };
        let manifest = PathBuf::from(manifest);
        let package = tree::package(&manifest)?;
        let kind = message["target"]["kind"][0].as_str();
        let program = if kind == Some("test") { message["target"]["name"].as_str().unwrap_or_default() } else { "lib" };
        let directory = manifest.parent().ok_or("a manifest has a directory")?.to_owned();
        programs.insert((package, program.to_owned()), Program { executable: executable.into(), package: directory });
    }
    Ok(programs)
}

fn program<'p>(programs: &'p Programs, key: &(String, String)) -> Result<&'p Program, Failure> {
    Ok(programs.get(key).ok_or_else(|| format!("no test program `{}` in {}", key.1, key.0))?)
}

impl Program {
    fn start(&self, tests: &[&str], number: Option<u32>, output: Stdio) -> Result<Child, Failure> {
        let mut command = Command::new(&self.executable);
        command.arg("--exact").args(tests).current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command.env_remove(SWITCH).envs(number.map(|number| (SWITCH, number.to_string())));
        Ok(command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn()?)
    }
}

fn unbroken(program: &Program, tests: &[&str]) -> Result<(), Failure> {
    let output = program.start(tests, None, Stdio::piped())?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = tests
        .iter()
        .filter(|name| text.contains(&format!("test {name} ... ok")) || text.contains(&format!("test {name} - should panic ... ok")));
    if output.status.success() && passed.clone().count() == tests.len() {
        return Ok(());
    }
    let passed: Vec<_> = passed.collect();
    let failed: Vec<_> = tests.iter().filter(|name| !passed.contains(name)).copied().collect();
    Err(format!("missing, or failed without a break: {}", failed.join(", ")).into())
}

/// Returns the number of the first run that failed.
fn killed(programs: &Programs, found: &Break) -> Result<Option<u32>, Failure> {
    for run in 1..=RUNS {
        if !passes(programs, found)? {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

fn passes(programs: &Programs, found: &Break) -> Result<bool, Failure> {
    let Test { package, program: name, .. } = &found.test;
    let mut child = program(programs, &(package.clone(), name.clone()))?.start(&[&found.test.name], Some(found.number), Stdio::null())?;
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}
