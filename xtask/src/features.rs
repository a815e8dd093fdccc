//! `docs/internals/features.md` names the tests that show each feature: they must exist, and a log of `cargo test` must have them.
//!
//! A line of the page is text and names in backticks:
//!
//! - A path (with `/`) must exist; `*` stands for any part of a file's name. `conformance` stands for `tests/conformance`.
//! - A name with underscores that follows a path after `: `, or another such name after `, `, is a test of that file.
//! - Anything else in backticks is text.
//!
//! A file without a name of a test must have run at least one test or example. Files of other kinds (`*.cases`, fuzz targets, examples) are not in the log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::{Failure, read, root};

/// A test, or all tests of a file.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    line: usize,
    path: &'a str,
    test: Option<&'a str>,
}

pub fn check(log: Option<&Path>) -> Result<(), Failure> {
    let page = read(&root().join("docs/internals/features.md"))?;
    let references = references(&page);
    let log = log.map(read).transpose()?;
    let passed = log.as_deref().map(passed);
    if let Some(log) = &log {
        merged(log)?;
    }
    let mut missing = Vec::new();
    for Reference { line, path, test } in &references {
        let fault = match (files(&root(), path), test) {
            (files, _) if files.is_empty() => Some("no such file".to_owned()),
            (files, Some(test)) if !files.iter().any(|file| defines(file, test)) => Some(format!("no test {test}")),
            (_, test) => passed.as_ref().filter(|passed| !has_run(passed, path, *test)).map(|_| match test {
                Some(test) => format!("{test} is not in the log of passed tests"),
                None => "no test of this file is in the log of passed tests".to_owned(),
            }),
        };
        missing.extend(fault.map(|fault| format!("docs/internals/features.md:{line}: {path}: {fault}")));
    }
    if missing.is_empty() {
        println!(
            "{} tests and files of docs/internals/features.md exist{}",
            references.len(),
            if log.is_some() { ", and ran" } else { "" }
        );
        return Ok(());
    }
    Err(missing.join("\n").into())
}

/// One ambiguous type makes rustdoc compile each doctest as a program of its own, without a message: 84 s instead of 4. Merged ones have a result of their
/// own, before that of those which must not compile.
fn merged(log: &str) -> Result<(), Failure> {
    let of_ringmem =
        log.lines().skip_while(|line| line.trim() != "Doc-tests ringmem").skip(1).take_while(|line| !line.trim().starts_with("Doc-tests "));
    match of_ringmem.filter(|line| line.starts_with("test result")).count() {
        2 => Ok(()),
        results => {
            Err(format!("the doctests of ringmem are not merged: {results} results, not 2; see --persist-doctests of rustdoc").into())
        }
    }
}

fn references(page: &str) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(page.lines()) {
        let mut path = None;
        let mut before = "";
        for (place, part) in text.split('`').enumerate() {
            if place % 2 == 0 {
                before = part;
                continue;
            }
            let is_path = part.contains('/') && !part.contains(' ') && !part.starts_with(['-', '.']);
            let is_test = part.contains('_') && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            match path {
                _ if part == "conformance" => path = Some("tests/conformance/"),
                _ if is_path => {
                    found.push(Reference { line, path: part, test: None });
                    path = Some(part);
                }
                Some(of) if is_test && (before == ": " || before == ", ") => {
                    // The path before it is a place only.
                    if found.last().is_some_and(|last| last.path == of && last.test.is_none()) {
                        found.pop();
                    }
                    found.push(Reference { line, path: of, test: Some(part) });
                }
                _ => {}
            }
        }
    }
    found
}

