#![cfg(any(target_os = "linux", target_os = "android"))]

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::attach::AttachError;
use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::control::{Command, State};
use ringmem::dump::Conclusion;
use ringmem::memory::{Buffer, Device};
use ringmem::monitor::{self, Figures, Published, View};
use ringmem::pool::Pool;
use ringmem::shared::{self, Memory, OwnerState};
use ringmem::watchdog::Verdict;
use ringmem::{Error, Layout};
use ringmem_kernels::echo::{ECHO, Echo};

use crate::eventually;
use crate::rig::rerun_or_skip;

fn open(name: &str) -> Channel<Echo, Echo> {
    let backend = HostBackend::builder().build().expect("a backend");
    Channel::builder(ECHO).input_capacity(8).output_capacity(16).publish(name).open(&backend, 0).expect("a channel")
}

fn found(name: &str) -> Option<Published> {
    let published = monitor::list().expect("the folders of this user");
    published.into_iter().find(|one| one.name == name && one.pid == std::process::id())
}

fn read(name: &str) -> Figures {
    View::open(found(name).expect("it is published").path).and_then(|view| view.read()).expect("a page")
}

fn poke(path: &Path, field: &str, at: u64, value: u64) {
    let field = monitor::Page::DESCRIPTOR.fields.iter().find(|known| known.name == field).expect("a field");
    let file = fs::OpenOptions::new().write(true).open(path).expect("a file");
    file.write_all_at(&value.to_le_bytes(), field.offset as u64 + 8 * at).expect("written");
}

#[test]
fn a_page_has_call_counts_and_the_last_sample() {
    let mut channel = open("counts");
    let before = read("counts");
    assert_eq!((before.pid, before.kernel.as_str(), before.sent, before.received), (std::process::id().into(), "echo", 0, 0));
    assert_eq!((before.rings[0].capacity, before.rings[1].capacity, before.pool), (8, 16, None));
    assert_eq!(before.control.kernel_state(), Some(State::Active));
    for id in 0..5 {
        channel.try_send(Echo { words: [id; 8] }).expect("room");
    }
    assert_eq!((read("counts").sent, read("counts").received), (5, 0));
    for _ in 0..5 {
        channel.recv().expect("an answer");
    }
    let after = read("counts");
    assert_eq!((after.sent, after.received), (5, 5));
    assert!(after.round_trips.percentile(50) > Some(0));
    assert_eq!(after.round_trips.count(), 1, "the first send is measured until its answer, and the later calls send nothing");
    channel.command(Command::PAUSE).expect("acknowledged");
    for id in 0..7 {
        channel.try_send(Echo { words: [id; 8] }).expect("room");
    }
    eventually("the kernel counts the messages", || {
        channel.watch();
        let figures = read("counts");
        (figures.control.processed, figures.telemetry.processed) == (5, 5)
    });
    let paused = read("counts");
    assert_eq!((paused.control.kernel_state(), paused.conclusion()), (Some(State::Paused), Conclusion::Paused { waiting: 7 }));
    assert_eq!((paused.rings[0].fill(), paused.rings[1].fill(), paused.high_water[0]), (Ok(7), Ok(0), 7));
    assert!(paused.age_ns.is_some() && paused.open_for_ns > paused.age_ns && paused.quiet_for_ns.is_some(), "{paused:?}");
}

#[test]
fn calls_of_a_channel_sample_its_figures() {
    let mut channel = open("calls");
    assert_eq!(read("calls").rings[0].tail, 0);
    eventually("a call is due to sample", || {
        let _ = channel.try_send(Echo { words: [1; 8] });
        read("calls").rings[0].tail > 0
    });
}

#[test]
fn a_heartbeat_is_stuck_beyond_the_limit_of_the_channel() {
    let mut channel = open("stuck");
    channel.command(Command::TERMINATE).expect("acknowledged");
    eventually("it has ended", || {
        channel.watch();
        read("stuck").verdict() == Verdict::Ended(State::Terminated)
    });
    let mut figures = read("stuck");
    figures.control.state = figures.control.epoch << 32 | State::Active as u64;
    figures.quiet_for_ns = Some(figures.stuck_after_ns + 1);
    assert_eq!(figures.verdict(), Verdict::Stuck { for_ns: figures.stuck_after_ns + 1 });
    figures.quiet_for_ns = Some(figures.stuck_after_ns);
    assert_eq!(figures.verdict(), Verdict::Quiet { for_ns: figures.stuck_after_ns });
    figures.control.epoch += 1;
    assert_eq!((figures.verdict(), figures.conclusion()), (Verdict::OtherEpoch, Conclusion::Abandoned));
}

