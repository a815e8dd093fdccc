//! Examples that print figures: the figures add up.
#![cfg(feature = "std")]

use std::path::PathBuf;
use std::process::Command;

/// Beside this test's own program: cargo puts examples there.
fn program(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this test").parent().expect("a directory").join("../examples").join(name);
    assert!(path.exists(), "{} is not built: run `cargo test --all-features`", path.display());
    path
}

/// The number after a word, and the unit after it.
fn after(line: &str, word: &str) -> f64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word).skip(1);
    let number = words.next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number after `{word}` in `{line}`"));
    assert_eq!(words.next().map(|unit| unit.trim_end_matches(',')), Some("MiB"), "{line}");
    number
}

#[test]
fn pools_say_what_is_used_available_and_there() {
    let output = Command::new(program("04_pools")).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let shown: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("total"))
        .map(|line| {
            let [used, available, total] = ["used", "available", "total"].map(|word| after(line, word));
            assert_eq!((used + available, total), (256.0, 256.0), "{line}");
            used
        })
        .collect();
    // Nothing; 40 MiB in a slab of their own; a slab for the batches; the same; nothing.
    assert_eq!(shown, [0.0, 40.0, 72.0, 72.0, 0.0], "{text}");
    assert!(text.contains("a batch of 1 GiB becomes 102.4 MiB"), "{text}");
    assert!(text.contains("100 batches: 1 allocation"), "{text}");
}
