//! Invalid inputs: one line with facts; exit code 2 for arguments, otherwise 1.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use ringmem::image::KernelHost;
use ringmem_kernels::IMAGE;

use crate::bytes::{file, noise, text};
use crate::kernels::{Run, counting, image};
use crate::program::{Ran, call, execute, finish, until};
#[cfg(target_os = "linux")]
use crate::rerun_or_skip;

#[track_caller]
fn refused(arguments: &[&str], code: u8, facts: &[&str]) {
    // The process first: it is killed if it hangs.
    let executed = execute(arguments.iter().copied());
    executed.refuses(code, facts);
    let called = call(&IMAGE, arguments.iter().copied());
    called.refuses(code, facts);
    assert_eq!((called.err, called.out.as_str()), (executed.err, ""));
    assert_eq!(executed.out, "");
}

#[track_caller]
fn refused_file(path: &Path, facts: &[&str]) {
    let name = text(path);
    let facts: Vec<&str> = facts.iter().copied().chain([name]).collect();
    refused(&["stream", name, "--json"], 1, &facts);
    refused(&["stream", name], 1, &facts);
}

#[test]
fn invalid_arguments_are_named_in_the_error() {
    let file = file(b"something");
    let path = text(file.path());
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["command", "stream", "demo", "layout", "replay", "doctor"]),
        (&["count"], &["count"]),
        (&["--json"], &["--json"]),
        (&["stream"], &["FILE"]),
        (&["stream", ""], &["FILE"]),
        (&["stream", path, "another"], &["another"]),
        (&["stream", path, "--fast"], &["--fast"]),
        (&["stream", path, "--chunk-size"], &["--chunk-size"]),
        (&["stream", path, "--chunk-size", "0"], &["--chunk-size", "zero"]),
        (&["stream", path, "--chunk-size", "-1"], &["--chunk-size", "-1", "negative"]),
        (&["stream", path, "--chunk-size=-4MiB"], &["--chunk-size", "-4MiB"]),
        (&["stream", path, "--chunk-size", "many"], &["--chunk-size", "many"]),
        (&["stream", path, "--chunk-size", ""], &["--chunk-size"]),
        (&["stream", path, "--chunk-size", "4XB"], &["--chunk-size", "XB"]),
        (&["stream", path, "--chunk-size", "1.5"], &["--chunk-size", "1.5", "whole number of bytes"]),
        (&["stream", path, "--chunk-size", "2GiB"], &["--chunk-size", "2 GiB", "1 GiB"]),
        (&["stream", path, "--chunk-size", "99999999999999999999999"], &["--chunk-size", "64 bits"]),
        (&["stream", path, "--chunk-size", "18446744073709551615"], &["--chunk-size"]),
        (&["stream", path, "--device-memory", "0"], &["--device-memory", "zero"]),
        (&["stream", path, "--device-memory", "-5"], &["--device-memory", "-5"]),
        (&["stream", path, "--device-memory", "1"], &["--device-memory", "1 bytes", "44 KiB"]),
        (&["stream", path, "--device-memory", "45055"], &["--device-memory", "44 KiB"]),
        (&["stream", path, "--device-memory", "2TiB"], &["--device-memory", "2 TiB", "1 TiB"]),
        (&["stream", path, "--device-memory", "16777215TiB"], &["--device-memory"]),
        (&["stream", path, "--staging", "0"], &["--staging", "0"]),
        (&["stream", path, "--staging", "-2"], &["--staging", "-2 is not in 1..=64"]),
        (&["stream", path, "--staging", "65"], &["--staging", "65", "64"]),
        (&["stream", path, "--staging", "x"], &["--staging", "x", "whole number from 1 to 64"]),
        (&["stream", path, "--ring-capacity", "0"], &["--ring-capacity", "power of two"]),
        (&["stream", path, "--ring-capacity", "3"], &["--ring-capacity", "3", "power of two"]),
        (&["stream", path, "--ring-capacity", "1000"], &["--ring-capacity", "1000", "power of two"]),
        (&["stream", path, "--ring-capacity", "-8"], &["--ring-capacity", "-8"]),
        (&["stream", path, "--ring-capacity", "2097152"], &["--ring-capacity", "1048576"]),
        (&["stream", path, "--ring-capacity", "36893488147419103232"], &["--ring-capacity"]),
        (&["stream", path, "--backend", "abacus"], &["--backend", "abacus"]),
        (&["demo", "--messages", "0"], &["--messages", "0"]),
        (&["demo", "--messages", "-1"], &["--messages", "-1 is not in 1..="]),
        (&["demo", "--messages", "1e6"], &["--messages", "1e6", "whole number from 1 to 1000000000000, in decimal digits"]),
        (&["demo", "--messages", ""], &["--messages", "whole number"]),
        (&["demo", "--pinned", "1e6"], &["--pinned", "1e6", "number in decimal digits"]),
        (&["stream", path, "--chunk-size", "1_000"], &["--chunk-size", "1_000", "number in decimal digits"]),
        (&["demo", "--messages", "99999999999999999999"], &["--messages"]),
        (&["demo", "more"], &["more"]),
        (&["layout", "--yaml"], &["--yaml"]),
    ];
    for (arguments, facts) in cases {
        refused(arguments, 2, facts);
    }
}

