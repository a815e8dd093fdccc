use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::memory::{Buffer, Device};
use ringmem::monitor;
use ringmem::pool::Pool;
use ringmem::shared::Memory;
use ringmem_cli::Terminal;
use ringmem_kernels::IMAGE;
use ringmem_kernels::echo::{ECHO, Echo};
use serde_json::Value;

use crate::bytes::{noise, text};
use crate::program::{call, execute, until};
use crate::pty::Pty;

fn channel(name: &str) -> Channel<Echo, Echo> {
    let backend = HostBackend::builder().build().expect("a backend");
    let mut channel = Channel::builder(ECHO).input_capacity(64).output_capacity(32).publish(name).open(&backend, 0).expect("a channel");
    for id in 0..20 {
        channel.send(Echo { words: [id; 8] }).expect("room");
        channel.recv().expect("an answer");
    }
    for id in 0..3 {
        channel.send(Echo { words: [id; 8] }).expect("room");
    }
    until("the kernel has answered and counted them", || {
        channel.watch();
        let figures = monitor::View::open(path(name)).and_then(|view| view.read()).expect("a page");
        figures.rings[1].fill() == Ok(3) && (figures.control.processed, figures.telemetry.processed) == (23, 23)
    });
    channel
}

fn path(name: &str) -> PathBuf {
    let published = monitor::list().expect("the folders");
    published.into_iter().find(|one| one.name == name && one.pid == std::process::id()).expect("it is published").path
}

fn pid() -> String {
    std::process::id().to_string()
}

#[test]
fn once_prints_the_figures_of_a_running_channel() {
    let backend = HostBackend::builder().build().expect("a backend");
    let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build().expect("a pool");
    let live = Buffer::<u8, _>::new(pool.clone(), 5000).expect("a buffer");
    let mut channel = channel("once");
    channel.publish_pool(&pool);
    let path = path("once");
    for ran in [execute(["top", "--once", text(&path)]), call(&IMAGE, ["top", text(&path)])] {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
        for line in [
            format!("{}: kernel echo, process {}", path.display(), pid()),
            "  state        active: idle: the input ring is empty".to_owned(),
            "  messages     23 sent, 20 received, 0/s".to_owned(),
            "  input ring   0 of 64, at most ".to_owned(),
            "  output ring  3 of 32, at most 3".to_owned(),
            "  round trip   p50 ".to_owned(),
            "  telemetry    23 processed, 0 refused, latency mean ".to_owned(),
            "  pool         5 KiB of 2 MiB in 1 block, peak 2 MiB, 0 of 1 request hits".to_owned(),
        ] {
            assert!(ran.out.lines().any(|found| found.starts_with(&line)), "{line}\n{}", ran.out);
        }
    }
    let ran = execute(["top", "--once", "--pid", &pid()]);
    assert!(ran.code == 0 && ran.out.contains("once: kernel echo, process"), "{ran:?}");
    drop(live);
}

#[test]
fn json_has_an_object_per_reading() {
    let mut channel = channel("json");
    let object = execute(["top", "--json", "--once", "--pid", &pid()]).json();
    let mine = |object: &Value| object["regions"].as_array().expect("a list").iter().find(|region| region["name"] == "json").cloned();
    let region = mine(&object).expect("it is published");
    for (key, value) in [("kind", "channel"), ("kernel", "echo"), ("state", "active"), ("conclusion", "idle: the input ring is empty")] {
        assert_eq!(region[key], value, "{region}");
    }
    assert_eq!((region["pid"].as_u64(), region["live"].as_bool()), (Some(std::process::id().into()), Some(true)));
    assert_eq!((region["sent"].as_u64(), region["received"].as_u64(), region["messages_per_s"].as_f64()), (Some(23), Some(20), Some(0.0)));
    assert_eq!((region["output"]["fill"].as_u64(), region["output"]["capacity"].as_u64()), (Some(3), Some(32)));
    assert!(region["output"]["high_water"].as_u64() >= Some(3) && region["pool"].is_null(), "{region}");
    let [p50, p99] = ["p50", "p99"].map(|part| region["round_trip_ns"][part].as_u64().expect("a number"));
    assert!(0 < p50 && p50 <= p99 && region["round_trip_ns"]["count"].as_u64() >= Some(20), "{region}");
    assert!(region["age_ns"].as_u64() < region["open_for_ns"].as_u64(), "{region}");

    // One object a reading, until the reader ends; the rate is between two.
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(["top", "--json", text(&path("json"))]).stdout(std::process::Stdio::piped());
    let mut child = program.spawn().expect("the program starts");
    let lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().expect("a pipe")));
    let mut rates = Vec::new();
    for line in lines {
        let object: Value = serde_json::from_str(&line.expect("text")).expect("an object a line");
        rates.push(object["regions"][0]["messages_per_s"].as_f64().expect("a rate"));
        if rates.last() > Some(&0.0) {
            break;
        }
        channel.send(Echo { words: [7; 8] }).expect("room");
        channel.recv().expect("an answer");
    }
    assert!(rates.last() > Some(&0.0), "{rates:?}");
    assert!(child.wait().expect("a child").success());
}

