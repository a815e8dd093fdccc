//! What must not compile does not, and says why.
//!
//! 1. `tests/ui/NAME.rs` begins with `//! accepted`, and compiles, or with `//! refused: PHRASE`, and an error contains the phrase.
//! 2. A refused case names the accepted one that it differs from, by two lines at most: it is refused for its drift and nothing else.
//!
//! One phrase and not the whole message, because whole messages change with the compiler. One package with a program per case, so that the
//! dependencies are compiled once.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// A file of `tests/ui`.
struct Case {
    name: String,
    path: PathBuf,
    /// What the refusal says; `None` for a case that is accepted.
    phrase: Option<String>,
    /// The accepted case that a refused one differs from.
    control: Option<String>,
    /// Lines of code, without the head.
    lines: Vec<String>,
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = fs::read_dir(repository().join("tests/ui"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let (head, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("//!"));
            let say = |what: &str| head.iter().find_map(|line| line.strip_prefix(what)).map(str::to_owned);
            let phrase = say("//! refused: ");
            assert!(phrase.is_some() || head == ["//! accepted"], "{}: neither accepted nor refused", path.display());
            Case {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                phrase,
                control: say("//! differs from: "),
                lines: lines.into_iter().map(str::to_owned).collect(),
                path,
            }
        })
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// What the compiler did with a case.
#[derive(Default)]
struct Outcome {
    compiled: bool,
    errors: String,
}

/// Checks all cases at once: what became of each.
fn check(cases: &[Case]) -> HashMap<String, Outcome> {
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui");
    fs::create_dir_all(&package).unwrap();
    let (ringmem, layouts) = (repository(), repository().join("layouts"));
    let mut manifest = format!(
        "[package]\nname = \"ringmem-ui\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         ringmem = {{ path = {ringmem:?}, features = [\"std\"] }}\n\
         ringmem-layouts = {{ path = {layouts:?}, default-features = false }}\n\
         zerocopy = {{ version = \"0.8\", default-features = false, features = [\"derive\"] }}\n"
    );
    for Case { name, path, .. } in cases {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions that the workspace has, which are there without a network.
    fs::copy(repository().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();

    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(cargo)
        // A full build: what a ring asserts of its parameters is met where code is made for them.
        .args(["build", "--offline", "--keep-going", "--bins", "--message-format=json"])
        .current_dir(&package)
        .env("CARGO_TARGET_DIR", package.join("target"))
        // Flags that a sanitizer run was built with are none of these programs' business.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();

    let mut outcomes: HashMap<String, Outcome> = HashMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        if message["target"]["kind"][0] != "bin" {
            continue;
        }
        let outcome = outcomes.entry(message["target"]["name"].as_str().unwrap().to_owned()).or_default();
        match message["reason"].as_str() {
            Some("compiler-artifact") => outcome.compiled = true,
            Some("compiler-message") if message["message"]["level"] == "error" => {
                outcome.errors += message["message"]["rendered"].as_str().unwrap();
            }
            _ => {}
        }
    }
    assert!(!outcomes.is_empty(), "cargo checked nothing:\n{}", String::from_utf8_lossy(&output.stderr));
    outcomes
}

#[test]
fn what_must_not_compile_is_refused_for_the_reason_it_names() {
    let cases = cases();
    let outcomes = check(&cases);
    let mut wrong = String::new();
    for Case { name, phrase, .. } in &cases {
        let Some(Outcome { compiled, errors }) = outcomes.get(name) else {
            write!(wrong, "\n{name}: not compiled at all\n").unwrap();
            continue;
        };
        match phrase {
            None if !compiled => write!(wrong, "\n{name}: should compile\n{errors}").unwrap(),
            Some(_) if *compiled => write!(wrong, "\n{name}: compiles, and must not\n").unwrap(),
            Some(phrase) if !errors.contains(phrase) => write!(wrong, "\n{name}: refused, but not with `{phrase}`\n{errors}").unwrap(),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_refused_case_is_two_lines_from_one_that_compiles() {
    let cases = cases();
    let by_name: HashMap<&str, &Case> = cases.iter().map(|case| (case.name.as_str(), case)).collect();
    for Case { name, control, lines, .. } in cases.iter().filter(|case| case.phrase.is_some()) {
        let control = by_name[control.as_deref().unwrap_or_else(|| panic!("{name} names no control"))];
        assert!(control.phrase.is_none(), "{name} differs from what is itself refused");
        // Lines counted as a bag, so that two that changed places differ in nothing but order.
        let mut surplus: BTreeMap<&str, i32> = BTreeMap::new();
        for line in lines {
            *surplus.entry(line).or_default() += 1;
        }
        for line in &control.lines {
            *surplus.entry(line).or_default() -= 1;
        }
        let [more, fewer] = [1, -1].map(|sign| surplus.values().map(|count| (count * sign).max(0)).sum::<i32>());
        assert!(more <= 2 && fewer <= 2, "{name} differs from its control by more than its drift: {surplus:?}");
        assert_ne!(lines, &control.lines, "{name} is its control");
    }
}