#[test]
fn a_page_has_the_statistics_of_its_pool() {
    let backend = HostBackend::builder().build().expect("a backend");
    let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build().expect("a pool");
    let live = Buffer::<u8, _>::new(pool.clone(), 5000).expect("a buffer");
    let mut channel = open("pool");
    channel.publish_pool(&pool);
    let shown = read("pool").pool.expect("a pool");
    assert_eq!((shown.reserved_bytes, shown.live, shown.misses), (2 << 20, 1, 1));
    assert_eq!(shown.held_bytes, pool.statistics().held_bytes);
    drop(live);
    let second = Pool::builder(Device::new(&backend, 0)).slab(4 << 20).build().expect("a pool");
    let _live = Buffer::<u8, _>::new(second.clone(), 5000).expect("a buffer");
    channel.publish_pool(&second);
    assert_eq!(read("pool").pool.expect("a pool").reserved_bytes, 4 << 20, "the second pool's, at once");
}

#[test]
fn a_page_is_private_and_ends_with_its_channel() {
    let channel = open("private");
    let path = found("private").expect("it is published").path;
    for (path, mode) in [(path.as_path(), 0o100600), (path.parent().expect("a folder"), 0o40700)] {
        assert_eq!(fs::metadata(path).expect("it exists").permissions().mode(), mode, "{}", path.display());
    }
    let view = View::open(&path).expect("a page");
    assert!(view.is_live());
    drop(channel);
    assert!(!view.is_live() && view.read().is_ok() && found("private").is_none());
}

#[test]
fn publication_names_are_valid_and_unique() {
    let backend = HostBackend::builder().build().expect("a backend");
    for name in ["", "a/b", "..\n", "ü", &"x".repeat(65)] {
        let refused = Channel::builder(ECHO).publish(name).open(&backend, 0).expect_err("an invalid name").to_string();
        assert!(refused.contains("1 to 64 ASCII letters"), "{refused}");
    }
    let first = open("taken");
    let refused = Channel::builder(ECHO).publish("taken").open(&backend, 0).expect_err("a name that is taken");
    assert!(
        matches!(&refused, Error::System { call: "create", answer, .. } if answer.kind() == std::io::ErrorKind::AlreadyExists),
        "{refused}"
    );
    assert!(View::open(found("taken").expect("it is published").path).expect("a page").is_live());
    drop(first);
    drop(open("taken"));
    assert!(Channel::open(&backend, 0, ECHO).is_ok() && found("").is_none());
}

/// A process of another namespace may have this one's number, and so may one that was killed while it created its file.
#[test]
fn a_file_of_another_process_with_this_number_leaves_a_channel_unpublished() {
    let backend = HostBackend::builder().build().expect("a backend");
    let folder = open("beside");
    let folder = found("beside").map(|one| one.path.parent().expect("a folder").to_path_buf()).zip(Some(folder)).expect("it is published");
    let theirs = folder.0.join(format!("{}-theirs", std::process::id()));
    fs::write(&theirs, "").expect("a file");
    let mut channel = Channel::builder(ECHO).publish("theirs").open(&backend, 0).expect("a channel");
    assert!(
        matches!(channel.unpublished(), Some(Error::System { call: "create", answer, .. }) if answer.kind() == std::io::ErrorKind::AlreadyExists),
        "{:?}",
        channel.unpublished()
    );
    works(&mut channel);
    drop(channel);
    assert!(theirs.exists(), "the other's file stays");
    fs::remove_file(theirs).expect("it exists");
    drop(open("theirs"));
    assert!(
        Channel::builder(ECHO).publish("theirs").open(&backend, 0).expect("a channel").unpublished().is_none(),
        "its name is free again"
    );
}

#[test]
fn publishing_removes_only_pages_of_dead_processes() {
    let channel = open("living");
    let living = found("living").expect("it is published").path;
    let folder = living.parent().expect("a folder");
    // The first is not locked; the second is being created; the third is no page's name.
    let [stale, empty, foreign] = ["4194303-stale", "4194303-empty", "stale"].map(|name| folder.join(name));
    fs::write(&empty, "").expect("a file");
    fs::write(&foreign, "text").expect("a file");
    // Another test may publish, and remove it.
    eventually("it is listed", || {
        fs::copy(&living, &stale).expect("a copy");
        monitor::list().expect("the folders").iter().any(|one| one.path == stale && one.pid == 4_194_303)
    });
    if let Ok(view) = View::open(&stale) {
        assert!(!view.is_live());
    }
    drop(open("next"));
    assert_eq!([&living, &empty, &foreign, &stale].map(|path| path.exists()), [true, true, true, false]);
    fs::remove_file(empty).and_then(|()| fs::remove_file(foreign)).expect("they exist");
    drop(channel);
}