/// Its last sample has messages that the kernel answers afterwards.
#[test]
fn the_figures_of_a_channel_without_calls_are_shown_with_their_age() {
    let channel = channel("quiet");
    let path = path("quiet");
    until("a second has passed since the last call", || {
        let region = &execute(["top", text(&path), "--once", "--json"]).json()["regions"][0];
        region["idle_for_ns"].as_u64().is_some_and(|ns| ns > 1_000_000_000)
    });
    let ran = execute(["top", text(&path), "--once"]);
    let state = ran.out.lines().find(|line| line.starts_with("  state        active: ")).unwrap_or_default();
    assert!(state.contains(", as of the last call, ") && state.ends_with(" s ago"), "{ran:?}");
    let pty = live(&path);
    // The conclusion has "idle:".
    pty.until("idle ");
    drop((pty, channel));
}

#[test]
fn a_channel_of_a_dead_process_is_marked() {
    let channel = channel("alive");
    let stale = path("alive").with_file_name("4194302-dead");
    // Another test may remove it by publishing a channel.
    until("the copy is listed", || {
        fs::copy(path("alive"), &stale).expect("a copy");
        let ran = call(&IMAGE, ["top", "--once", "--pid", "4194302"]);
        ran.out.contains("dead: kernel echo, process") && ran.out.contains("ended: these are its last figures")
    });
    let _ = fs::remove_file(stale);
    drop(channel);
    for arguments in [["top", "--once", "--pid", "4194301"], ["top", "--json", "--pid", "4194301"]] {
        let ran = call(&IMAGE, arguments);
        ran.refuses(1, &["process 4194301 does not exist"]);
        assert_eq!(ran.out, "");
    }
    let mut idle = Command::new("sleep").arg("60").spawn().expect("a process");
    let ran = call(&IMAGE, ["top", "--once", "--pid", &idle.id().to_string()]);
    idle.kill().and_then(|()| idle.wait()).expect("a child");
    ran.refuses(1, &["publishes no channel", "Builder::publish"]);
    for pid in ["0", "-1", "abc", "1e3", "2147483648"] {
        call(&IMAGE, ["top", "--pid", pid]).refuses(2, &["--pid", pid, "2147483647"]);
    }
}

#[test]
fn a_file_of_another_kind_is_no_region_and_its_mode_is_not_advised() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text");
    for (contents, fact) in [(&b"root:x:0:0:root"[..], "not formatted: magic is"), (b"text", "region too small: 4 bytes")] {
        fs::write(&path, contents).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its permissions");
        let ran = call(&IMAGE, ["top", text(&path)]);
        ran.refuses(1, &["is not a ringmem region: ", fact]);
        assert!(!ran.err.contains("chmod"), "{ran:?}");
    }
}

#[test]
fn a_shared_ring_is_shown_by_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ring");
    let memory = Memory::create_at::<u64>(&path, 16).expect("a ring");
    let mut producer = memory.producer::<u64>().expect("free");
    (0..5).for_each(|number| producer.push(number).expect("room"));
    let out = execute(["top", text(&path), "--once"]).out;
    let lines = ["  ring         5 of 16, slots of 8 bytes", "  producer     alive, 1 owner", "  consumer     no owner yet, 0 owners"];
    assert_eq!(out.lines().skip(1).collect::<Vec<_>>(), lines, "{out}");
    let ring = &execute(["top", text(&path), "--once", "--json"]).json()["regions"][0];
    assert_eq!(
        (ring["kind"].as_str(), ring["ring"]["fill"].as_u64(), ring["producer"]["state"].as_str()),
        (Some("ring"), Some(5), Some("alive"))
    );
}

#[test]
fn invalid_region_files_are_errors_with_facts() {
    let channel = channel("intact");
    let bytes = fs::read(path("intact")).expect("a page");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8], mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its permissions");
        path
    };
    let mut version = bytes.clone();
    version[8] = 9;
    let ring = folder.path().join("ring");
    drop(Memory::create_at::<u64>(&ring, 16).expect("a ring"));
    let mut another = fs::read(&ring).expect("a ring");
    another[8] = 7;
    let link = folder.path().join("link");
    symlink(path("intact"), &link).expect("a link");
    let cases: [(PathBuf, &str); 9] = [
        (file("truncated", &bytes[..100], 0o600), "is not a ringmem region: region too small: 100 bytes"),
        (file("empty", &[], 0o600), "is not a ringmem region: region too small: 0 bytes"),
        (file("random", &noise(5000), 0o600), "is not a ringmem region: not formatted: magic is"),
        (file("version", &version, 0o600), "is not a ringmem region: version 9, expected 1"),
        (file("another", &another, 0o600), "is not a ringmem region: version 7, expected 1"),
        (file("open", &bytes, 0o644), "other users have access to it"),
        (folder.path().to_owned(), "it is not a regular file"),
        (link, "symbolic link"),
        (folder.path().join("nowhere"), "No such file"),
    ];
    for (path, fact) in &cases {
        for ran in [execute(["top", text(path), "--once"]), call(&IMAGE, ["top", text(path), "--json", "--once"])] {
            assert_eq!(ran.out, "");
            ran.refuses(1, &[text(path), fact]);
        }
    }
    call(&IMAGE, ["top", "--pid", "1", "page"]).refuses(2, &["--pid"]);
    drop(channel);
}

