//! A C++ process at the other ends of rings: by the library (in `capi/tests`), and without it (`tests/c/protocol_peer.cpp`).

#[path = "../../examples/08_cpp/messages.rs"]
pub mod messages;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use messages::{ABI, Fill, Order};
use ringmem::describe;
use ringmem::shared::{Consumer, Memory, OwnerState, Producer, Side};
use ringmem::wait::WaitStrategy;

use crate::example;
use crate::peer_program::{TEXTS, build};
use crate::process::{LIMIT, ended};

const HOW: WaitStrategy = WaitStrategy::Sleep { polls: 100 };

/// The program's words for its failures, after `peer: `.
pub struct Texts {
    pub no_consumer: &'static str,
    pub owned_consumer: &'static str,
    pub owned_producer: &'static str,
    pub other_messages: &'static str,
    pub missing: &'static str,
    pub short: &'static str,
    pub zeros: &'static str,
    /// A word in the file, an invalid value, and the text.
    pub words: [(u64, u64, &'static str); 12],
}

static PEER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpp_peer");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("layouts.h"), describe::c(&ABI).to_string()).unwrap();
    build(&folder)
});

struct Rings {
    folder: tempfile::TempDir,
    orders: Memory,
    fills: Memory,
}

impl Rings {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let orders = Memory::create_at::<Order>(folder.path().join("orders"), 4).unwrap();
        let fills = Memory::create_at::<Fill>(folder.path().join("fills"), 4).unwrap();
        Self { folder, orders, fills }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ends(&self) -> (Producer<Order>, Consumer<Fill>) {
        (self.orders.producer().unwrap(), self.fills.consumer().unwrap())
    }

    fn start(&self, names: [&str; 2]) -> Child {
        let mut command = Command::new(&*PEER);
        command.args(names.map(|name| self.path(name))).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn refused(&self, names: [&str; 2], fact: &str) {
        let output = ended(self.start(names));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(fact), "{fact}: {output:?}");
    }
}

/// Offset of the ring in its file.
pub const RING: u64 = 1152;

const ORDER: Order = Order { id: 7, price: 2.5, quantity: 3 };
const FILL: Fill = Fill { id: 7, cost: 7.5 };

#[test]
fn the_example_exchanges_messages_with_a_cpp_process() {
    let program = example::program("08_cpp");
    let header = Command::new(&program).arg("header").output().unwrap();
    assert_eq!(String::from_utf8(header.stdout).unwrap(), describe::c(&ABI).to_string());
    let output = ended(Command::new(program).arg(&*PEER).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let expected = "a second consumer: busy: the ring has a consumer, in this process or another\n\
                    10000 orders in C++\n10000 orders filled for 22500.00; the C++ process: Left\n";
    assert_eq!(text, expected);
}

#[test]
fn a_successor_continues_after_a_killed_cpp_process() {
    let rings = Rings::new();
    let (mut sender, mut receiver) = rings.ends();
    for number in 1..=3 {
        let began = Instant::now();
        let mut peer = rings.start(["orders", "fills"]);
        assert_eq!(sender.wait_for_peer(HOW, Some(Instant::now() + LIMIT)), Ok(number));
        assert_eq!(receiver.wait_for_peer(HOW, Some(Instant::now() + LIMIT)), Ok(number));
        sender.waiting(HOW).send_timeout(ORDER, LIMIT).unwrap();
        assert_eq!(receiver.waiting(HOW).recv_timeout(LIMIT), Ok(FILL));
        assert!(began.elapsed() < LIMIT / 2, "the waits ended by their deadlines, not by the peer");
        assert_eq!((sender.peer_state(), receiver.peer_state()), (OwnerState::Alive, OwnerState::Alive));
        peer.kill().unwrap();
        peer.wait().unwrap();
        assert_eq!((sender.peer_state(), receiver.peer_state()), (OwnerState::Died, OwnerState::Died));
        // Every 64th call asks the operating system.
        assert!((0..64).any(|_| sender.is_disconnected()) && (0..64).any(|_| receiver.is_disconnected()));
    }
}

#[test]
fn a_cpp_process_ends_with_its_peer() {
    let rings = Rings::new();
    let (mut sender, receiver) = rings.ends();
    let peer = rings.start(["orders", "fills"]);
    (0..3).for_each(|_| sender.push(ORDER).unwrap());
    drop(sender);
    assert_eq!(ended(peer).stdout, b"3 orders in C++\n");
    assert_eq!((rings.orders.state(Side::Consumer), receiver.peer_state()), (OwnerState::Left, OwnerState::Left));
    drop(receiver);

    // One order more than slots for fills, of which three are in use; no one takes them.
    let (mut sender, receiver) = rings.ends();
    (0..2).for_each(|_| sender.push(ORDER).unwrap());
    drop(receiver);
    let output = ended(rings.start(["orders", "fills"]));
    assert!(output.status.code() == Some(1) && output.stderr.starts_with(format!("peer: {}", TEXTS.no_consumer).as_bytes()), "{output:?}");
}

#[test]
fn a_cpp_process_ends_if_its_peer_died() {
    let rings = Rings::new();
    let mut sender = rings.orders.producer::<Order>().unwrap();
    sender.push(ORDER).unwrap();
    drop(sender);
    // A killed producer's state: open in the file, not locked.
    let file = fs::File::options().write(true).open(rings.path("orders")).unwrap();
    file.write_all_at(&u64::to_le_bytes(2 << 2 | 1), RING + 8).unwrap();
    assert_eq!(rings.orders.state(Side::Producer), OwnerState::Died);
    assert_eq!(ended(rings.start(["orders", "fills"])).stdout, b"1 orders in C++\n");
}

#[test]
fn a_cpp_process_rejects_owned_ends_and_other_files() {
    let rings = Rings::new();
    let consumer = rings.orders.consumer::<Order>().unwrap();
    rings.refused(["orders", "fills"], TEXTS.owned_consumer);
    drop(consumer);
    let producer = rings.fills.producer::<Fill>().unwrap();
    rings.refused(["orders", "fills"], TEXTS.owned_producer);
    drop(producer);
    rings.refused(["fills", "orders"], TEXTS.other_messages);
    rings.refused(["missing", "fills"], TEXTS.missing);
    fs::write(rings.path("short"), [0; 100]).unwrap();
    rings.refused(["short", "fills"], TEXTS.short);
    fs::write(rings.path("zeros"), [0; 1 << 16]).unwrap();
    rings.refused(["zeros", "fills"], TEXTS.zeros);
    assert_eq!(rings.orders.state(Side::Consumer), OwnerState::Left, "each end that was taken is closed");
}

#[test]
fn a_cpp_process_validates_every_word_of_its_peer() {
    for (word, value, fact) in TEXTS.words {
        let rings = Rings::new();
        let file = fs::File::options().write(true).open(rings.path("orders")).unwrap();
        file.write_all_at(&u64::to_le_bytes(value), word).unwrap();
        rings.refused(["orders", "fills"], fact);
    }
}
