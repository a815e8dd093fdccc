//! What CI demands of the files that other programs write: `cargo xtask coverage FILE`, `gpu-results FILE` and `rows FILE`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::{Failure, read, root};

/// Demands at least 95 % of the product's lines, and 90 % of each folder's; prints the shares. `file` is a summary of `cargo llvm-cov` in JSON.
pub fn coverage(file: &Path) -> Result<(), Failure> {
    let (shares, low) = shares(&serde_json::from_str(&read(file)?)?, &root())?;
    print!("{shares}");
    if low.is_empty() { Ok(()) } else { Err(format!("too few lines are covered: {}", low.join(", ")).into()) }
}

fn shares(found: &Value, root: &Path) -> Result<(String, Vec<String>), Failure> {
    let mut folders = BTreeMap::<String, [u64; 2]>::new();
    for file in found["data"][0]["files"].as_array().ok_or("no files")? {
        let path = Path::new(file["filename"].as_str().ok_or("a file without a name")?);
        let Ok(path) = path.strip_prefix(root) else { continue };
        let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
        let Some(source) = parts.iter().take(2).position(|part| *part == "src") else { continue };
        if ["benches", "tests", "xtask"].contains(&parts[0]) {
            continue;
        }
        // A folder of `src`, or `src` itself for a file in it.
        let depth = if parts.len() > source + 2 { source + 2 } else { source + 1 };
        let lines = &file["summary"]["lines"];
        let [covered, count] = [&lines["covered"], &lines["count"]].map(|number| number.as_u64().unwrap_or(0));
        for name in [parts[..depth].join("/"), "all".to_owned()] {
            let sums = folders.entry(name).or_default();
            sums[0] += covered;
            sums[1] += count;
        }
    }
    let all = folders.remove("all").ok_or("no file of the product")?;
    let share = |[covered, count]: [u64; 2]| 100.0 * covered as f64 / count.max(1) as f64;
    let (mut text, mut low) = (String::new(), Vec::new());
    for (name, least, sums) in folders.into_iter().map(|(name, sums)| (name, 90.0, sums)).chain([("all".to_owned(), 95.0, all)]) {
        text.push_str(&format!("{name:24} {:6.1} % of {}\n", share(sums), sums[1]));
        if share(sums) < least {
            low.push(name);
        }
    }
    Ok((text, low))
}

/// Demands of the bundle's `results.json` that no part failed. Without names: that the run is complete and each part was skipped for a reason, as without a
/// driver. With names: that these parts passed.
pub fn gpu(file: &Path, parts: &[&str]) -> Result<(), Failure> {
    gpu_parts(&serde_json::from_str(&read(file)?)?, parts).map_err(|fault| format!("{}: {fault}", file.display()).into())
}

/// Fewer parts are not the bundle's.
const LEAST_PARTS: usize = 13;

fn gpu_parts(found: &Value, wanted: &[&str]) -> Result<(), String> {
    let parts = found["parts"].as_array().ok_or("no list of parts")?;
    let of = |result: &str| -> BTreeSet<&str> {
        parts.iter().filter(|part| part["result"] == result).filter_map(|part| part["part"].as_str()).collect()
    };
    if found["failed"] != 0 {
        return Err(format!("failed: {:?}", parts.iter().filter(|part| part["result"] == "FAILED").collect::<Vec<_>>()));
    }
    if wanted.is_empty() {
        let is_skipped = |part: &Value| part["result"] == "SKIPPED" && part["reason"].as_str().is_some_and(|reason| !reason.is_empty());
        let others: Vec<&Value> = parts.iter().filter(|part| !is_skipped(part)).collect();
        return match () {
            () if found["complete"] != true => Err("the run is not complete".to_owned()),
            () if parts.len() < LEAST_PARTS => Err(format!("{} parts, at least {LEAST_PARTS} are expected", parts.len())),
            () if !others.is_empty() => Err(format!("not skipped with a reason: {others:?}")),
            () => Ok(()),
        };
    }
    let passed = of("passed");
    let missing: Vec<&&str> = wanted.iter().filter(|part| !passed.contains(**part)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not passed: {missing:?}")) }
}

/// Demands that a bench's output is rows in JSON, at least one; prints their number. Lines that begin with `+` are commands.
pub fn rows(file: &Path) -> Result<(), Failure> {
    let text = read(file)?;
    let mut count = 0;
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('+')) {
        serde_json::from_str::<Value>(line).map_err(|error| format!("{}:{number}: {error}", file.display()))?;
        count += 1;
    }
    if count == 0 {
        return Err(format!("{}: no rows", file.display()).into());
    }
    println!("{count} rows");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_below_its_share_is_named() {
        let file = |name: &str, covered: u64| json!({ "filename": format!("/r/{name}"), "summary": { "lines": { "covered": covered, "count": 100 } } });
        let files = [
            file("src/lib.rs", 95),
            file("src/pool/mod.rs", 89),
            file("layouts/src/a.rs", 100),
            file("xtask/src/b.rs", 0),
            file("tests/c.rs", 0),
        ];
        let (text, low) = shares(&json!({ "data": [{ "files": files }] }), Path::new("/r")).unwrap();
        assert_eq!(low, ["src/pool", "all"], "{text}");
        assert!(text.contains("layouts/src") && !text.contains("xtask"), "{text}");
        assert!(shares(&json!({ "data": [{ "files": [file("tests/c.rs", 1)] }] }), Path::new("/r")).is_err());
    }

    #[test]
    fn results_of_the_bundle_need_every_named_part() {
        let part = |name: &str, result: &str| json!({ "part": name, "result": result, "reason": "no driver" });
        let of = |complete: bool, failed: u64, parts: Vec<Value>| json!({ "complete": complete, "failed": failed, "parts": parts });
        let skipped: Vec<Value> = (0..LEAST_PARTS).map(|number| part(&number.to_string(), "SKIPPED")).collect();
        assert_eq!(gpu_parts(&of(true, 0, skipped.clone()), &[]), Ok(()));
        assert!(gpu_parts(&of(false, 0, skipped.clone()), &[]).is_err());
        assert!(gpu_parts(&of(true, 0, skipped[1..].to_vec()), &[]).is_err());
        assert!(gpu_parts(&of(true, 0, [skipped.clone(), vec![part("probe", "passed")]].concat()), &[]).is_err());
        let mixed = vec![part("probe", "passed"), part("soak", "SKIPPED")];
        assert_eq!(gpu_parts(&of(false, 0, mixed.clone()), &["probe"]), Ok(()));
        assert!(gpu_parts(&of(false, 0, mixed.clone()), &["probe", "soak"]).is_err());
        assert!(gpu_parts(&of(false, 1, mixed), &["probe"]).is_err());
    }

    #[test]
    fn rows_are_json_or_commands() {
        let folder = std::env::temp_dir().join(format!("ringmem-rows-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let check = |text: &str| {
            let file = folder.join("rows.json");
            std::fs::write(&file, text).unwrap();
            rows(&file)
        };
        let outcomes =
            [check("+ cargo bench\n{\"row\": 1}\n").is_ok(), check("+ cargo bench\n").is_ok(), check("{\"row\": 1}\npanicked\n").is_ok()];
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(outcomes, [true, false, false]);
    }
}