#[test]
fn extreme_figures_are_printed_without_failure() {
    let channel = channel("absurd");
    let bytes = fs::read(path("absurd")).expect("a page");
    drop(channel);
    let folder = tempfile::tempdir().expect("a folder");
    for (round, fill) in [0xff_u8, 0x7f, 0x80, 0x01, 0xfe, 0x33].into_iter().enumerate() {
        let path = folder.path().join(format!("page{round}"));
        let mut bytes = bytes.clone();
        // All but magic, version and size; an even sequence.
        bytes[24..].fill(fill);
        bytes[128..136].fill(2);
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its permissions");
        let ran = execute(["top", text(&path), "--once"]);
        assert!(ran.code == 0 && ran.err.is_empty() && ran.out.contains("state        number "), "{ran:?}");
        assert!(ran.out.contains(", ended: these are its last figures") && !ran.out.contains('\u{7f}'), "{ran:?}");
        assert!(execute(["top", text(&path), "--once", "--json"]).json()["regions"][0]["kind"] == "channel");
    }
}

fn live(path: &Path) -> Pty {
    let pty = Pty::start(60, ["top", text(path)]);
    pty.until("heartbeat");
    pty
}

#[track_caller]
fn assert_restored(pty: &Pty) {
    until("the screen is left", || pty.shown().contains("\x1b[?1049l"));
    let shown = pty.shown();
    assert!(pty.has_its_modes(), "{shown:?}");
    let [entered, left] = ["\x1b[?1049h", "\x1b[?1049l"].map(|sequence| shown.rfind(sequence).expect("it was shown"));
    assert!(entered < left && shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "{shown:?}");
}

#[test]
fn q_escape_and_control_c_quit_and_restore_the_terminal() {
    let channel = channel("live");
    let path = path("live");
    for keys in ["q", "\x1b", "\x03"] {
        let mut pty = live(&path);
        assert!(!pty.has_its_modes() && pty.shown().contains("active"), "{keys:?}");
        // A frame is shown at once.
        assert!(pty.shown().contains("\x1b[?2026h"));
        pty.send(keys);
        let status = pty.wait();
        assert_eq!(status.code(), Some(0), "{keys:?}: {}", pty.shown());
        assert_restored(&pty);
    }
    drop(channel);
}

#[test]
fn a_resize_redraws_and_new_figures_appear() {
    let mut channel = channel("resized");
    let mut pty = live(&path("resized"));
    let drawn = |pty: &Pty| pty.shown().matches("heartbeat").count();
    for columns in [100, 30, 5, 80] {
        let before = drawn(&pty);
        pty.resize(columns);
        // Too narrow for the word.
        if columns > 5 {
            until("it is drawn anew", || drawn(&pty) > before);
        }
    }
    for id in 0..977 {
        channel.send(Echo { words: [id; 8] }).expect("room");
        channel.recv().expect("an answer");
    }
    // Unchanged cells are drawn again only after a resize.
    let mut columns = 80;
    until("1000 messages are shown", || {
        columns = 170 - columns;
        pty.resize(columns);
        pty.shown().contains("1000")
    });
    pty.send("q");
    assert!(pty.wait().success());
    assert_restored(&pty);
}

#[test]
fn a_signal_restores_the_terminal() {
    let channel = channel("ended");
    let mut pty = live(&path("ended"));
    // SAFETY: sends a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(pty.id() as libc::pid_t, libc::SIGTERM) }, 0);
    assert_eq!(pty.wait().signal(), Some(libc::SIGTERM));
    assert_restored(&pty);
    drop(channel);
}

struct Panics;

impl Write for Panics {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(!bytes.windows(4).any(|word| word == b"quit"), "a panic in a frame");
        io::stdout().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    const ALONE: &str = "RINGMEM_TEST_PANICS";
    if std::env::var_os(ALONE).is_some() {
        let terminal = Terminal { columns: 60, has_colours: false };
        ringmem_cli::run(["ringmem".into(), "top".into()], &IMAGE, Some(terminal), &mut Panics, &mut io::sink());
        return;
    }
    let mut program = Command::new(std::env::current_exe().expect("this test"));
    program.args(["top::a_panic_restores_the_terminal_before_its_message", "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    let mut pty = Pty::run(60, program);
    pty.until("a panic in a frame");
    assert_eq!(pty.wait().code(), Some(101));
    assert_restored(&pty);
    let shown = pty.shown();
    assert!(shown.find("\x1b[?1049l") < shown.find("a panic in a frame"), "{shown:?}");
}
