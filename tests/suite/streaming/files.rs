//! Files that another user reads, replaces or plants meanwhile.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use ringmem::streaming::{FileSink, FileSource, Sink};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use crate::LIMIT;
use crate::rig::rerun_or_skip::{is_again, passes_again};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn write(path: &Path, mode: u32) {
    fs::write(path, "old").expect("room");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn replace(path: &Path) {
    let mut sink = FileSink::create(path).expect("room");
    sink.write_at(b"new", 0).expect("room");
    sink.commit().expect("no fault");
    assert_eq!(fs::read(path).expect("it is there"), b"new");
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}

fn partial(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).expect("a directory");
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.extension().is_some_and(|end| end == "ringmem-partial"))
}

#[test]
fn no_other_user_can_read_the_replacement_of_a_private_file() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("private");
    write(&path, 0o600);
    let is_complete = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut widest = 0;
            while !is_complete.load(Relaxed) {
                for path in partial(place.path()) {
                    widest |= fs::symlink_metadata(path).map_or(0, |file| file.mode() & 0o077);
                }
            }
            widest
        });
        for _ in 0..1000 {
            drop(FileSink::create(&path).expect("room"));
        }
        is_complete.store(true, Relaxed);
        assert_eq!(watcher.join().expect("no panic"), 0, "permissions of other users");
    });
}

#[test]
fn a_replacement_has_the_permissions_of_the_file_without_set_id_bits() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    for (old, new) in [(0o6755, 0o755), (0o4711, 0o711), (0o2664, 0o664), (0o1777, 0o777), (0o400, 0o400), (0o600, 0o600)] {
        write(&path, old);
        replace(&path);
        assert_eq!(mode(&path), new, "{old:o}");
    }
}

#[test]
fn the_replacement_of_another_owner_s_file_is_private() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    for (user, group) in [(Some(12_345), None), (Some(12_345), Some(12_345))] {
        write(&path, 0o666);
        if std::os::unix::fs::chown(&path, user, group).is_err() {
            return crate::rig::rerun_or_skip::skipped("only root makes files of other users");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("root may");
        replace(&path);
        assert_eq!(mode(&path), 0o600);
    }
}

#[test]
fn a_new_file_has_the_permissions_of_any_new_file() {
    let place = tempfile::tempdir().expect("a directory");
    let [ours, other] = ["ours", "other"].map(|name| place.path().join(name));
    fs::write(&other, "").expect("room");
    replace(&ours);
    assert_eq!(mode(&ours), mode(&other));
}

/// Calls `open` while a competitor exchanges the file at `path` for a FIFO.
fn never_waits(path: &Path, open: impl Fn() + Send + 'static) {
    let other = path.with_file_name("fifo");
    fifo(&other);
    let is_complete = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_complete.load(Relaxed) {
                let _ = renameat_with(CWD, path, CWD, &other, RenameFlags::EXCHANGE);
            }
        });
        let (send, receive) = mpsc::channel();
        // Not of the scope: a call that waits for ever does not end the test.
        thread::spawn(move || {
            (0..50_000).for_each(|_| open());
            let _ = send.send(());
        });
        let received = receive.recv_timeout(LIMIT);
        is_complete.store(true, Relaxed);
        received.expect("opened, or refused, without waiting");
    });
}

#[test]
fn a_source_never_waits_for_a_fifo() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("in");
    fs::write(&path, "bytes").expect("room");
    never_waits(&path.clone(), move || match FileSource::open(&path) {
        Ok(source) => assert_eq!(source.len(), 5, "a FIFO"),
        Err(error) => assert!(error.to_string().contains("FIFO"), "{error}"),
    });
}

#[test]
fn a_sink_never_waits_for_a_fifo() {
    let place = tempfile::tempdir().expect("a directory");
    let (path, partial) = (place.path().join("out"), place.path().join(".out.1-1.ringmem-partial"));
    fs::write(&partial, "bytes").expect("room");
    // Its lock makes the file a live process's, which each sink opens and leaves.
    let file = fs::File::open(&partial).expect("it is there");
    file.lock().expect("a lock");
    never_waits(&partial, move || drop(FileSink::create(&path).expect("room")));
}

#[test]
fn links_planted_at_temporary_names_are_not_followed() {
    let place = tempfile::tempdir().expect("a directory");
    let (path, victim) = (place.path().join("out"), place.path().join("victim"));
    fs::write(&victim, "victim").expect("room");
    let own = |number: u64| place.path().join(format!(".out.{}-{number}.ringmem-partial", std::process::id()));
    let sink = FileSink::create(&path).expect("room");
    let used = (0..).find(|&number| own(number).exists()).expect("its temporary file");
    (used + 1..used + 100).for_each(|number| symlink(&victim, own(number)).expect("a link"));
    replace(&path);
    sink.commit().expect("no fault");
    assert_eq!(fs::read(&victim).expect("it is there"), b"victim");
    assert_eq!(partial(place.path()).count(), 99);
}

#[test]
fn a_file_size_limit_is_an_error_and_keeps_the_old_file() {
    if !is_again() {
        return passes_again("streaming::files::a_file_size_limit_is_an_error_and_keeps_the_old_file", "ulimit -f 100;", &["sys_resource"]);
    }
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    fs::write(&path, "old").expect("room");
    let (limit, bytes) = (rustix::process::getrlimit(rustix::process::Resource::Fsize).current.expect("a limit"), vec![7; 1 << 20]);
    let mut sink = FileSink::create(&path).expect("room");
    assert_eq!(sink.write_at(&bytes, 0).expect("room for some") as u64, limit);
    let error = sink.write_at(&bytes, limit).expect_err("no room");
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge, "{error}");
    drop(sink);
    assert_eq!((fs::read(&path).expect("it is there"), partial(place.path()).count()), (b"old".to_vec(), 0));
}
