use std::fs;
use std::io;
use std::path::Path;

use ringmem::streaming::{Cause, FileSink, FileSource, Job, Sink, Through};

use crate::streaming::rig::{backend, noise, streamer};

fn names(place: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(place).expect("a directory").map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_file_appears_under_its_name_only_on_commit() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 3);
    for (round, length) in [0, 1, 999, 12_345, 10].into_iter().enumerate() {
        let before = fs::read(&path).ok();
        let bytes = noise(length);
        let mut sink = FileSink::create(&path).expect("room");
        streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut Through).expect("no fault");
        assert_eq!(fs::read(&path).ok(), before, "round {round}");
        let unfinished = names(place.path()).into_iter().find(|name| name != "out").expect("the temporary file");
        assert!(unfinished.starts_with(".out.") && unfinished.ends_with(".ringmem-partial"), "{unfinished}");
        sink.commit().expect("no fault");
        assert_eq!(names(place.path()), ["out"]);
        assert!(fs::read(&path).expect("it is there") == bytes);
    }
}

#[test]
fn an_uncommitted_file_is_removed() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    let write = || {
        let mut sink = FileSink::create(&path).expect("room");
        assert_eq!(sink.write_at(b"half", 0).expect("room"), 4);
        sink
    };
    drop(write());
    assert_eq!(names(place.path()), [""; 0]);
    fs::write(&path, "old").expect("room");
    drop(write());
    assert_eq!((names(place.path()), fs::read_to_string(&path).expect("as it was")), (vec!["out".to_owned()], "old".to_owned()));
    let (first, second) = (write(), write());
    assert_eq!(names(place.path()).len(), 3);
    second.commit().expect("no fault");
    first.commit().expect("no fault");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "half");
}

/// In a child: the directory is the whole process's.
#[test]
#[cfg(target_os = "linux")]
fn a_later_change_of_the_working_directory_changes_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("old"), "old").expect("room");
    let outcome = crate::rig::in_fork::fork(|| {
        let change = |to: &Path| std::env::set_current_dir(to).is_ok();
        ["old", "new"].into_iter().all(|name| {
            let make = || FileSink::create(name).ok().filter(|_| change(Path::new("/")));
            let dropped = change(place.path()) && make().is_some();
            let committed =
                change(place.path()) && make().is_some_and(|mut sink| sink.write_at(b"bytes", 0).is_ok() && sink.commit().is_ok());
            dropped && committed
        })
    });
    assert!(outcome, "no file was written");
    assert_eq!(names(place.path()), ["new", "old"], "and nothing else");
    for name in ["new", "old"] {
        assert_eq!(fs::read(place.path().join(name)).expect("it is there"), b"bytes", "{name}");
    }
}

#[test]
#[cfg(unix)]
fn dropping_a_file_sink_in_a_fork_keeps_the_file() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    let mut sink = FileSink::create(&path).expect("room");
    assert_eq!(sink.write_at(b"half", 0).expect("room"), 4);
    // SAFETY: the child has only this thread, removes at most a file, and exits without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        drop(sink);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our child; a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!((status, names(place.path()).len()), (0, 1));
    sink.commit().expect("it is there");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "half");
}

#[test]
fn a_shorter_rewrite_truncates_the_file() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("out");
    let mut sink = FileSink::create(&path).expect("room");
    assert_eq!((sink.write_at(b"0123456789", 0).expect("room"), sink.write_at(b"abc", 4).expect("room"), sink.len()), (10, 3, 7));
    for mut sink in [Box::new(sink) as Box<dyn Sink>, Box::new(vec![0; 7])] {
        let gap = sink.write_at(b"x", 8).expect_err("byte 7 was never written");
        assert_eq!(gap.kind(), io::ErrorKind::InvalidInput);
    }
    let mut sink = FileSink::create(&path).expect("room");
    assert_eq!((sink.write_at(b"0123456789", 0).expect("room"), sink.write_at(b"abc", 4).expect("room")), (10, 3));
    sink.commit().expect("no fault");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "0123abc");
}