fn works(channel: &mut Channel<Echo, Echo>) {
    channel.send(Echo { words: [7; 8] }).expect("room");
    assert_eq!(channel.recv().expect("an answer").words, [7; 8]);
}

#[test]
fn without_free_descriptors_list_fails_and_a_channel_opens_unpublished() {
    if !rerun_or_skip::is_again() {
        return rerun_or_skip::passes_again(
            "monitor::without_free_descriptors_list_fails_and_a_channel_opens_unpublished",
            "ulimit -n 64;",
            &["net_raw"],
        );
    }
    let backend = HostBackend::builder().build().expect("a backend");
    let channel = || Channel::builder(ECHO).publish("descriptors").open(&backend, 0);
    let mut held = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        held.push(file);
    }
    let (listed, opened) = (monitor::list(), channel());
    drop(held);
    let error = listed.expect_err("the folder was not read").to_string();
    assert!(error.starts_with("cannot read /") && error.contains("Too many open files"), "{error}");
    let mut opened = opened.expect("the channel needs no figures");
    let reason = opened.unpublished().expect("the reason").to_string();
    assert!(reason.contains("Too many open files") && found("descriptors").is_none(), "{reason}");
    works(&mut opened);
    let published = channel().expect("a channel");
    assert!(published.unpublished().is_none() && found("descriptors").is_some());
}

/// A folder of root, removed on drop.
struct Taken(PathBuf);

impl Taken {
    fn new(path: PathBuf) -> Self {
        fs::create_dir(&path).expect("a folder of root");
        Self(path)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn another_users_folder_hides_no_channel_and_keeps_none_from_opening() {
    use std::os::unix::fs::MetadataExt;
    let me = fs::metadata("/proc/self").expect("Linux shows it").uid();
    let folder = |user: u32| PathBuf::from(format!("/tmp/ringmem-{user}"));
    if !rerun_or_skip::is_again() {
        if me != 0 {
            return rerun_or_skip::skipped("only root can take another user's folder");
        }
        // A user id that nobody has, different in each run.
        let user = 1_500_000_000 + std::process::id();
        let _taken = Taken::new(folder(user));
        return rerun_or_skip::passes_as("monitor::another_users_folder_hides_no_channel_and_keeps_none_from_opening", user);
    }
    let mut channel = open("taken");
    let reason = channel.unpublished().expect("the reason").to_string();
    assert!(reason.contains(folder(me).to_str().expect("text")) && reason.contains("set XDG_RUNTIME_DIR"), "{reason}");
    works(&mut channel);
    assert_eq!(monitor::list().expect("no folder of this user is unreadable"), []);
}

#[test]
fn a_reader_never_sees_a_torn_sample() {
    const SAMPLES: u64 = 50_000;
    let mut channel = open("halves");
    let view = View::open(found("halves").expect("it is published").path).expect("a page");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                if let Ok(figures) = view.read() {
                    assert!(figures.quiet_for_ns.is_some(), "{figures:?}");
                }
            }
        });
        for _ in 0..SAMPLES {
            channel.watch();
        }
        is_over.store(true, Relaxed);
    });
}

fn file(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("page");
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its permissions");
    path
}