#[test]
fn the_smallest_documented_device_memory_suffices() {
    let file = file(&noise(20_000));
    assert_eq!(call(&IMAGE, ["stream", text(file.path()), "--device-memory", "44KiB"]).code, 0);
}

#[test]
fn a_path_without_a_regular_file_is_an_error() {
    let place = tempfile::tempdir().expect("a directory");
    refused_file(&place.path().join("nowhere"), &["No such file"]);
    refused_file(&place.path().join("no/where"), &["No such file"]);
    refused_file(place.path(), &["directory"]);
    let file = file(b"x");
    refused_file(&file.path().join("below"), &["Not a directory"]);
    if cfg!(unix) {
        for device in ["/dev/null", "/dev/zero"] {
            refused_file(Path::new(device), &["not a regular file", &format!("`ringmem stream - < {device}`")]);
        }
        for command in ["replay", "view"] {
            refused(&[command, "/dev/null"], 1, &["cannot open /dev/null", "not a regular file; write its contents to a regular file"]);
        }
    }
}

#[test]
#[cfg(unix)]
fn a_fifo_is_rejected_without_blocking() {
    let place = tempfile::tempdir().expect("a directory");
    let fifo = place.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    refused_file(&fifo, &["FIFO", "not a regular file"]);
    std::os::unix::fs::symlink(&fifo, place.path().join("link")).expect("a link");
    refused_file(&place.path().join("link"), &["FIFO"]);
}

#[test]
#[cfg(unix)]
fn sockets_and_link_loops_are_errors() {
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    refused_file(&socket, &["not a regular file"]);
    let link = place.path().join("link");
    std::os::unix::fs::symlink(&link, &link).expect("a link");
    refused_file(&link, &["symbolic link"]);
}

#[test]
#[cfg(target_os = "linux")]
fn an_unreadable_file_is_named_in_the_error() {
    use std::os::unix::fs::PermissionsExt;
    let file = file(b"secret");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o0)).expect("it is ours");
    if fs::File::open(file.path()).is_err() {
        return refused_file(file.path(), &["ermission denied"]);
    }
    assert!(!rerun_or_skip::is_again(), "a child without the capabilities reads it, too");
    rerun_or_skip::passes_again("invalid_input::an_unreadable_file_is_named_in_the_error", "", &["dac_override", "dac_read_search"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_with_a_wrong_reported_length_is_an_error() {
    refused_file(Path::new("/proc/cpuinfo"), &["more than the 0 bytes of its reported length"]);
    // A sysfs file reports the length of a page and ends earlier.
    let candidates = ["/sys/kernel/mm/transparent_hugepage/enabled", "/sys/devices/system/cpu/online", "/sys/kernel/notes"];
    let lies = |path: &&&str| fs::read(path).is_ok_and(|bytes| fs::metadata(path).is_ok_and(|known| known.len() > bytes.len() as u64));
    match candidates.iter().find(lies) {
        Some(path) => {
            let length = fs::read(path).expect("just read").len();
            refused_file(
                Path::new(path),
                &[&format!("ended at byte {length}"), &format!("of {}", fs::metadata(path).expect("just seen").len())],
            );
        }
        None => rerun_or_skip::skipped("no such file of sysfs"),
    }
}

#[test]
#[cfg(unix)]
fn a_non_utf8_or_multi_line_path_fails_in_one_line() {
    use std::os::unix::ffi::OsStringExt;
    let path = OsString::from_vec(b"/nowhere/\xff\xfe\nsecond line".to_vec());
    let arguments = [OsString::from("stream"), path];
    call(&IMAGE, arguments.clone()).refuses(1, &["/nowhere/", "second line"]);
    execute(arguments).refuses(1, &["/nowhere/", "second line"]);
}

const CHUNK: usize = 4096;
const CHUNKS: usize = 64;
const LENGTH: usize = CHUNK * CHUNKS;

struct Change {
    file: Mutex<Option<PathBuf>>,
    at: u64,
    change: fn(&Path),
}

impl Change {
    const fn new(at: u64, change: fn(&Path)) -> Self {
        Self { file: Mutex::new(None), at, change }
    }

    /// # Safety
    ///
    /// As [`counting`].
    unsafe fn count(&self, host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the caller promises `histogram`'s arguments, whose memory is live until this returns; `counting` requires that.
        unsafe {
            counting(host, arguments, |count, chunk| {
                if chunk.id == self.at {
                    (self.change)(self.file.lock().expect("no panic").as_deref().expect("the test's file"));
                }
                count.add(chunk)
            });
        }
    }

    fn stream(&self, run: Run) -> Ran {
        let file = file(&noise(LENGTH));
        *self.file.lock().expect("no panic") = Some(file.path().to_owned());
        call(&image("histogram", run), ["stream", text(file.path()), "--json", "--staging", "1", "--chunk-size", "4096"])
    }
}

fn set_length(path: &Path, length: usize) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(length as u64)).expect("a new length");
}

