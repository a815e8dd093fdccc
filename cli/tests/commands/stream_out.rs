use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::image::KernelHost;
use ringmem_kernels::IMAGE;
use ringmem_kernels::transform::{Applied, Apply};
use serde_json::Value;

use crate::bytes::{noise, text};
use crate::kernels::{Reply, Run, image, serve};
use crate::program::{Ran, call, execute, finish, until};

struct Place {
    directory: tempfile::TempDir,
    from: PathBuf,
    to: PathBuf,
}

impl Place {
    fn new(bytes: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::write(&from, bytes).expect("room");
        Self { directory, from, to }
    }

    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        ["stream", text(&self.from), "--out", text(&self.to)].iter().chain(more).copied().collect()
    }

    fn others(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).expect("a directory");
        let mut names: Vec<String> = entries.map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name != "from");
        names.sort_unstable();
        names
    }
}

fn transformed(bytes: &[u8], transform: Option<&str>) -> Vec<u8> {
    match transform {
        None => bytes.to_vec(),
        Some("add:7") => bytes.iter().map(|byte| byte.wrapping_add(7)).collect(),
        Some("xor:255") => bytes.iter().map(|byte| !byte).collect(),
        Some(other) => panic!("{other}"),
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 0 { sum >> 1 } else { sum >> 1 ^ 0x82f6_3b78 })
    })
}

#[test]
fn files_of_boundary_lengths_are_written_whole() {
    for length in [0, 1, 15, 16, 4095, 4096, 4097, 8192, 100_003] {
        let bytes = noise(length);
        for transform in [None, Some("add:7"), Some("xor:255")] {
            let place = Place::new(&bytes);
            let mut arguments = place.arguments(&["--json", "--chunk-size", "8KiB"]);
            arguments.extend(transform.iter().flat_map(|transform| ["--transform", transform]));
            let object = call(&IMAGE, arguments).json();
            let expected = transformed(&bytes, transform);
            assert!(fs::read(&place.to).expect("it is there") == expected, "{length} bytes, {transform:?}");
            assert_eq!(place.others(), ["to"]);
            assert_eq!((&object["bytes"], &object["chunks"]), (&length.into(), &length.div_ceil(8192).into()));
            assert_eq!((&object["verified"], &object["transform"]), (&true.into(), &transform.map_or(Value::Null, Value::from)));
            assert_eq!(object["checksum"], format!("{:08x}", crc32c(&expected)));
        }
    }
}

#[test]
fn a_file_larger_than_the_device_memory_replaces_the_target() {
    let bytes = noise(5_000_011);
    let place = Place::new(&bytes);
    fs::write(&place.to, "old").expect("room");
    for staging in ["1", "7"] {
        for ring in ["1", "1024"] {
            let more = ["--transform", "add:7", "--device-memory", "1MiB", "--staging", staging, "--ring-capacity", ring];
            let ran = execute(place.arguments(&more));
            assert_eq!((ran.code, ran.err.as_str()), (0, ""));
            assert!(
                ran.out.contains("add:7") && ran.out.contains(&format!("{:08x}, verified", crc32c(&transformed(&bytes, Some("add:7")))))
            );
            assert!(fs::read(&place.to).expect("it is there") == transformed(&bytes, Some("add:7")));
            assert_eq!(place.others(), ["to"]);
        }
    }
}