#[test]
fn opening_an_invalid_page_is_an_error_with_facts() {
    let channel = open("original");
    let original = found("original").expect("it is published").path;
    let bytes = fs::read(&original).expect("a page");
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |path: &Path| match View::open(path) {
        Err(Error::Attach(error)) => format!("{error:?}"),
        Err(error) => error.to_string(),
        Ok(view) => panic!("{:?}", view.read()),
    };
    let size = bytes.len() as u64;
    for short in [0, 1, bytes.len() - 1] {
        assert_eq!(
            refused(&file(folder.path(), &bytes[..short])),
            format!("{:?}", AttachError::TooSmall { needed: size, got: short as u64 })
        );
    }
    let noise: Vec<u8> = (0..bytes.len()).map(|at| (at * 31 % 251) as u8).collect();
    assert!(refused(&file(folder.path(), &noise)).starts_with("Magic"));
    for (field, fact) in [("version", "Version { expected: 1, got: 9 }"), ("size", "TooSmall { needed: 2560, got: 9 }"), ("magic", "Magic")]
    {
        let path = file(folder.path(), &bytes);
        poke(&path, field, 0, 9);
        assert!(refused(&path).starts_with(fact), "{field}: {}", refused(&path));
    }
    assert!(refused(folder.path()).contains("not a regular file"));
    let link = folder.path().join("link");
    symlink(&original, &link).expect("a link");
    assert!(refused(&link).contains("symbolic link"), "{}", refused(&link));
    for mode in [0o640, 0o604, 0o622, 0o601] {
        let path = file(folder.path(), &bytes);
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its permissions");
        assert!(refused(&path).contains("other users have access"), "{mode:o}: {}", refused(&path));
    }
    assert!(refused(&folder.path().join("nowhere")).contains("No such file"));
    drop(channel);
}

#[test]
fn random_page_contents_cause_no_panic() {
    let channel = open("any");
    let bytes = fs::read(found("any").expect("it is published").path).expect("a page");
    drop(channel);
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = 1_u64;
    for round in 0..2000 {
        let mut bytes = bytes.clone();
        for word in bytes[32..].chunks_exact_mut(8) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = if round == 0 { u64::MAX } else { (random >> 33) << (random & 63) };
            word.copy_from_slice(&value.to_le_bytes());
        }
        let path = file(folder.path(), &bytes);
        poke(&path, "sequence", 0, 2);
        let view = View::open(&path).expect("the header is one");
        let figures = view.read().expect("no writer");
        let _ = (figures.conclusion(), figures.verdict(), figures.round_trips.percentile(99), figures.round_trips.count());
        assert!(figures.kernel.chars().all(|c| !c.is_control()), "{:?}", figures.kernel);
    }
    let path = file(folder.path(), &bytes);
    let view = View::open(&path).expect("a page");
    poke(&path, "sequence", 0, 3);
    assert!(matches!(view.read(), Err(Error::Busy { .. })), "a writer that died at odd");
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(100)).expect("truncated");
    assert!(matches!(view.read(), Err(Error::Attach(AttachError::TooSmall { needed: 2560, got: 100 }))));
}

#[test]
fn a_view_of_a_shared_ring_has_figures_and_rejects_other_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ring");
    let memory = Memory::create_at::<u32>(&path, 8).expect("a ring");
    let view = shared::View::open(&path).expect("a view");
    let read = || view.read().expect("a ring");
    assert_eq!((read().slot_size, read().producer, read().consumer), (4, (OwnerState::NotYet, 0), (OwnerState::NotYet, 0)));
    let mut producer = memory.producer::<u32>().expect("free");
    let mut consumer = memory.consumer::<u32>().expect("free");
    (0..5).for_each(|number| producer.push(number).expect("room"));
    assert_eq!(consumer.pop(), Ok(0));
    drop(consumer);
    let figures = read();
    assert_eq!((figures.indices.head, figures.indices.tail, figures.indices.capacity), memory_indices(&memory, 8));
    assert_eq!((figures.producer, figures.consumer), ((OwnerState::Alive, 1), (OwnerState::Left, 1)));

    let bytes = fs::read(&path).expect("a ring");
    let refused = |bytes: &[u8]| match shared::View::open(file(folder.path(), bytes)) {
        Err(Error::Attach(error)) => format!("{error:?}"),
        opened => panic!("{opened:?}"),
    };
    assert!(refused(&bytes[..1000]).contains("TooSmall"));
    for (word, value, fact) in [
        (0, 1_u64, "Magic"),
        (1, 2, "Version"),
        (3, 1, "Abi"),
        (4, 33, "Count"),
        (4, 0, "Kind"),
        (8, 3, "Kind"),
        (9, 9, "Offset"),
        (10, 7, "TooSmall"),
    ] {
        let mut bytes = bytes.clone();
        bytes[word * 8..][..8].copy_from_slice(&u64::to_le_bytes(value));
        assert!(refused(&bytes).contains(fact), "{word}: {}", refused(&bytes));
    }
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(100)).expect("truncated");
    assert!(matches!(view.read(), Err(Error::Attach(AttachError::TooSmall { got: 100, .. }))));
}

fn memory_indices(memory: &Memory, capacity: u64) -> (u64, u64, u64) {
    let (head, tail) = memory.indices();
    (head, tail, capacity)
}
