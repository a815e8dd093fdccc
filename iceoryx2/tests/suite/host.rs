//! [`Host`]: nodes that see only each other; [`Process`]: this program in a role.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;
use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// iceoryx2's own folder and prefix, removed at the end.
pub struct Host {
    folder: TempDir,
}

/// Of the names in iceoryx2's shared memory.
fn prefix(folder: &str) -> String {
    format!("{}_", folder.rsplit('/').next().unwrap())
}

fn node_in(folder: &str) -> Node<ipc::Service> {
    set_log_level(LogLevel::Fatal);
    let mut config = Config::default();
    config.global.set_root_path(&Path::new(folder.as_bytes()).unwrap());
    config.global.prefix = FileName::new(prefix(folder).as_bytes()).unwrap();
    NodeBuilder::new().config(&config).create().unwrap()
}

impl Host {
    pub fn new() -> Self {
        Self { folder: TempDir::with_prefix("ringmem-iox2-").unwrap() }
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub fn node(&self) -> Node<ipc::Service> {
        node_in(self.path())
    }

    pub fn start(&self, name: &str, argument: u64) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", &format!("processes::{name}")]);
        command.env("RINGMEM_ICEORYX2_HOST", self.path()).env("RINGMEM_ICEORYX2_ARGUMENT", argument.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Host {
    /// iceoryx2 keeps one object for each prefix, and a failed test more.
    fn drop(&mut self) {
        let (Ok(objects), prefix) = (fs::read_dir("/dev/shm"), prefix(self.path())) else { return };
        for object in objects.flatten().filter(|object| object.file_name().to_string_lossy().starts_with(&prefix)) {
            let _ = fs::remove_file(object.path());
        }
    }
}

/// The node, folder and argument of a role; `None` if called as a test.
pub fn role() -> Option<(Node<ipc::Service>, std::path::PathBuf, u64)> {
    let folder = std::env::var("RINGMEM_ICEORYX2_HOST").ok()?;
    let argument = std::env::var("RINGMEM_ICEORYX2_ARGUMENT").unwrap().parse().unwrap();
    Some((node_in(&folder), folder.into(), argument))
}

pub fn say(word: &str) {
    println!("\nrole: {word}");
}

/// A role's process, killed on drop.
pub struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != format!("role: {word}") {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the role ended before it said {word}");
        }
    }

    /// Without any clean-up.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn until(what: &str, mut step: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !step() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}
