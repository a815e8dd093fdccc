//! Breaks the code on purpose: every break in `tests/breaks` must fail its test.
//!
//! One build contains all breaks, each behind an environment switch. cargo-mutants cannot make them: weaker orderings, lost drops, wrong lock scopes.

mod list;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use self::list::{Break, Test};
use crate::Failure;

/// Many breaks show as endless waits.
const LIMIT: Duration = Duration::from_secs(60);

const SWITCH: &str = "RINGMEM_BREAK";

pub fn run(area: Option<&str>, sample: Option<(Duration, u64)>) -> Result<(), Failure> {
    let mut breaks = list::read()?;
    tree::write(&breaks)?;
    if let Some(area) = area {
        breaks.retain(|found| found.name.starts_with(area));
        if breaks.is_empty() {
            return Err(format!("no break begins with `{area}`").into());
        }
    }
    let begin = Instant::now();
    if let Some((_, seed)) = sample {
        println!("seed {seed}");
        shuffle(&mut breaks, seed);
    }
    let programs = build(&breaks)?;
    let program = |key: &(String, String)| programs.get(key).ok_or_else(|| format!("no test program `{}` in {}", key.1, key.0));
    let built = begin.elapsed();
    for (key, tests) in by_program(&breaks) {
        unbroken(program(&key)?, &Vec::from_iter(tests))?;
    }
    println!("built in {:.0} s, passed unbroken in {:.0} s", built.as_secs_f64(), (begin.elapsed() - built).as_secs_f64());
    let begin = Instant::now();
    let fits = |_: &Break| sample.is_none_or(|(budget, _)| begin.elapsed() < budget);
    let survivors = on_each_core(&breaks, fits, |found| {
        let started = Instant::now();
        let is_killed = killed(program(&(found.test.package.clone(), found.test.program.clone()))?, found)?;
        println!("{} {:6.2} s  {}", if is_killed { "found   " } else { "SURVIVED" }, started.elapsed().as_secs_f64(), found.name);
        Ok((!is_killed).then(|| format!("{}: {} passes", found.name, found.test)))
    })?;
    let count = survivors.len();
    let survivors: Vec<String> = survivors.into_iter().flatten().collect();
    println!("{} of {count} breaks found; {} listed", count - survivors.len(), breaks.len());
    if survivors.is_empty() { Ok(()) } else { Err(survivors.join("\n").into()) }
}

/// Does the work of one item after the other, on each core, until one is not wanted or fails.
fn on_each_core<T: Sync, R: Send>(
    items: &[T],
    is_wanted: impl Fn(&T) -> bool + Sync,
    work: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let next = AtomicUsize::new(0);
    let of_one_core = || {
        let mut done = Vec::new();
        while let Some(item) = items.get(next.fetch_add(1, Relaxed)).filter(|item| is_wanted(item)) {
            // A boxed error stays in its thread.
            done.push(work(item).map_err(|failure| failure.to_string())?);
        }
        Ok::<_, String>(done)
    };
    let of_each = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let started: Vec<_> = (0..cores).map(|_| scope.spawn(of_one_core)).collect();
        started.into_iter().map(|core| core.join().unwrap_or_else(|panic| resume_unwind(panic))).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(of_each.into_iter().flatten().collect())
}

fn shuffle(breaks: &mut [Break], seed: u64) {
    breaks.sort_by_cached_key(|found| {
        let mut word = seed ^ u64::from(found.number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    });
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

fn build(breaks: &[Break]) -> Result<Programs, Failure> {
    let wanted: Vec<(String, String)> = by_program(breaks).into_keys().collect();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--no-run", "--all-features", "--quiet", "--message-format=json"]).current_dir(tree::path());
    command.env("CARGO_TARGET_DIR", tree::target()).env("CARGO_BUILD_BUILD_DIR", tree::shared());
    for package in wanted.iter().map(|(package, _)| package).collect::<BTreeSet<_>>() {
        command.args(["-p", package]);
    }
    for program in wanted.iter().map(|(_, program)| program.as_str()).collect::<BTreeSet<_>>() {
        match program {
            "lib" => command.arg("--lib"),
            name => command.args(["--test", name]),
        };
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let messages: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let errors: Vec<&str> = messages.iter().filter_map(|message| message["message"]["rendered"].as_str()).collect();
        return Err(format!("the broken tree does not compile:\n{}", errors.concat()).into());
    }
    let mut programs = Programs::new();
    for message in messages.iter().filter(|message| message["profile"]["test"] == true) {
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

fn killed(program: &Program, found: &Break) -> Result<bool, Failure> {
    let mut child = program.start(&[&found.test.name], Some(found.number), Stdio::null())?;
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(!status.success());
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Ok(true)
}