#[test]
fn a_file_is_not_overwritten_by_itself() {
    let place = Place::new(&noise(10_000));
    let [hard, link] = ["hard", "link"].map(|name| place.directory.path().join(name));
    fs::hard_link(&place.from, &hard).expect("a link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&place.from, &link).expect("a link");
    for to in [&place.from, &hard, &link] {
        let ran = call(&IMAGE, ["stream", text(&place.from), "--out", text(to)]);
        ran.refuses(2, &["--out", text(to), "itself"]);
    }
    assert!(fs::read(&place.from).expect("it is there") == noise(10_000));
    assert_eq!(place.others(), ["hard", "link"]);
}

#[test]
fn invalid_arguments_are_named_in_the_error() {
    let place = Place::new(b"bytes");
    call(&IMAGE, ["stream", text(&place.from), "--transform", "add:7"]).refuses(2, &["--out"]);
    for wrong in ["add", "add:", "add:256", "add:-1", "add:x", "mul:2", "", ":7", "add:7:7"] {
        call(&IMAGE, place.arguments(&["--transform", wrong])).refuses(2, &["--transform"]);
    }
    assert_eq!(place.others(), [""; 0]);
    let nowhere = place.directory.path().join("no/where");
    call(&IMAGE, ["stream", text(&place.from), "--out", text(&nowhere)]).refuses(1, &[text(&nowhere), "No such file"]);
    let directory = text(place.directory.path());
    call(&IMAGE, ["stream", text(&place.from), "--out", directory]).refuses(1, &[directory, "not a regular file"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_and_keeps_the_old_file() {
    let place = Place::new(&noise(1_000_000));
    fs::write(&place.to, "old").expect("room");
    let mut program = Command::new("bash");
    program.args(["-c", "ulimit -f 310; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_ringmem")]);
    program.args(place.arguments(&["--transform", "add:7", "--chunk-size", "100000"]));
    finish(program).refuses(1, &[text(&place.to), "after byte 317440", "File too large"]);
    assert_eq!((place.others(), fs::read_to_string(&place.to).expect("it is there")), (vec!["to".to_owned()], "old".to_owned()));
}

// A kernel changes the files, at a known moment.

const CHUNK: usize = 4096;
const CHUNKS: usize = 64;

struct Change {
    place: Mutex<Option<[PathBuf; 2]>>,
    change: fn(&Path, &Path),
    works: bool,
}

impl Change {
    const fn new(works: bool, change: fn(&Path, &Path)) -> Self {
        Self { place: Mutex::new(None), change, works }
    }

    /// # Safety
    ///
    /// As [`serve`], with the arguments of `transform`.
    unsafe fn serve(&self, host: &dyn KernelHost, arguments: &[u64]) {
        let data = host.translate(arguments[4], arguments[5]).expect("the data");
        let reply = |message: Apply| {
            if message.id == 1 {
                let place = self.place.lock().expect("no panic");
                let [from, to] = place.as_ref().expect("the test's files");
                (self.change)(from, to);
            }
            let wrong = u8::from(!self.works && message.id == 5);
            for offset in message.offset..message.offset + message.length {
                // SAFETY: chunks are within the data.
                let byte = unsafe { data.add(offset as usize) };
                // SAFETY: the host leaves unanswered chunks alone.
                unsafe { byte.write(byte.read().wrapping_add(7 + wrong)) };
            }
            Reply::Say(vec![Applied { id: message.id, status: 0 }])
        };
        // SAFETY: the caller promises what the free function `serve` requires, and keeps the data alive; the reply accesses unanswered
        // chunks only.
        unsafe { serve(host, arguments, reply, Vec::new) }
    }

    fn stream(&self, run: Run, place: &Place) -> Ran {
        *self.place.lock().expect("no panic") = Some([place.from.clone(), place.to.clone()]);
        call(&image("transform", run), place.arguments(&["--transform", "add:7", "--chunk-size", "4096", "--staging", "1"]))
    }
}

macro_rules! planted {
    ($name:ident, $works:expr, $change:expr) => {
        static CHANGE: Change = Change::new($works, $change);
        unsafe fn $name(host: &dyn KernelHost, arguments: &[u64]) {
            // SAFETY: the program launches this kernel with `transform`'s arguments, whose memory is live until it returns.
            unsafe { CHANGE.serve(host, arguments) }
        }
    };
}

fn old() -> Place {
    let place = Place::new(&noise(CHUNK * CHUNKS));
    fs::write(&place.to, "old").expect("room");
    place
}

#[track_caller]
fn assert_unchanged(place: &Place) {
    assert_eq!((place.others(), fs::read_to_string(&place.to).expect("it is there")), (vec!["to".to_owned()], "old".to_owned()));
}

#[test]
fn a_file_unlinked_during_the_read_is_read_to_its_end() {
    planted!(vanishes, true, |from, _| fs::remove_file(from).expect("it is ours"));
    let place = old();
    assert_eq!(CHANGE.stream(vanishes, &place).code, 0);
    assert!(fs::read(&place.to).expect("it is there") == transformed(&noise(CHUNK * CHUNKS), Some("add:7")));
}

#[test]
fn a_file_that_shrinks_or_grows_writes_nothing() {
    {
        planted!(shrinks, true, |from, _| {
            fs::OpenOptions::new().write(true).open(from).and_then(|file| file.set_len(100_000)).expect("shorter");
        });
        let place = old();
        CHANGE.stream(shrinks, &place).refuses(1, &[text(&place.from), "ended at byte 100000", &(CHUNK * CHUNKS).to_string()]);
        assert_unchanged(&place);
    }
    planted!(grows, true, |from, _| {
        fs::OpenOptions::new().write(true).open(from).and_then(|file| file.set_len(1_000_000)).expect("longer");
    });
    let place = old();
    CHANGE.stream(grows, &place).refuses(1, &[text(&place.from), "1000000", &(CHUNK * CHUNKS).to_string()]);
    assert_unchanged(&place);
}

struct Closed;

impl io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_is_written_after_its_reader_closed_the_pipe() {
    planted!(slow, true, |_, _| thread::sleep(Duration::from_millis(1200)));
    let place = old();
    *CHANGE.place.lock().expect("no panic") = Some([place.from.clone(), place.to.clone()]);
    let arguments = place.arguments(&["--transform", "add:7", "--chunk-size", "4096", "--staging", "1"]);
    let arguments = std::iter::once("ringmem").chain(arguments).map(Into::into);
    let mut err = Vec::new();
    assert_eq!(ringmem_cli::run(arguments, &image("transform", slow), None, &mut Closed, &mut err), 0);
    assert_eq!((String::from_utf8_lossy(&err).as_ref(), place.others()), ("", vec!["to".to_owned()]));
    assert!(fs::read(&place.to).expect("it is there") == transformed(&noise(CHUNK * CHUNKS), Some("add:7")));
}

#[test]
fn a_wrong_byte_writes_nothing() {
    planted!(wrong, false, |_, _| {});
    let place = old();
    CHANGE.stream(wrong, &place).refuses(1, &["wrong", "checksum", "host computed", text(&place.to)]);
    assert_unchanged(&place);
}

#[test]
fn a_removed_temporary_file_is_an_error() {
    planted!(removes, true, |_, to| {
        let entries = fs::read_dir(to.parent().expect("a directory")).expect("a directory");
        let names = entries.map(|entry| entry.expect("a name").path());
        names.filter(|path| text(path).ends_with(".ringmem-partial")).for_each(|path| fs::remove_file(path).expect("it is ours"));
    });
    let place = old();
    CHANGE.stream(removes, &place).refuses(1, &[text(&place.to), "No such file"]);
    assert_unchanged(&place);
}

#[test]
#[cfg(unix)]
fn a_kill_leaves_the_old_or_the_new_file() {
    const LENGTH: usize = 8_000_000;
    let (old, new) = (noise(1000), noise(LENGTH));
    let new_to = transformed(&new, Some("add:7"));
    let place = Place::new(&new);
    let start = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(place.arguments(&["--transform", "add:7", "--chunk-size", "64KiB"]));
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
    };
    let begun = Instant::now();
    let mut whole = start();
    until("the program ends", || whole.try_wait().expect("a child").is_some());
    let mut whole = begun.elapsed();

    let (mut killed, mut partial) = (0, 0);
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..500 {
        if round >= 24 && killed > 0 && partial > 0 {
            break;
        }
        fs::write(&place.to, &old).expect("room");
        let mut child = start();
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(whole.mul_f64((chance >> 40) as f64 / (1 << 24) as f64).min(Duration::from_secs(10)));
        child.kill().expect("a child");
        let survived = child.wait().expect("a child").success();
        killed += usize::from(!survived);
        whole = whole.mul_f64(if survived { 0.9 } else { 1.1 });
        let there = fs::read(&place.to).expect("it is there");
        assert!(there == old || there == new_to, "round {round}: {} bytes of neither", there.len());
        for name in place.others().into_iter().filter(|name| name != "to") {
            assert!(name.starts_with(".to.") && name.ends_with(".ringmem-partial"), "{name}");
            fs::remove_file(place.directory.path().join(name)).expect("it is ours");
            partial += 1;
        }
    }
    assert!(killed > 0 && partial > 0, "{killed} killed, {partial} left a temporary file: the blows never fell in between");
}

#[cfg(unix)]
fn stalled(place: &Place) -> std::process::Child {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(["stream", "-", "--chunk-size", "4096", "--out", text(&place.to)]);
    // Ignored signals are inherited, and `nohup` ignores one.
    // SAFETY: `signal` is async-signal-safe.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut program, || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), &noise(50_000)).expect("it reads");
    let own = format!(".to.{}-", child.id());
    let is_partial = |name: &String| name.starts_with(&own) && name.ends_with(".ringmem-partial");
    let is_under_way = |name: String| fs::metadata(place.directory.path().join(name)).is_ok_and(|file| file.len() > 0);
    until("something is written", || place.others().into_iter().filter(is_partial).any(is_under_way));
    child
}

#[test]
#[cfg(unix)]
fn a_signal_removes_the_temporary_file() {
    use std::os::unix::process::ExitStatusExt;
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let place = Place::new(b"");
        fs::write(&place.to, "old").expect("room");
        let mut child = stalled(&place);
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().expect("a shell");
        assert!(sent.success());
        until("the program ends", || child.try_wait().expect("a child").is_some());
        assert_eq!(child.wait().expect("a child").signal(), Some(number), "{name}");
        assert_eq!((place.others(), fs::read_to_string(&place.to).expect("it is there")), (vec!["to".to_owned()], "old".to_owned()));
    }
}

#[test]
#[cfg(unix)]
fn a_run_removes_only_temporary_files_of_dead_runs() {
    let place = Place::new(b"bytes");
    let mut killed = stalled(&place);
    killed.kill().expect("a child");
    killed.wait().expect("a child");
    let mut live = stalled(&place);
    let left = || place.others().into_iter().filter(|name| name.ends_with(".ringmem-partial")).collect::<Vec<_>>();
    assert!(left().iter().all(|name| name.contains(&format!(".{}-", live.id()))) && left().len() == 1, "{:?}", left());
    let other = place.directory.path().join(".notes.ringmem-partial");
    fs::write(&other, "not a temporary file of a sink").expect("room");
    let ran = execute(place.arguments(&[]));
    fs::remove_file(&other).expect("it stays");
    assert_eq!((ran.code, left().len()), (0, 1), "the live one's stays: {ran:?}");
    drop(live.stdin.take());
    until("the program ends", || live.try_wait().expect("a child").is_some());
    assert!(live.wait().expect("a child").success());
    assert_eq!((left().len(), fs::read(&place.to).expect("it is there").len()), (0, 50_000));
}

#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_file() {
    let most = |length: usize, more: &[&str]| {
        let place = Place::new(&noise(length));
        let more: Vec<&str> = ["--json", "--chunk-size", "1MiB"].iter().chain(more).copied().collect();
        execute(place.arguments(&more)).json()["max_resident_bytes"].as_u64().expect("a number")
    };
    for more in [&[][..], &["--transform", "add:7"]] {
        let (small, large) = (most(8 << 20, more), most(64 << 20, more));
        assert!(large <= small + (3 << 20), "{more:?}: {small} bytes for 8 MiB, {large} for 64 MiB");
    }
}