#[test]
fn a_file_that_shrinks_during_the_read_is_an_error() {
    // With one staging buffer at most three chunks are ahead of the first answer.
    static EARLY: Change = Change::new(0, |path| set_length(path, 10 * CHUNK + 7));
    unsafe fn early(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { EARLY.count(host, arguments) }
    }
    let ran = EARLY.stream(early);
    ran.refuses(1, &[&format!("ended at byte {}", 10 * CHUNK + 7), &format!("of {LENGTH}")]);
    assert_eq!(ran.out, "");

    static TO_NOTHING: Change = Change::new(0, |path| set_length(path, 0));
    unsafe fn to_nothing(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { TO_NOTHING.count(host, arguments) }
    }
    TO_NOTHING.stream(to_nothing).refuses(1, &["ended at byte", &format!("of {LENGTH}")]);

    static AFTER_ALL_WAS_READ: Change = Change::new(CHUNKS as u64 - 1, |path| set_length(path, LENGTH - 1));
    unsafe fn after_all_was_read(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { AFTER_ALL_WAS_READ.count(host, arguments) }
    }
    AFTER_ALL_WAS_READ.stream(after_all_was_read).refuses(1, &[&format!("changed its length from {LENGTH} to {} bytes", LENGTH - 1)]);
}

#[test]
fn a_file_that_grows_during_the_read_is_an_error() {
    for (change, run) in [(&EARLY, early as Run), (&LATE, late)] {
        let ran = change.stream(run);
        ran.refuses(1, &[&format!("changed its length from {LENGTH} to {} bytes", LENGTH + 1)]);
        assert_eq!(ran.out, "");
    }

    static EARLY: Change = Change::new(0, grow);
    static LATE: Change = Change::new(CHUNKS as u64 - 1, grow);
    fn grow(path: &Path) {
        OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(b"x")).expect("one more byte");
    }
    unsafe fn early(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { EARLY.count(host, arguments) }
    }
    unsafe fn late(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { LATE.count(host, arguments) }
    }
}

#[test]
fn a_file_rewritten_during_the_read_fails_verification() {
    static REWRITE: Change = Change::new(CHUNKS as u64 - 1, |path| fs::write(path, vec![0; LENGTH]).expect("room"));
    unsafe fn rewrite(host: &dyn KernelHost, arguments: &[u64]) {
        // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `count` requires
        // that.
        unsafe { REWRITE.count(host, arguments) }
    }
    REWRITE.stream(rewrite).refuses(1, &["wrong", "checksum"]);
}

