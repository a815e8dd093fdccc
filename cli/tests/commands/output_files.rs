//! Files that commands write: `view --output`, `replay --snapshot` and `--csv`, `man --output`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::bytes::text;
use crate::program::{execute, finish};

struct Place {
    folder: tempfile::TempDir,
    trace: PathBuf,
    snapshot: PathBuf,
    to: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let inputs = folder.path().join("inputs");
        fs::create_dir(&inputs).expect("room");
        let [trace, snapshot] = ["a.trace", "memory.json"].map(|name| inputs.join(name));
        let events: String = (0..200).map(|block| format!("alloc {block} 4096 256\n")).collect();
        fs::write(&trace, events).expect("room");
        let ran = execute(["replay", text(&trace), "--snapshot", text(&snapshot)]);
        assert_eq!(ran.code, 0, "{ran:?}");
        // The name of a page of `man`.
        let to = folder.path().join("ringmem.1");
        Self { folder, trace, snapshot, to }
    }

    fn commands(&self) -> [[&str; 4]; 4] {
        let [folder, trace, snapshot, to] = [self.folder.path(), &self.trace, &self.snapshot, &self.to].map(text);
        [
            ["view", snapshot, "--output", to],
            ["replay", trace, "--snapshot", to],
            ["replay", trace, "--csv", to],
            ["man", "--output", folder, "--"],
        ]
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// The last bytes of a pickle, which has no line end, are written when the program ends.
#[test]
fn a_full_disk_under_the_printed_output_is_an_error() {
    let place = Place::new();
    fs::write(&place.trace, "alloc 0 4096 256\n").expect("room");
    let mut program = Command::new("bash");
    // The file begins so long that its limit, in KiB, is 20 bytes before the end of the pickle.
    let script =
        "set -e; all=$(\"$@\" | wc -c); limit=$((all / 1024 + 1)); truncate -s $((limit * 1024 - all + 20)) \"$0\"; ulimit -f $limit
        exec \"$@\" >>\"$0\"";
    program.args(["-c", script, text(&place.to), env!("CARGO_BIN_EXE_ringmem"), "view", text(&place.trace), "--format", "pytorch"]);
    finish(program).refuses(1, &["File too large"]);
}

#[test]
fn two_outputs_with_one_name_are_refused() {
    let place = Place::new();
    let other = place.folder.path().join("inputs/../ringmem.1");
    let ran = execute(["replay", text(&place.trace), "--snapshot", text(&place.to), "--csv", text(&other)]);
    ran.refuses(2, &["--csv and --snapshot name one file"]);
    assert!(!place.to.exists());
}

#[test]
fn a_full_disk_keeps_the_old_output() {
    let place = Place::new();
    for command in place.commands() {
        fs::write(&place.to, "old").expect("room");
        let mut program = Command::new("bash");
        program.args(["-c", "ulimit -f 1; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_ringmem")]).args(command);
        finish(program).refuses(1, &[text(&place.to), "File too large"]);
        assert_eq!(fs::read_to_string(&place.to).expect("it is there"), "old", "{command:?}");
        assert_eq!(place.names(), ["inputs", "ringmem.1"], "{command:?}");
    }
}

#[test]
fn a_fifo_is_no_output() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(&place.to).status().expect("mkfifo").success());
    for command in place.commands() {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(command);
        finish(program).refuses(1, &[text(&place.to), "not a regular file"]);
        assert_eq!(place.names(), ["inputs", "ringmem.1"], "{command:?}");
    }
}

#[test]
fn an_output_replaces_the_file_with_its_permissions() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = Place::new();
    for command in place.commands() {
        fs::write(&place.to, "old").expect("room");
        fs::set_permissions(&place.to, fs::Permissions::from_mode(0o6750)).expect("it is ours");
        let ran = execute(command);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{command:?}");
        let file = fs::metadata(&place.to).expect("it is there");
        assert_eq!((file.mode() & 0o7777, file.len() > 1000), (0o750, true), "{command:?}");
        fs::remove_file(&place.to).expect("it is ours");
    }
}
