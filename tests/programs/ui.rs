//! Programs that must not compile, and their messages.
//!
//! 1. `tests/ui/NAME.rs` compiles. `tests/ui/NAME.cases` changes its lines; each changed program is rejected with one
//!    phrase:
//!
//!    ```text
//!    name_of_the_case: phrase
//!    -a line of the program, which it has once
//!    +the line in its place
//!    ^the line that the error with the phrase points at, if that matters
//!    =the most lines of the error, if it must be the only one
//!    ```
//! 2. A case changes at most four lines, so these are the reason.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

struct Case {
    name: String,
    program: Vec<String>,
    phrase: Option<String>,
    line: Option<String>,
    max_lines: Option<usize>,
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in fs::read_dir(repository().join("tests/ui")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            cases.push(Case {
                name: name.to_owned(),
                program: text.lines().map(str::to_owned).collect(),
                phrase: None,
                line: None,
                max_lines: None,
            });
            continue;
        }
        let program = fs::read_to_string(path.with_extension("rs")).unwrap();
        let program: Vec<&str> = program.lines().collect();
        cases.extend(text.split("\n\n").map(|case| changed(case.trim_end_matches('\n'), &program)));
    }
    cases
}

fn changed(text: &str, program: &[&str]) -> Case {
    let (head, changes) = text.split_once('\n').unwrap();
    let (name, phrase) = head.split_once(": ").unwrap_or_else(|| panic!("no phrase: {head}"));
    let mut hunks: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    let (mut line, mut max_lines) = (None, None);
    for change in changes.lines() {
        match change.split_at(1) {
            ("-", old) => match hunks.last_mut().filter(|(_, new)| new.is_empty()) {
                Some(hunk) => hunk.0.push(old),
                None => hunks.push((vec![old], Vec::new())),
            },
            ("+", new) => hunks.last_mut().unwrap_or_else(|| panic!("{name}: adds before it removes")).1.push(new),
            ("^", pointed) => line = Some(pointed.trim().to_owned()),
            ("=", count) => max_lines = Some(count.parse().unwrap()),
            _ => panic!("{name}: `{change}` begins with none of -, +, ^ and ="),
        }
    }
    assert!(hunks.iter().map(|(old, _)| old.len()).sum::<usize>() <= 4, "{name} changes more than four lines");
    let mut lines = program.to_vec();
    // Backwards: an earlier hunk does not move or repeat later lines.
    for (old, new) in hunks.iter().rev() {
        let places: Vec<usize> = lines.windows(old.len()).enumerate().filter(|(_, window)| window == old).map(|(place, _)| place).collect();
        let [place] = places[..] else { panic!("{name}: the program has these lines {} times: {old:#?}", places.len()) };
        lines.splice(place..place + old.len(), new.iter().copied());
    }
    let program = lines.into_iter().map(str::to_owned).collect();
    Case { name: name.to_owned(), program, phrase: Some(phrase.to_owned()), line, max_lines }
}

#[derive(Default)]
struct Outcome {
    compiled: bool,
    errors: Vec<Value>,
}

fn check(cases: &[Case]) -> HashMap<String, Outcome> {
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui");
    fs::create_dir_all(&package).unwrap();
    let (ringmem, layouts, kernels) = (repository(), repository().join("layouts"), repository().join("kernels-rs"));
    let mut manifest = format!(
        "[package]\nname = \"ringmem-ui\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         ringmem = {{ path = {ringmem:?}, features = [\"std\"] }}\n\
         ringmem-layouts = {{ path = {layouts:?}, default-features = false }}\n\
         ringmem-kernels = {{ path = {kernels:?}, default-features = false }}\n\
         zerocopy = {{ version = \"0.8\", default-features = false, features = [\"derive\"] }}\n"
    );
    let programs = package.join("programs");
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).unwrap();
    for Case { name, program, .. } in cases {
        let path = programs.join(name).with_extension("rs");
        fs::write(&path, program.join("\n")).unwrap();
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::copy(repository().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();

    let cargo = env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(cargo)
        // A full build: code generation evaluates constants of generic types.
        .args(["build", "--offline", "--keep-going", "--bins", "--message-format=json"])
        .current_dir(&package)
        // Reuses this build's dependencies: same directory and profile.
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
        .env("CARGO_PROFILE_DEV_DEBUG", env::var("CARGO_PROFILE_DEV_DEBUG").unwrap_or_else(|_| "line-tables-only".into()))
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
                outcome.errors.push(message["message"].clone());
            }
            _ => {}
        }
    }
    assert!(!outcomes.is_empty(), "cargo checked nothing:\n{}", String::from_utf8_lossy(&output.stderr));
    outcomes
}

#[test]
fn compile_failures_have_the_expected_phrase_and_line() {
    let cases = cases();
    let outcomes = check(&cases);
    let mut wrong = String::new();
    for Case { name, phrase, line, max_lines, .. } in &cases {
        let Some(Outcome { compiled, errors }) = outcomes.get(name) else {
            write!(wrong, "\n{name}: was not compiled\n").unwrap();
            continue;
        };
        let rendered: Vec<&str> = errors.iter().map(|error| error["rendered"].as_str().unwrap()).collect();
        let Some(phrase) = phrase else {
            if !compiled {
                write!(wrong, "\n{name}: does not compile\n{}", rendered.concat()).unwrap();
            }
            continue;
        };
        let (mut with_phrase, mut at_line) = (false, line.is_none());
        for (error, _) in errors.iter().zip(&rendered).filter(|(_, text)| text.contains(phrase)) {
            with_phrase = true;
            let spans = error["spans"].as_array().unwrap().iter().filter(|span| span["is_primary"] == true);
            at_line |=
                spans.flat_map(|span| span["text"].as_array().unwrap()).any(|text| text["text"].as_str().map(str::trim) == line.as_deref());
        }
        let at_places: Vec<&Value> =
            errors.iter().filter(|error| error["spans"].as_array().is_some_and(|spans| !spans.is_empty())).collect();
        let lines: usize = at_places.iter().map(|error| error["rendered"].as_str().unwrap().trim_end().lines().count()).sum();
        if max_lines.is_some_and(|most| at_places.len() > 1 || lines > most) {
            write!(wrong, "\n{name}: {} errors in {lines} lines\n{}", at_places.len(), rendered.concat()).unwrap();
        }
        match (compiled, with_phrase, at_line) {
            (true, ..) => write!(wrong, "\n{name}: compiles\n").unwrap(),
            (_, false, _) => write!(wrong, "\n{name}: no error contains `{phrase}`\n{}", rendered.concat()).unwrap(),
            (_, _, false) => {
                write!(wrong, "\n{name}: the error does not point at `{}`\n{}", line.as_deref().unwrap_or(""), rendered.concat()).unwrap()
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
