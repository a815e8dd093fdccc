//! Two hosts: sessions, processes, rings in files, and their link.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::shared::Memory;
use tempfile::TempDir;
use zenoh::{Config, Session, Wait};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub const LIMIT: Duration = Duration::from_secs(120);

/// A message with words that differ if torn.
pub type Message = [u64; 4];

pub const fn message(number: u64) -> Message {
    [number, !number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number]
}

pub fn eventually<R>(what: &str, mut done: impl FnMut() -> Option<R>) -> R {
    let begun = Instant::now();
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_micros(200));
    }
}

pub fn endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("tcp/{}", listener.local_addr().unwrap())
}

pub fn session(mode: &str, listen: &[&str], connect: &[&str]) -> Session {
    let mut config = Config::default();
    for (name, value) in [
        ("mode", format!("{mode:?}")),
        ("listen/endpoints", format!("{listen:?}")),
        ("connect/endpoints", format!("{connect:?}")),
        ("connect/timeout_ms", "-1".to_owned()),
        ("connect/exit_on_failure", "false".to_owned()),
        ("connect/retry", "{ period_init_ms: 100, period_max_ms: 500, period_increase_factor: 2 }".to_owned()),
        ("scouting/multicast/enabled", "false".to_owned()),
    ] {
        config.insert_json5(name, &value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

pub fn pair() -> (Session, Session) {
    let endpoint = endpoint();
    let listens = session("peer", &[&endpoint], &[]);
    let connects = session("peer", &[], &[&endpoint]);
    (listens, connects)
}

pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The rings of two hosts in files, and the programs that relay between them.
pub struct Hosts {
    _directory: TempDir,
    from: PathBuf,
    to: PathBuf,
    pub source: Memory,
    pub sink: Memory,
}

impl Hosts {
    pub fn new(capacity: u64) -> Self {
        let directory = tempfile::Builder::new().prefix("ringmem-zenoh").tempdir_in("/dev/shm").unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let (source, sink) = (Memory::create_at::<Message>(&from, capacity).unwrap(), Memory::create_at::<Message>(&to, capacity).unwrap());
        Self { _directory: directory, from, to, source, sink }
    }

    pub fn sender(&self, arguments: &[&str]) -> Process {
        Process::start(&mut self.send_command(arguments))
    }

    pub fn receiver(&self, arguments: &[&str]) -> Process {
        Process::start(&mut self.receive_command(arguments))
    }

    pub fn send_command(&self, arguments: &[&str]) -> Command {
        relay("send", &self.from, arguments)
    }

    pub fn receive_command(&self, arguments: &[&str]) -> Command {
        relay("receive", &self.to, arguments)
    }

    /// Pushes `count` messages into the source; each must arrive once, in order. Calls `during` with the number of arrived messages.
    pub fn carry(&self, count: u64, mut during: impl FnMut(u64)) {
        let mut producer = self.source.producer::<Message>().unwrap();
        let mut consumer = self.sink.consumer::<Message>().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                let mut batch = Vec::new();
                while next < count {
                    batch.clear();
                    batch.extend((next..count.min(next + 256)).map(message));
                    let mut rest = &batch[..];
                    eventually("room in the source", || {
                        rest = &rest[producer.push_slice(rest).unwrap()..];
                        rest.is_empty().then_some(())
                    });
                    next += batch.len() as u64;
                }
            });
            let mut arrived = 0;
            let mut values = [message(0); 256];
            while arrived < count {
                during(arrived);
                let popped =
                    eventually("a message in the sink", || Some(consumer.pop_slice(&mut values).unwrap()).filter(|count| *count > 0));
                for value in &values[..popped] {
                    assert_eq!(*value, message(arrived), "message {arrived}");
                    arrived += 1;
                }
            }
        });
        // No message is doubled after the last one has arrived either.
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(consumer.refresh(), Ok(0));
    }
}

fn relay(command: &str, ring: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem-relay"));
    program.arg(command).arg("--ring").arg(ring).args(["--key", "test/ring"]).args(arguments);
    program
}

const OPEN: u8 = 0;
const PAUSED: u8 = 1;
const CUT: u8 = 2;

/// A TCP link that can be paused (bytes wait) or cut (connections end, new ones are refused).
pub struct Link {
    pub endpoint: String,
    state: Arc<AtomicU8>,
    carried: Arc<AtomicU64>,
}

impl Link {
    pub fn to(endpoint: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = format!("tcp/{}", listener.local_addr().unwrap());
        let target = endpoint.strip_prefix("tcp/").unwrap().to_owned();
        let state = Arc::new(AtomicU8::new(OPEN));
        let shared = Arc::clone(&state);
        let carried = Arc::new(AtomicU64::new(0));
        let bytes = Arc::clone(&carried);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if shared.load(SeqCst) == CUT {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&target) else { continue };
                for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    let (state, bytes) = (Arc::clone(&shared), Arc::clone(&bytes));
                    thread::spawn(move || forward(from, to, &state, &bytes));
                }
            }
        });
        Self { endpoint: here, state, carried }
    }

    pub fn carried(&self) -> u64 {
        self.carried.load(SeqCst)
    }

    pub fn pause(&self) {
        self.state.store(PAUSED, SeqCst);
    }

    pub fn cut(&self) {
        self.state.store(CUT, SeqCst);
    }

    pub fn open(&self) {
        self.state.store(OPEN, SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &AtomicU8, carried: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    loop {
        match state.load(SeqCst) {
            CUT => break,
            PAUSED => thread::sleep(Duration::from_millis(5)),
            _ => match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) if to.write_all(&bytes[..count]).is_ok() => {
                    carried.fetch_add(count as u64, SeqCst);
                }
                Ok(_) => break,
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(_) => break,
            },
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
