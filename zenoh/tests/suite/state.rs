//! The state file of a sink, in a folder that other users may write.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ringmem::shared::Memory;
use ringmem_zenoh::{Error, SharedSink, Sink};

const LIMIT: Duration = Duration::from_secs(60);

struct Place {
    folder: tempfile::TempDir,
    ring: PathBuf,
    state: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [ring, state] = ["orders", "orders.relay"].map(|name| folder.path().join(name));
        Memory::create_at::<u64>(&ring, 64).unwrap();
        Self { folder, ring, state }
    }

    fn victim(&self) -> PathBuf {
        let victim = self.folder.path().join("victim");
        fs::write(&victim, "victim").unwrap();
        victim
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, action: &str, why: &str) {
    let Err(error) = result else { panic!("not refused: {why}") };
    let text = error.to_string();
    assert!(matches!(error, Error::State { .. }), "{text}");
    assert!(text.contains(&format!("cannot {action} ")) && text.contains("orders.relay") && text.contains(why), "{text}");
}

#[test]
fn a_state_is_returned_to_the_next_process() {
    let place = Place::new();
    let mut sink = SharedSink::open(&place.ring).unwrap();
    assert_eq!(sink.load().unwrap(), None);
    for state in [&b"first"[..], b"second, longer", b""] {
        sink.save(state).unwrap();
        drop(sink);
        sink = SharedSink::open(&place.ring).unwrap();
        assert_eq!(sink.load().unwrap().as_deref(), Some(state));
    }
    assert_eq!((fs::read_dir(place.folder.path()).unwrap().count(), fs::metadata(&place.state).unwrap().mode() & 0o777), (2, 0o600));
}

#[test]
fn a_fifo_is_no_state() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(&place.state).status().unwrap().success());
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(SharedSink::open(place.ring).and_then(|sink| sink.load())));
    refused(receive.recv_timeout(LIMIT).expect("an error, without waiting"), "read", "not a regular file");
}

#[test]
fn a_link_is_no_state() {
    let place = Place::new();
    let mut sink = SharedSink::open(&place.ring).unwrap();
    let victim = place.victim();
    symlink(&victim, &place.state).unwrap();
    refused(sink.load(), "read", "symbolic link");
    refused(sink.save(b"state"), "write", "symbolic link");
    drop(sink);
    refused(SharedSink::open(&place.ring), "read", "symbolic link");
    assert_eq!(fs::read(&victim).unwrap(), b"victim");
}

#[test]
fn a_link_at_the_temporary_name_is_not_followed() {
    let place = Place::new();
    let mut sink = SharedSink::open(&place.ring).unwrap();
    let victim = place.victim();
    symlink(&victim, place.folder.path().join("orders.relay.new")).unwrap();
    sink.save(b"state").unwrap();
    assert_eq!((sink.load().unwrap().as_deref(), fs::read(&victim).unwrap()), (Some(&b"state"[..]), b"victim".to_vec()));
}

#[test]
fn another_user_s_file_is_no_state() {
    let place = Place::new();
    fs::write(&place.state, "state").unwrap();
    if std::os::unix::fs::chown(&place.state, Some(12_345), None).is_err() {
        eprintln!("skipped: only root makes files of other users");
        return;
    }
    refused(SharedSink::open(&place.ring), "read", "belongs to another user");
    assert_eq!(fs::read(&place.state).unwrap(), b"state");
}

#[test]
fn a_state_of_unlimited_length_is_not_read() {
    let place = Place::new();
    fs::File::create(&place.state).unwrap().set_len(1 << 40).unwrap();
    refused(SharedSink::open(&place.ring), "read", "bytes");
}