/// The files of a path, those of a folder included.
fn files(root: &Path, path: &str) -> Vec<PathBuf> {
    let place = root.join(path);
    let (folder, wanted) = match place.file_name().and_then(|name| name.to_str()).filter(|name| name.contains('*')) {
        Some(name) => (place.parent().unwrap_or(root).to_owned(), Some(name.to_owned())),
        None if place.is_dir() => (place, None),
        None => return if place.is_file() { vec![place] } else { Vec::new() },
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_wanted = |file: &PathBuf| match (&wanted, file.file_name().and_then(|name| name.to_str())) {
        (Some(wanted), Some(name)) => wanted.split_once('*').is_some_and(|(head, tail)| name.starts_with(head) && name.ends_with(tail)),
        _ => wanted.is_none(),
    };
    entries.filter(is_wanted).collect()
}

fn defines(file: &Path, test: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {test}(")))
}

/// The names of passed tests: `a::b::name`.
pub fn passed(log: &str) -> BTreeSet<&str> {
    fn name(line: &str) -> Option<&str> {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        result.starts_with("ok").then_some(name.trim_end_matches(" - should panic"))
    }
    log.lines().filter_map(name).collect()
}

fn has_run(passed: &BTreeSet<&str>, path: &str, test: Option<&str>) -> bool {
    if let Some(test) = test {
        return passed.iter().any(|name| name.rsplit("::").next() == Some(test));
    }
    let place = Path::new(path);
    let is_tests = ["tests/", "src/", "kernels-rs/", "layouts/", "cli/", "capi/"].iter().any(|root| path.starts_with(root));
    if !is_tests || place.extension().is_none_or(|kind| kind != "rs") || path.contains('*') {
        return true;
    }
    let stem = |place: &Path| place.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
    let module = match stem(place) {
        name if name == "mod" || name == "main" || name == "tests" => place.parent().map(stem).unwrap_or_default(),
        name => name,
    };
    // A test program that is one file has no module.
    let is_program = place.parent().is_some_and(|folder| folder.ends_with("tests"));
    let is_of_file =
        |name: &&str| name.split("::").any(|part| part == module) || name.strip_prefix(path).is_some_and(|rest| rest.starts_with(" - "));
    is_program || passed.iter().any(is_of_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Features\n\
        - `force_push` of a ring: `a/b.rs`: `one_test`, `another_test`; `c/`; `conformance`: `a_check`\n\
        - `c/d.rs`; bench `movement`: `split-64k`\n";

    #[test]
    fn tests_belong_to_the_path_before_them() {
        let of = |line, path, test| Reference { line, path, test };
        assert_eq!(
            references(PAGE),
            [
                of(2, "a/b.rs", Some("one_test")),
                of(2, "a/b.rs", Some("another_test")),
                of(2, "c/", None),
                of(2, "tests/conformance/", Some("a_check")),
                of(3, "c/d.rs", None),
            ]
        );
    }

    #[test]
    fn only_passed_tests_have_run() {
        let log = "test a::b::one_test ... ok\ntest x::one_failed ... FAILED\ntest c::tests::late - should panic ... ok\n\
            test src/d.rs - d::Example (line 8) ... ok\n";
        let passed = passed(log);
        assert!(has_run(&passed, "src/d.rs", None) && !has_run(&passed, "src/e.rs", None));
        assert!(has_run(&passed, "tests/suite/b.rs", Some("one_test")) && has_run(&passed, "src/c.rs", None));
        assert!(has_run(&passed, "tests/suite/b/mod.rs", None) && has_run(&passed, "fuzz/fuzz_targets/z.rs", None));
        assert!(!has_run(&passed, "tests/suite/x.rs", Some("one_failed")) && !has_run(&passed, "tests/suite/x.rs", None));
    }

    #[test]
    fn doctests_must_be_merged() {
        let log = |results: usize| {
            format!("   Doc-tests ringmem\n{}   Doc-tests ringmem_cli\ntest result: ok\n", "test result: ok. 1 passed\n".repeat(results))
        };
        assert!(merged(&log(2)).is_ok() && merged(&log(1)).is_err() && merged("").is_err());
    }

    #[test]
    fn every_named_test_exists() {
        check(None).unwrap();
    }
}