#[test]
#[cfg(unix)]
fn commit_keeps_permissions_and_symbolic_links() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().expect("a directory");
    let [real, link] = ["real", "link"].map(|name| place.path().join(name));
    fs::write(&real, "old").expect("room");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("it is ours");
    std::os::unix::fs::symlink("real", &link).expect("a link");
    let mut sink = FileSink::create(&link).expect("room");
    sink.write_at(b"new", 0).expect("room");
    sink.commit().expect("no fault");
    assert_eq!(names(place.path()), ["link", "real"]);
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    assert_eq!(fs::read_to_string(&real).expect("it is there"), "new");
    assert_eq!(fs::metadata(&real).expect("it is there").permissions().mode() & 0o777, 0o640);
}

#[test]
fn file_errors_have_the_path_and_the_reason() {
    let place = tempfile::tempdir().expect("a directory");
    let nowhere = place.path().join("no/where");
    let refused = [FileSource::open(&nowhere).map(drop), FileSink::create(&nowhere).map(drop), FileSource::open(place.path()).map(drop)];
    let [opened, created, directory] = refused.map(|refused| refused.expect_err("no file"));
    for (action, path, error) in [("open", &*nowhere, opened), ("create", &nowhere, created), ("open", place.path(), directory)] {
        let reason = match error.kind() {
            io::ErrorKind::IsADirectory => "is a directory, not a regular file".to_owned(),
            _ => fs::metadata(&nowhere).expect_err("it is not there").to_string(),
        };
        assert_eq!(error.to_string(), format!("cannot {action} {}: {reason}", path.display()));
    }
}

#[test]
fn create_rejects_paths_that_cannot_hold_a_file() {
    let place = tempfile::tempdir().expect("a directory");
    for path in ["", "no/where", "..", "new/", "new/."] {
        let path = place.path().join(path);
        assert!(FileSink::create(&path).is_err(), "{}", path.display());
    }
    #[cfg(unix)]
    {
        let link = place.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).expect("a link");
        for path in [Path::new("/dev/null"), &link] {
            assert_eq!(FileSink::create(path).expect_err("no file").kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        fs::remove_file(link).expect("it is ours");
    }
    assert_eq!(names(place.path()), [""; 0]);
}

#[test]
fn commit_fails_when_the_directory_was_removed() {
    let place = tempfile::tempdir().expect("a directory");
    let directory = place.path().join("gone");
    fs::create_dir(&directory).expect("room");
    let mut sink = FileSink::create(directory.join("out")).expect("room");
    sink.write_at(b"bytes", 0).expect("room");
    fs::remove_dir_all(&directory).expect("it is ours");
    assert_eq!(sink.commit().expect_err("nowhere to go").kind(), io::ErrorKind::NotFound);
    assert_eq!(names(place.path()), [""; 0]);
}

struct Full {
    bytes: Vec<u8>,
    room: usize,
}

impl Sink for Full {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let count = bytes.len().min(7).min(self.room - self.room.min(at as usize));
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.write_at(&bytes[..count], at)
    }
}

#[test]
fn a_full_sink_reports_its_bytes_and_can_continue() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(1000);
    let mut sink = Full { bytes: Vec::new(), room: 345 };
    let stopped = streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut Through).expect_err("it is full");
    assert!(matches!(&stopped.cause, Cause::Write { written: 345, source } if source.kind() == io::ErrorKind::StorageFull), "{stopped:?}");
    assert_eq!(stopped.done, 300);
    sink.room = 1000;
    streamer.run(Job::new(&mut &bytes[..]).from(stopped.done).to(&mut sink), &mut Through).expect("there is room now");
    assert!(sink.bytes == bytes);
}

#[test]
#[cfg(target_os = "linux")]
fn file_names_up_to_255_bytes_are_accepted() {
    let place = tempfile::tempdir().expect("a directory");
    for length in [1, 230, 255] {
        let path = place.path().join("n".repeat(length));
        let mut sink = FileSink::create(&path).expect("room");
        sink.write_at(b"bytes", 0).expect("room");
        sink.commit().expect("no fault");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "bytes");
    }
    assert_eq!(FileSink::create(place.path().join("n".repeat(256))).expect_err("one too many").kind(), io::ErrorKind::InvalidFilename);
    assert_eq!(names(place.path()).len(), 3);
}