#[test]
fn a_closed_output_pipe_is_no_failure() {
    let file = file(&noise(10_000));
    for arguments in [&["layout"][..], &["layout", "--json"], &["stream", text(file.path())], &["demo", "--messages", "10"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(arguments);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut child = program.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
        drop(program);
        let mut status = None;
        until("the program ends", || {
            status = child.try_wait().expect("a child");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{arguments:?}");
        let mut err = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().expect("a pipe"), &mut err).expect("text");
        assert_eq!(err, "");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_unwritable_output_is_a_failure() {
    for arguments in [&["layout"][..], &["demo", "--messages", "10", "--json"]] {
        let mut program = Command::new("sh");
        program.args(["-c", "exec \"$@\" > /dev/full", "sh", env!("CARGO_BIN_EXE_ringmem")]).args(arguments);
        finish(program).refuses(1, &["cannot print", "No space left"]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_system_error_and_the_option_are_printed() {
    let trace = file(b"alloc 0 4096 256\n");
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -v 4000000; exec \"$0\" replay \"$1\" --limit 512GiB", env!("CARGO_BIN_EXE_ringmem")]).arg(trace.path());
    finish(shell).refuses(1, &["--limit: cannot reserve 5497", " bytes of addresses", "os error 12"]);
}

#[test]
#[cfg(unix)]
fn control_characters_in_names_are_escaped() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("\u{1b}[31mred");
    call(&IMAGE, ["stream", text(&path)]).refuses(1, &["\\u{1b}[31mred", "No such file"]);
    fs::write(&path, "some bytes").expect("room for them");
    let to = place.path().join("\u{1b}[2Jto");
    for more in [&[][..], &["--out", text(&to)]] {
        let ran = call(&IMAGE, ["stream", text(&path)].iter().chain(more));
        assert!(ran.code == 0 && ran.out.contains("\\u{1b}[31mred") && !ran.out.contains('\u{1b}'), "{ran:?}");
        assert!(ran.out.contains("in 1 chunk of"), "{ran:?}");
    }
    fs::write(&path, "alloc 0 1 1\n").expect("room for it");
    let ran = call(&IMAGE, ["replay", text(&path)]);
    assert!(ran.code == 0 && !ran.out.contains('\u{1b}'), "{ran:?}");
}

#[test]
#[cfg(unix)]
fn no_output_has_a_bidirectional_or_c1_control_of_a_name() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("\u{202e}\u{9b}31m\u{2066}\u{7f}name");
    let is_plain = |text: &str| text.chars().all(|c| c == '\n' || ringmem::escape::is_printable(c));
    let ran = call(&IMAGE, ["stream", text(&path)]);
    ran.refuses(1, &["\\u{202e}\\u{9b}31m\\u{2066}\\u{7f}name"]);
    assert!(is_plain(&ran.err), "{ran:?}");
    // clap's message has the argument.
    let ran = call(&IMAGE, ["demo", "--messages", text(&path)]);
    ran.refuses(2, &["\\u{202e}\\u{9b}31m"]);
    assert!(is_plain(&ran.err), "{ran:?}");
    fs::write(&path, "some bytes").expect("room for them");
    let to = path.with_extension("to");
    let ran = call(&IMAGE, ["stream", text(&path), "--out", text(&to)]);
    assert!(ran.code == 0 && is_plain(&ran.out), "{ran:?}");
    let ran = call(&IMAGE, ["stream", text(&path), "--out", text(&to), "--json"]);
    assert!(is_plain(&ran.out), "{ran:?}");
    assert_eq!(ran.json()["out"], text(&to), "JSON loses nothing");
}

#[cfg(unix)]
fn is_warned_of(value: &[u8], said: &str, arguments: &[&str]) {
    use std::os::unix::ffi::OsStrExt;
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(arguments).args(["--backend", "host"]).env("RINGMEM_VISIBILITY", std::ffi::OsStr::from_bytes(value));
    let ran = finish(program);
    let warning = format!("ringmem: RINGMEM_VISIBILITY={said}: ignored: it must be `system`, `device` or `dma`\n");
    assert_eq!((ran.code, ran.err), (0, warning), "{arguments:?}");
}

#[test]
#[cfg(unix)]
fn an_invalid_environment_value_causes_a_warning() {
    let file = file(b"bytes");
    let commands: [&[&str]; 2] = [&["demo", "--messages", "1"], &["stream", text(file.path())]];
    commands.iter().for_each(|arguments| is_warned_of(b"rubbish", "rubbish", arguments));
}

#[test]
#[cfg(unix)]
fn a_non_utf8_environment_value_causes_a_warning() {
    let file = file(b"bytes");
    is_warned_of(b"sys\xfftem", "sys\u{fffd}tem", &["stream", text(file.path())]);
}
