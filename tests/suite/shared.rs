//! Rings between processes that are killed, lie, or sleep: this program with a role in its environment ([`child_role`]).
#![cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, ErrorKind, Write, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ringmem::error::ConfigError;

use ringmem::attach::{AttachError, Corrupt};
use ringmem::ring::{End, PopError, PushError};
use ringmem::shared::{Consumer, Memory, MessageFacts, NoPeer, OwnerState, Producer, Side, UntypedConsumer, UntypedProducer};
use ringmem::wait::{RecvError, SendError, WaitError, WaitStrategy};
use ringmem::{Error, RingHeader, SharedLayout, region};

use crate::rig::rerun_or_skip::{is_again, passes_again};
use crate::{LIMIT, eventually};

type Message = [u64; 8];

fn message(index: u64) -> Message {
    std::array::from_fn(|word| index.wrapping_mul(8).wrapping_add(word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

const CAPACITY: u64 = 64;
const RING: u64 = 1152;

const ROLE: &str = "RINGMEM_SHARED_ROLE";
const SECOND: &str = "RINGMEM_SHARED_SECOND";

fn woken<R>(wait: impl FnOnce(Duration) -> R) -> R {
    let began = Instant::now();
    let result = wait(LIMIT);
    assert!(began.elapsed() < LIMIT / 2, "nobody woke it");
    result
}

fn duplicate(memory: &Memory) -> OwnedFd {
    memory.as_fd().try_clone_to_owned().unwrap()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("random numbers ended with {:#x}", self.0);
        }
    }
}

struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(role: &str, memory: &Memory, second: Option<&Memory>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["shared::child_role", "--exact", "--nocapture", "--test-threads=1", "-q"]).env(ROLE, role);
        if let Some(second) = second {
            command.env(SECOND, format!("/proc/{}/fd/{}", std::process::id(), second.as_fd().as_raw_fd()));
        }
        let mut child = command.stdin(Stdio::from(duplicate(memory))).stdout(Stdio::piped()).spawn().unwrap();
        let reports = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || reports.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn kill(&mut self) {
        use std::os::unix::process::ExitStatusExt;
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it had ended by itself: {status}");
    }

    fn says(&self, what: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == what => return,
                Ok(_) => {}
                Err(why) => panic!("it did not say `{what}`: {why}"),
            }
        }
    }

    fn ends_well(mut self) {
        let mut status = None;
        eventually("its end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }

    fn is_asleep(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.into_iter().all(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn child_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let memory = Memory::from_fd(stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
    match role.as_str() {
        "fill" => fill(&memory),
        "drain" => drain(&memory),
        "answer" => answer(&memory),
        "three" => send_three(&memory),
        other => panic!("no role {other}"),
    }
}

fn say_if_dead(state: OwnerState, generation: u64, last: &mut u64) {
    if state == OwnerState::Died && generation != *last {
        *last = generation;
        let mut out = stdout();
        writeln!(out, "\ndied {generation}").unwrap();
        out.flush().unwrap();
    }
    thread::yield_now();
}

fn fill(memory: &Memory) {
    let (_, left_by_predecessor) = memory.indices();
    let mut producer = memory.producer::<Message>().unwrap();
    assert_eq!(producer.tail(), left_by_predecessor);
    let sleeps = memory.generation(Side::Producer).is_multiple_of(2);
    let mut said = 0;
    loop {
        let tail = producer.tail();
        let has_stopped = if sleeps {
            match producer.waiting(WaitStrategy::Sleep { polls: 10 }).send_timeout(message(tail), Duration::from_millis(1)) {
                Ok(()) => false,
                Err(SendError::Timeout(_) | SendError::Disconnected(_)) => true,
                Err(SendError::Corrupt(..)) => panic!("corrupt at tail {tail}"),
            }
        } else if tail.is_multiple_of(3) {
            producer.push_slice(&[0, 1, 2].map(|ahead| message(tail.wrapping_add(ahead)))).unwrap() == 0
        } else {
            match producer.push(message(tail)) {
                Ok(()) => false,
                Err(PushError::Full(_)) => true,
                Err(PushError::Corrupt(..)) => panic!("corrupt at tail {tail}"),
            }
        };
        if has_stopped && producer.is_disconnected() {
            say_if_dead(producer.peer_state(), producer.peer_generation(), &mut said);
        }
    }
}

fn drain(memory: &Memory) {
    let (left_by_predecessor, _) = memory.indices();
    let mut consumer = memory.consumer::<Message>().unwrap();
    assert_eq!(consumer.head(), left_by_predecessor);
    let sleeps = memory.generation(Side::Consumer).is_multiple_of(2);
    let mut said = 0;
    loop {
        let head = consumer.head();
        let mut popped = [[0; 8]; 3];
        let count = if sleeps {
            match consumer.waiting(WaitStrategy::Sleep { polls: 10 }).recv_timeout(Duration::from_millis(1)) {
                Ok(message) => {
                    popped[0] = message;
                    1
                }
                Err(RecvError::Timeout | RecvError::Disconnected) => 0,
                Err(RecvError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        } else if head.is_multiple_of(3) {
            consumer.pop_slice(&mut popped).unwrap()
        } else {
            match consumer.pop() {
                Ok(message) => {
                    popped[0] = message;
                    1
                }
                Err(PopError::Empty) => 0,
                Err(PopError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        };
        for (ahead, popped) in popped[..count].iter().enumerate() {
            assert_eq!(*popped, message(head.wrapping_add(ahead as u64)), "at index {head} + {ahead}");
        }
        if count == 0 && consumer.is_disconnected() {
            say_if_dead(consumer.peer_state(), consumer.peer_generation(), &mut said);
        }
    }
}

#[test]
fn killed_producers_lose_no_published_message() {
    const KILLS: u64 = 125 * crate::DEPTH;
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20 | 1;
    let seed = std::env::var("RINGMEM_SEED").map_or(seed, |seed| seed.parse().expect("a number"));
    println!("RINGMEM_SEED={seed}");
    let mut random = Random(seed);
    let began = Instant::now();

    let memory = Memory::create::<Message>(CAPACITY).unwrap();
    let ends = [(Side::Producer, "fill"), (Side::Consumer, "drain")];
    let mut workers = ends.map(|(_, role)| Worker::start(role, &memory, None));
    let (mut reported, mut deaths) = ([0; 2], 0);
    let (mut head, mut tail) = (0, 0);
    for kill in 0..KILLS {
        let place = random.below(2) as usize;
        let (victim, role) = ends[place];
        if random.below(8) != 0 {
            eventually("an owner at work", || ends.iter().all(|&(side, _)| memory.state(side) == OwnerState::Alive));
        }
        thread::sleep(Duration::from_micros(random.below(2000)));
        workers[place].kill();

        let (state, generation) = (memory.state(victim), memory.generation(victim));
        let expected = if generation == 0 { OwnerState::NotYet } else { OwnerState::Died };
        assert_eq!(state, expected, "kill {kill}: the {role}er of generation {generation}");
        let (now_head, now_tail) = memory.indices();
        assert!(now_head >= head && now_tail >= tail && now_tail >= now_head, "({head}, {tail}) became ({now_head}, {now_tail})");
        (head, tail) = (now_head, now_tail);
        if generation > reported[place] {
            workers[1 - place].says(&format!("died {generation}"));
            (reported[place], deaths) = (generation, deaths + 1);
        }
        workers[place] = Worker::start(role, &memory, None);
    }
    workers.iter_mut().for_each(Worker::kill);

    let mut consumer = memory.consumer::<Message>().unwrap();
    let mut producer = memory.producer::<Message>().unwrap();
    let left = producer.len();
    assert_eq!(producer.tail().wrapping_sub(consumer.head()), left as u64);
    for _ in 0..left {
        let index = consumer.head();
        assert_eq!(consumer.pop(), Ok(message(index)), "at index {index}");
    }
    assert_eq!((consumer.pop(), consumer.head()), (Err(PopError::Empty), producer.tail()));
    producer.push(message(producer.tail())).unwrap();
    assert!(deaths > KILLS / 2, "only {deaths} of them were at work");
    assert!(producer.tail() > KILLS, "only {} messages", producer.tail());
    println!("{KILLS} kills, {deaths} of them at work and noticed, {} messages, {:?}", producer.tail(), began.elapsed());
}

fn answer(memory: &Memory) {
    let second = Memory::open(std::env::var_os(SECOND).unwrap()).unwrap();
    let (mut consumer, mut producer) = (memory.consumer::<u64>().unwrap(), second.producer::<u64>().unwrap());
    let how = WaitStrategy::Sleep { polls: 0 };
    let (mut questions, mut answers) = (consumer.waiting(how), producer.waiting(how));
    loop {
        match questions.recv() {
            Ok(number) => answers.send(number * number).unwrap(),
            Err(why) => {
                assert_eq!(why, RecvError::Disconnected);
                return;
            }
        }
    }
}

#[test]
fn a_message_and_a_dropped_end_wake_a_sleeping_process() {
    let (questions, answers) = (Memory::create::<u64>(4).unwrap(), Memory::create::<u64>(4).unwrap());
    let mut asked = questions.producer::<u64>().unwrap();
    let mut answered = answers.consumer::<u64>().unwrap();
    let worker = Worker::start("answer", &questions, Some(&answers));
    eventually("an owner", || answered.peer_state() == OwnerState::Alive);
    let how = WaitStrategy::Sleep { polls: 0 };
    for number in 0..50 {
        eventually("its sleep", || worker.is_asleep());
        asked.waiting(how).send_timeout(number, LIMIT).unwrap();
        assert_eq!(woken(|most| answered.waiting(how).recv_timeout(most)), Ok(number * number));
    }
    eventually("its sleep", || worker.is_asleep());
    drop(asked);
    worker.ends_well();
    assert_eq!(woken(|most| answered.waiting(how).recv_timeout(most)), Err(RecvError::Disconnected));
    assert_eq!(answered.peer_state(), OwnerState::Left);
}

fn send_three(memory: &Memory) {
    let mut producer = memory.producer::<u64>().unwrap();
    let mut sender = producer.waiting(WaitStrategy::Sleep { polls: 0 });
    (1..=3).for_each(|number| sender.send_timeout(number, LIMIT).unwrap());
    loop {
        thread::park();
    }
}

#[test]
fn a_deadline_ends_the_wait_for_a_slow_or_dead_producer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut consumer = memory.consumer::<u64>().unwrap();
    let mut worker = Worker::start("three", &memory, None);
    let how = WaitStrategy::Sleep { polls: 0 };
    assert_eq!([(); 2].map(|()| woken(|most| consumer.waiting(how).recv_timeout(most))), [Ok(1), Ok(2)]);
    assert_eq!(consumer.peer_state(), OwnerState::Alive);
    let mut waiting = consumer.waiting(how);
    assert_eq!(woken(|most| waiting.recv_timeout(most)), Ok(3));
    let (began, most) = (Instant::now(), Duration::from_millis(50));
    assert_eq!(waiting.recv_timeout(most), Err(RecvError::Timeout), "slow is not dead");
    assert!(began.elapsed() >= most && began.elapsed() < LIMIT);

    worker.kill();
    assert_eq!(waiting.end().peer_state(), OwnerState::Died);
    let began = Instant::now();
    eventually("the death to be seen", || match waiting.recv_timeout(Duration::from_millis(2)) {
        Err(RecvError::Disconnected) => true,
        other => {
            assert_eq!(other, Err(RecvError::Timeout));
            false
        }
    });
    assert!(began.elapsed() < LIMIT);
    let mut successor = memory.producer::<u64>().unwrap();
    assert_eq!((successor.tail(), memory.generation(Side::Producer)), (3, 2));
    successor.push(4).unwrap();
    assert_eq!(waiting.recv_timeout(LIMIT), Ok(4));
    assert_eq!(waiting.end().peer_state(), OwnerState::Alive);
}

#[test]
fn a_sleeper_without_a_deadline_sees_a_killed_peer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut worker = Worker::start("three", &memory, None);
    let mut consumer = memory.consumer::<u64>().unwrap().into_waiting(WaitStrategy::Sleep { polls: 0 });
    assert_eq!([(); 3].map(|()| woken(|most| consumer.recv_timeout(most))), [Ok(1), Ok(2), Ok(3)]);
    let (done, received) = channel();
    thread::spawn(move || done.send(consumer.recv()));
    let file = File::from(duplicate(&memory));
    let mut word = [0; 8];
    eventually("its sleep", || {
        file.read_exact_at(&mut word, RING + 16).unwrap();
        u64::from_ne_bytes(word) as u32 == 1
    });
    worker.kill();
    assert_eq!(received.recv_timeout(LIMIT), Ok(Err(RecvError::Disconnected)));
}

#[test]
fn a_consumer_waits_for_the_successor_of_a_killed_process() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut consumer = memory.consumer::<u64>().unwrap();
    let how = WaitStrategy::Sleep { polls: 0 };
    for generation in 1..=3 {
        let mut worker = Worker::start("three", &memory, None);
        assert_eq!(woken(|most| consumer.wait_for_peer(how, Some(Instant::now() + most))), Ok(generation));
        for number in 1..=3 {
            assert_eq!(woken(|most| consumer.waiting(how).recv_timeout(most)), Ok(number));
        }
        worker.kill();
        eventually("the death to be seen", || consumer.is_disconnected());
        let nobody = consumer.wait_for_peer(how, Some(Instant::now()));
        assert_eq!(nobody, Err(NoPeer { end: Side::Producer, state: OwnerState::Died }));
    }
}

/// Only some calls ask the system; those between them repeat the last finding, for the owner that it was about.
#[test]
fn a_killed_peer_stays_disconnected_until_a_successor_attaches() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut worker = Worker::start("three", &memory, None);
    let consumer = memory.consumer::<u64>().unwrap();
    eventually("it has attached", || consumer.peer_state() == OwnerState::Alive);
    worker.kill();
    eventually("the death to be seen", || consumer.is_disconnected());
    assert_eq!((0..200).filter(|_| !consumer.is_disconnected()).count(), 0);
    let successor = memory.producer::<u64>().unwrap();
    assert_eq!((0..200).filter(|_| consumer.is_disconnected()).count(), 0);
    drop(successor);
    assert!(consumer.is_disconnected());
}

#[test]
fn a_peer_that_was_killed_before_this_end_attached_is_absent() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut worker = Worker::start("three", &memory, None);
    eventually("it has attached", || memory.state(Side::Producer) == OwnerState::Alive);
    worker.kill();
    eventually("it is dead", || memory.state(Side::Producer) == OwnerState::Died);
    let mut consumer = memory.consumer::<u64>().unwrap();
    let nobody = consumer.wait_for_peer(WaitStrategy::default(), Some(Instant::now()));
    assert_eq!(nobody, Err(NoPeer { end: Side::Producer, state: OwnerState::Died }));
}

#[test]
fn an_end_has_one_owner_across_duplicated_descriptors() {
    let memory = Memory::create::<u64>(4).unwrap();
    assert_eq!(memory.state(Side::Producer), OwnerState::NotYet);
    let producer = memory.producer::<u64>().unwrap();
    let consumer = memory.consumer::<u64>().unwrap();
    let duplicated = Memory::from_fd(duplicate(&memory)).unwrap();
    let reopened = Memory::open(format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd())).unwrap();
    for memory in [&memory, &duplicated, &reopened] {
        assert!(matches!(
            memory.producer::<u64>().err(),
            Some(Error::Busy { what: "the ring has a producer, in this process or another" })
        ));
        assert!(matches!(
            memory.consumer::<u64>().err(),
            Some(Error::Busy { what: "the ring has a consumer, in this process or another" })
        ));
        assert_eq!([Side::Producer, Side::Consumer].map(|side| memory.state(side)), [OwnerState::Alive; 2]);
    }
    drop(producer);
    assert_eq!([Side::Producer, Side::Consumer].map(|side| reopened.state(side)), [OwnerState::Left, OwnerState::Alive]);
    assert!(consumer.is_disconnected());
    let producer = duplicated.producer::<u64>().unwrap();
    assert!(!consumer.is_disconnected());
    assert_eq!((memory.generation(Side::Producer), consumer.peer_generation()), (2, 2));
    drop((memory, duplicated, reopened, consumer));
    assert_eq!(producer.peer_state(), OwnerState::Left, "the ends keep the memory");
}

#[test]
fn a_failed_attach_leaves_the_end_free() {
    let memory = Memory::create::<u64>(4).unwrap();
    assert!(matches!(memory.producer::<i64>().err(), Some(Error::Attach(AttachError::Abi { .. }))));
    assert!(memory.producer::<u64>().is_ok());
    assert!(matches!(memory.consumer::<[u64; 2]>().err(), Some(Error::Attach(AttachError::Abi { .. }))));
    assert!(memory.consumer::<u64>().is_ok());
}

#[test]
fn an_end_is_free_when_its_drop_wakes_the_peer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let producer = memory.producer::<u64>().unwrap();
    let mut successor = None;
    End::leave(producer, |_| successor = Some(memory.producer::<u64>()));
    successor.expect("the bell is looked at").expect("the end is free");
}

#[test]
fn a_successor_repairs_wait_words_of_a_dead_predecessor() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    // Killed in its sleep: still counted.
    let producers_asleep = RING + 128 + 16;
    file.write_all_at(&(7_u64 << 32 | 1).to_ne_bytes(), producers_asleep).unwrap();
    let _producer = memory.producer::<u64>().unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, producers_asleep).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 7 << 32);
    // Killed between publishing and waking: its successor wakes.
    let consumers_asleep = RING + 16;
    file.write_all_at(&(7_u64 << 32 | 1).to_ne_bytes(), consumers_asleep).unwrap();
    drop(_producer);
    let _producer = memory.producer::<u64>().unwrap();
    file.read_exact_at(&mut word, consumers_asleep).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 9 << 32 | 1, "once by the one that left, once by the one that came");
}

/// The words at which the consumer and the producer of a ring sleep. In their low half they count sleepers, in their high half wake-ups. An end of
/// shared memory sleeps at most 100 ms, so a lost wake-up would only be slow: these tests read the words.
const CONSUMERS_ASLEEP: u64 = RING + 16;
const PRODUCERS_ASLEEP: u64 = RING + 128 + 16;

/// Counts one sleeper at `word`, and runs `act`; returns how many wake-ups it made.
fn wake_ups<R>(file: &File, word: u64, act: impl FnOnce() -> R) -> (u64, R) {
    file.write_all_at(&1_u64.to_ne_bytes(), word).unwrap();
    let result = act();
    let mut found = [0; 8];
    file.read_exact_at(&mut found, word).unwrap();
    (u64::from_ne_bytes(found) >> 32, result)
}

#[test]
fn an_end_that_attaches_or_is_dropped_wakes_a_sleeping_peer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    let (woken, end) = wake_ups(&file, CONSUMERS_ASLEEP, || memory.producer::<u64>().unwrap());
    assert_eq!((woken, wake_ups(&file, CONSUMERS_ASLEEP, || drop(end)).0), (1, 1), "a producer");
    let (woken, end) = wake_ups(&file, PRODUCERS_ASLEEP, || memory.consumer::<u64>().unwrap());
    assert_eq!((woken, wake_ups(&file, PRODUCERS_ASLEEP, || drop(end)).0), (1, 1), "a consumer");
    let (woken, end) = wake_ups(&file, CONSUMERS_ASLEEP, || memory.untyped_producer().unwrap());
    assert_eq!((woken, wake_ups(&file, CONSUMERS_ASLEEP, || drop(end)).0), (1, 1), "an untyped producer");
    let (woken, end) = wake_ups(&file, PRODUCERS_ASLEEP, || memory.untyped_consumer().unwrap());
    assert_eq!((woken, wake_ups(&file, PRODUCERS_ASLEEP, || drop(end)).0), (1, 1), "an untyped consumer");
}

#[test]
fn an_untyped_end_wakes_a_sleeping_peer_with_each_transfer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    let (mut sink, mut source) = (memory.untyped_producer().unwrap(), memory.untyped_consumer().unwrap());
    for _ in 0..3 {
        assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || sink.push(&[7; 16])), (1, Ok(2)));
        assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || source.peek(0, &mut [0; 16])), (0, Ok(2)), "a peek frees nothing");
        assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || source.release(2)), (1, ()));
    }
    assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || sink.push(&[])), (0, Ok(0)));
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || source.release(1)), (0, ()), "there is nothing to release");
}

#[test]
fn a_waiting_end_of_shared_memory_wakes_a_sleeping_peer_with_each_transfer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    let how = WaitStrategy::Sleep { polls: 0 };
    let (mut sender, mut receiver) =
        (memory.producer::<u64>().unwrap().into_waiting(how), memory.consumer::<u64>().unwrap().into_waiting(how));
    assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || sender.try_send(1).is_ok()), (1, true));
    assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || sender.send(2).is_ok()), (1, true));
    assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || block_on(sender.send_async(3)).is_ok()), (1, true));
    assert_eq!(wake_ups(&file, CONSUMERS_ASLEEP, || sender.with_end(|end| end.push(4)).is_ok()), (1, true));
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || receiver.try_recv()), (1, Ok(1)));
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || receiver.recv()), (1, Ok(2)));
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || block_on(receiver.recv_async())), (1, Ok(3)));
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || receiver.with_end(Consumer::pop)), (1, Ok(4)));
    // An attempt publishes or releases messages that an earlier call deferred.
    let late = || Some(Instant::now());
    let (woken, waited) = wake_ups(&file, PRODUCERS_ASLEEP, || receiver.wait(late(), |_| None::<Result<(), ()>>));
    assert!(woken > 0 && waited.is_err(), "{woken}: {waited:?}");
    assert_eq!(wake_ups(&file, PRODUCERS_ASLEEP, || receiver.recv_deadline(Instant::now())), (1, Err(RecvError::Timeout)));
    assert!(wake_ups(&file, CONSUMERS_ASLEEP, || drop(sender)).0 > 0);
    assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
}

#[test]
fn a_memfd_keeps_its_size_and_an_unsealed_file_is_an_error() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    let size = file.metadata().unwrap().len();
    assert!(file.set_len(size - 1).is_err() && file.set_len(size + 1).is_err());
    match Memory::from_fd(tempfile::tempfile().unwrap().into()).err() {
        Some(Error::System { call: "check of the memfd's seals", answer, .. }) => {
            let missing = answer.to_string();
            assert!(missing.contains("F_SEAL_SHRINK") && missing.contains("F_SEAL_GROW"), "{missing}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn create_at_and_open_share_a_ring_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    let created = Memory::create_at::<u64>(&path, 4).unwrap();
    match Memory::create_at::<u64>(&path, 4).err() {
        Some(Error::System { path: Some(_), answer, .. }) => assert_eq!(answer.kind(), ErrorKind::AlreadyExists),
        other => panic!("{other:?}"),
    }
    let opened = Memory::open(&path).unwrap();
    let mut producer = created.producer::<u64>().unwrap();
    assert!(matches!(opened.producer::<u64>().err(), Some(Error::Busy { .. })));
    producer.push(5).unwrap();
    assert_eq!(opened.consumer::<u64>().unwrap().pop(), Ok(5));
    assert!(matches!(Memory::create::<u64>(3).err(), Some(Error::Config(ConfigError::Ring(_)))));
    assert!(matches!(Memory::create_at::<u64>(folder.path().join("none"), 0).err(), Some(Error::Config(ConfigError::Ring(_)))));
    assert!(!folder.path().join("none").exists());
}

macro_rules! aligned {
    ($($name:ident: $bytes:literal;)+) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
        #[repr(C, align($bytes))]
        #[layout(message = $bytes)]
        struct $name {
            words: [u64; $bytes / 8],
        }
    )+};
}
aligned! {
    Page: 4096;
    TwoPages: 8192;
}

#[test]
fn messages_aligned_beyond_a_page_are_an_error() {
    let memory = Memory::create::<Page>(2).unwrap();
    let theirs = Memory::from_fd(duplicate(&memory)).unwrap();
    let (mut producer, mut consumer) = (memory.producer::<Page>().unwrap(), theirs.consumer::<Page>().unwrap());
    for word in 0..5 {
        producer.push(Page { words: [word; 512] }).unwrap();
        assert_eq!(consumer.pop(), Ok(Page { words: [word; 512] }));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    for refused in [Memory::create::<TwoPages>(2).err(), Memory::create_at::<TwoPages>(&path, 2).err()] {
        assert!(matches!(refused, Some(Error::Align { asked: 8192, most: 4096, .. })), "{refused:?}");
    }
    assert!(!path.exists());
}

#[test]
fn open_rejects_invalid_regions_with_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    let open = || Memory::open(&path).err();
    let attach = || match open() {
        Some(Error::Attach(error)) => Some(error),
        None => None,
        other => panic!("{other:?}"),
    };
    let size = {
        drop(Memory::create_at::<u64>(&path, 4).unwrap());
        fs::metadata(&path).unwrap().len()
    };
    assert_eq!((size, attach()), (RING + 384 + 32, None));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let least = 64 + 32 * 32;
    for got in [0, 63, least - 1] {
        let content = fs::read(&path).unwrap();
        file.set_len(got).unwrap();
        assert_eq!(attach(), Some(AttachError::TooSmall { needed: least, got }));
        file.write_all_at(&content, 0).unwrap();
    }
    file.set_len(size - 1).unwrap();
    assert_eq!(attach(), Some(AttachError::TooSmall { needed: size, got: size - 1 }));
    file.set_len(size).unwrap();

    let with = |offset: u64, value: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, offset).unwrap();
        file.write_all_at(&value.to_ne_bytes(), offset).unwrap();
        let objection = match Memory::open(&path) {
            Err(error) => Some(error),
            Ok(memory) => memory.producer::<u64>().err().or(memory.consumer::<u64>().err()),
        };
        file.write_all_at(&word, offset).unwrap();
        match objection {
            Some(Error::Attach(error)) => error,
            other => panic!("offset {offset}: {other:?}"),
        }
    };
    assert_eq!(with(0, 1), AttachError::Magic { expected: region::MAGIC, got: 1 });
    assert_eq!(with(8, 2), AttachError::Version { expected: 1, got: 2 });
    assert_eq!(with(16, size + 1), AttachError::TooSmall { needed: size + 1, got: size });
    assert!(matches!(with(24, 9), AttachError::Abi { got: 9, .. }));
    assert_eq!(with(32, 0), AttachError::Kind { expected: region::kind::SHARED_RING, got: 0 });
    assert_eq!(with(32, 33), AttachError::Count { got: 33 });
    assert_eq!(with(64, 1), AttachError::Kind { expected: region::kind::SHARED_RING, got: 1 });
    for offset in [0, RING - 8, RING + 8, size, u64::MAX] {
        assert_eq!(with(72, offset), AttachError::Offset { got: offset });
    }
    assert_eq!(with(80, 383), AttachError::TooSmall { needed: 384, got: 383 });
    assert_eq!(with(80, 415), AttachError::TooSmall { needed: 416, got: 415 });
    file.write_all_at(&383_u64.to_ne_bytes(), 80).unwrap();
    assert_eq!(attach(), Some(AttachError::TooSmall { needed: 384, got: 383 }), "before anybody looks at a header");
    file.write_all_at(&416_u64.to_ne_bytes(), 80).unwrap();
    let constants = RING + 256;
    assert!(matches!(with(constants, 0), AttachError::Magic { got: 0, .. }));
    assert!(matches!(with(constants + 8, 1), AttachError::Abi { got: 1, .. }));
    assert_eq!(with(constants + 16, 8), AttachError::TooSmall { needed: 448, got: 416 });
    assert_eq!(with(constants + 16, 5), AttachError::Capacity { got: 5 });
    assert_eq!(with(constants + 24, 16), AttachError::SlotSize { expected: 8, got: 16 });
    assert_eq!(with(constants + 32, 392), AttachError::Offset { got: 392 });
    assert!(matches!(with(constants + 40, 2), AttachError::Kind { got: 2, .. }));
    assert!(matches!(with(constants + 48, 2), AttachError::Kind { got: 2, .. }));
    assert_eq!(with(RING, 5), AttachError::Corrupt(Corrupt { head: 0, tail: 5, capacity: 4 }));
    assert!(matches!(with(RING + 128, 1), AttachError::Corrupt(_)));

    let error = Memory::open("/dev/null").expect_err("no file").to_string();
    assert_eq!(error, "cannot open /dev/null: not a regular file");
    assert!(matches!(Memory::open(folder.path()).err(), Some(Error::System { path: Some(_), .. })));
    assert!(matches!(Memory::open(folder.path().join("none")).err(), Some(Error::System { path: Some(_), .. })));
}

/// Through the file, as any process with the memory may.
fn scribble(file: &File, random: &mut Random, stop: &AtomicBool) {
    let size = file.metadata().unwrap().len() as usize;
    let mut sound = vec![0; size];
    file.read_exact_at(&mut sound, 0).unwrap();
    // An honest peer writes these too: owners, sleepers, indices.
    let words = [0, 8, 16, 128, 136, 144].map(|offset| RING + offset);
    while !stop.load(Relaxed) {
        match random.below(8) {
            0 => file.write_all_at(&sound, 0).unwrap(),
            1..=4 => {
                let word = words[random.below(6) as usize];
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, word).unwrap();
                let steps = if random.below(4) == 0 { random.next() } else { random.below(2 * CAPACITY).wrapping_sub(CAPACITY) };
                file.write_all_at(&u64::from_ne_bytes(bytes).wrapping_add(steps).to_ne_bytes(), word).unwrap();
            }
            5 | 6 => {
                let slot = RING + size_of::<RingHeader<u64>>() as u64 + 8 * random.below(8 * CAPACITY);
                file.write_all_at(&random.next().to_ne_bytes(), slot).unwrap();
            }
            _ => {
                let noise: Vec<u8> = (0..1 + random.below(512)).map(|_| random.next() as u8).collect();
                file.write_all_at(&noise, random.below((size - noise.len()) as u64)).unwrap();
            }
        }
    }
}

#[test]
fn a_hostile_peer_causes_only_errors_or_wrong_messages() {
    let memory = Memory::create::<Message>(CAPACITY).unwrap();
    let file = File::from(duplicate(&memory));
    let stop = AtomicBool::new(false);
    let seed = u64::from(std::process::id()) << 7 | 1;
    println!("seed {seed:#x}");
    let corrupt = |found: Corrupt| assert!(found.capacity <= CAPACITY && found.tail.wrapping_sub(found.head) > found.capacity, "{found}");
    let fill = |producer: &mut Producer<Message>, random: &mut Random| {
        assert!(
            producer.capacity() <= CAPACITY as usize && producer.free() <= producer.capacity() && producer.len() <= producer.capacity()
        );
        match random.below(16) {
            0 => match producer.waiting(WaitStrategy::Sleep { polls: 2 }).send_timeout([9; 8], Duration::from_micros(200)) {
                Ok(()) | Err(SendError::Timeout([9, ..]) | SendError::Disconnected([9, ..]) | SendError::Corrupt([9, ..], _)) => {}
                Err(other) => panic!("{other:?}"),
            },
            1..=4 => match producer.push_slice(&[[9; 8]; 100]) {
                Ok(count) => assert!(count <= producer.capacity()),
                Err(found) => corrupt(found),
            },
            _ => match producer.push([9; 8]) {
                Ok(()) | Err(PushError::Full([9, ..]) | PushError::Corrupt([9, ..], _)) => {}
                Err(other) => panic!("{other:?}"),
            },
        }
        black_box((producer.peer_state(), producer.is_disconnected()));
    };
    let drain = |consumer: &mut Consumer<Message>, random: &mut Random| {
        assert!(
            consumer.capacity() <= CAPACITY as usize
                && consumer.available() <= consumer.capacity()
                && consumer.len() <= consumer.capacity()
        );
        match random.below(16) {
            0 => match consumer.waiting(WaitStrategy::Sleep { polls: 2 }).recv_timeout(Duration::from_micros(200)) {
                Ok(message) => {
                    black_box(message);
                }
                Err(RecvError::Corrupt(found)) => corrupt(found),
                Err(RecvError::Timeout | RecvError::Disconnected) => {}
            },
            1..=4 => match consumer.pop_slice(&mut [[0; 8]; 100]) {
                Ok(count) => assert!(count <= consumer.capacity()),
                Err(found) => corrupt(found),
            },
            _ => match consumer.pop() {
                Ok(message) => {
                    black_box(message);
                }
                Err(PopError::Corrupt(found)) => corrupt(found),
                Err(PopError::Empty) => {}
            },
        }
        black_box((consumer.peer_state(), consumer.is_disconnected()));
    };
    let refused = |error: Option<Error>| match error {
        Some(Error::Attach(_)) => 1_u64,
        other => panic!("{other:?}"),
    };
    let [attached, objections] = thread::scope(|scope| {
        scope.spawn(|| scribble(&file, &mut Random(seed), &stop));
        struct Stop<'s>(&'s AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(&stop);
        let mut random = Random(seed ^ 0xFFFF_0000);
        let (mut attached, mut objections) = (0, 0);
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            match Memory::from_fd(duplicate(&memory)) {
                Ok(other) => {
                    black_box((other.indices(), other.state(Side::Producer), other.generation(Side::Consumer)));
                }
                Err(error) => objections += refused(Some(error)),
            }
            match (memory.producer::<Message>(), memory.consumer::<Message>()) {
                (Ok(mut producer), Ok(mut consumer)) => {
                    attached += 1;
                    for _ in 0..200 {
                        fill(&mut producer, &mut random);
                        drain(&mut consumer, &mut random);
                    }
                }
                (producer, consumer) => objections += refused(producer.err().or(consumer.err())),
            }
        }
        [attached, objections]
    });
    assert!(attached > 10 && objections > 10, "{attached} times attached, {objections} times refused: the test shows little");
    println!("{attached} times attached, {objections} times refused");
}

#[test]
fn an_open_error_has_the_path_and_the_system_error() {
    let error = Memory::open("no/such/ring").expect_err("there is none");
    assert_eq!(error.to_string(), "cannot open no/such/ring: No such file or directory (os error 2)");
    let error = Memory::create_at::<u64>("no/such/folder/ring", 4).expect_err("there is no such folder");
    assert_eq!(error.to_string(), "cannot create no/such/folder/ring: No such file or directory (os error 2)");
}

#[test]
fn a_file_is_complete_once_it_appears() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for round in 0..20 {
        let (path, is_made) = (folder.path().join(round.to_string()), AtomicBool::new(false));
        let opened = || loop {
            let is_last = is_made.load(Acquire);
            match Memory::open(&path) {
                Err(Error::System { answer, .. }) if answer.kind() == ErrorKind::NotFound && !is_last => {}
                result => break result,
            }
        };
        thread::scope(|threads| {
            let opened = threads.spawn(opened);
            let made = Memory::create_at::<[u8; 4096]>(&path, 1 << 11);
            is_made.store(true, Release);
            made.unwrap();
            opened.join().unwrap().unwrap();
        });
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn create_at_does_not_overwrite_an_existing_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    fs::write(&path, "something else").unwrap();
    let error = Memory::create_at::<u64>(&path, 4).expect_err("it exists");
    assert_eq!(error.to_string(), format!("cannot create {}: it exists: open it, or remove it", path.display()));
    assert_eq!(fs::read(&path).unwrap(), b"something else");
}

#[test]
fn create_at_without_space_names_the_bytes_and_removes_the_file() {
    // A limited tmpfs compares before it reserves.
    let Ok(system) = rustix::fs::statvfs("/dev/shm") else { return };
    if system.f_blocks == 0 {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("ring");
    let capacity = (system.f_blocks * system.f_frsize).next_power_of_two();
    let error = Memory::create_at::<u64>(&path, capacity).expect_err("eight times the file system").to_string();
    let bytes =
        error.strip_suffix(" bytes").and_then(|error| error.rsplit_once(": the ring takes ")).map(|(_, bytes)| bytes.parse::<u64>());
    assert!(matches!(bytes, Some(Ok(bytes)) if bytes > capacity * 8), "{error}");
    assert!(error.contains("No space left on device"), "{error}");
    assert!(!path.exists());
    fs::write(&path, "something else").unwrap();
    let error = Memory::create_at::<u64>(&path, capacity).expect_err("it exists").to_string();
    assert!(error.ends_with(": it exists: open it, or remove it"), "{error}");
}

#[test]
fn from_fd_rejects_an_o_path_descriptor() {
    use std::os::unix::fs::OpenOptionsExt;
    let descriptor = File::options().read(true).custom_flags(libc::O_PATH).open("/dev/null").unwrap();
    assert!(matches!(Memory::from_fd(descriptor.into()).err(), Some(Error::System { call: "fcntl(F_GET_SEALS)", .. })));
}

#[test]
fn a_peer_s_lease_of_the_file_delays_no_end() {
    // A lease signals its holder when another opens the file.
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let memory = Memory::create::<u64>(8).unwrap();
    let theirs = File::open(format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd())).unwrap();
    // SAFETY: an open descriptor.
    let said = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    assert_eq!(said, 0, "{}", std::io::Error::last_os_error());
    // Otherwise, for the lease-break-time of the system, 45 s, and then without an error.
    let error = memory.producer::<u64>().expect_err("the lease is not released");
    assert!(matches!(&error, Error::System { answer, .. } if answer.kind() == ErrorKind::WouldBlock), "{error}");
    drop(theirs);
    memory.producer::<u64>().expect("no lease");
}

/// 12 bytes: slots begin in the middle of a word.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 12)]
struct Odd {
    number: u32,
    bytes: [u8; 8],
}

const fn odd(number: u32) -> Odd {
    Odd { number, bytes: [number as u8; 8] }
}

#[test]
fn untyped_ends_transfer_typed_messages() {
    let (from, to) = (Memory::create::<Odd>(4).unwrap(), Memory::create::<Odd>(4).unwrap());
    let (mut producer, mut consumer) = (from.producer::<Odd>().unwrap(), to.consumer::<Odd>().unwrap());
    let (mut source, mut sink) = (from.untyped_consumer().unwrap(), to.untyped_producer().unwrap());
    assert_eq!(source.message(), sink.message());
    assert_eq!((source.message().size, source.message().kind), (12, 12));
    let mut bytes = [0; 36];
    for round in 0..50 {
        let values = [3 * round, 3 * round + 1, 3 * round + 2].map(odd);
        assert_eq!(producer.push_slice(&values), Ok(3));
        assert_eq!(source.peek(0, &mut bytes), Ok(3));
        assert_eq!(sink.push(&bytes), Ok(3));
        assert_eq!(source.peek(2, &mut bytes), Ok(1));
        assert_eq!(source.peek(9, &mut bytes), Ok(0));
        source.release(3);
        let mut got = [odd(0); 3];
        assert_eq!((consumer.pop_slice(&mut got), got), (Ok(3), values));
    }
    assert_eq!((source.head(), sink.tail()), (150, 150));
    drop(sink);
    assert_eq!(consumer.peer_state(), OwnerState::Left);
}

#[test]
fn peeked_messages_stay_for_the_next_untyped_consumer() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut producer = memory.producer::<u64>().unwrap();
    assert_eq!(producer.push_slice(&[7, 8, 9]), Ok(3));
    let mut bytes = [0; 24];
    let mut first = memory.untyped_consumer().unwrap();
    assert_eq!(first.peek(0, &mut bytes), Ok(3));
    first.release(1);
    assert!(memory.untyped_consumer().is_err(), "one owner");
    drop(first);
    let mut second = memory.untyped_consumer().unwrap();
    assert_eq!((second.peek(0, &mut bytes[..8]), u64::from_le_bytes(*bytes.first_chunk().unwrap())), (Ok(1), 8));
    assert_eq!((second.refresh(), producer.refresh()), (Ok(2), Ok(2)));
    second.release(100);
    assert_eq!((second.head(), producer.refresh()), (3, Ok(4)), "no more than is there");
}

#[test]
fn untyped_push_stops_at_full_and_bad_indices_are_corrupt() {
    let memory = Memory::create::<u64>(2).unwrap();
    let mut sink = memory.untyped_producer().unwrap();
    assert_eq!((sink.push(&[1; 27]), sink.push(&[1; 8])), (Ok(2), Ok(0)), "whole messages, as many as fit");
    let mut consumer = memory.untyped_consumer().unwrap();
    drop(sink);
    let file = File::from(duplicate(&memory));
    let tail = 100_u64.to_le_bytes();
    // The magic is 256 bytes into the ring's header.
    let mut image = vec![0; 4096 * 2];
    let len = file.read_at(&mut image, 0).unwrap();
    let magic = image[..len].windows(8).position(|bytes| bytes == b"rm.ring\0").unwrap();
    file.write_at(&tail, magic as u64 - 256).unwrap();
    let corrupt = consumer.peek(0, &mut [0; 64]).unwrap_err();
    assert_eq!((corrupt.head, corrupt.tail, corrupt.capacity), (0, 100, 2));
    drop(consumer);
    file.write_at(&3_u64.to_le_bytes(), magic as u64 + 16).unwrap();
    assert!(memory.untyped_producer().is_err(), "a capacity that is no power of two");
    file.write_at(&(1_u64 << 40).to_le_bytes(), magic as u64 + 16).unwrap();
    assert!(memory.untyped_producer().is_err(), "more slots than memory");
}

#[test]
fn memory_beyond_the_file_size_limit_is_an_error() {
    if !is_again() {
        return passes_again("shared::memory_beyond_the_file_size_limit_is_an_error", "ulimit -f 8;", &["sys_resource"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    for made in [Memory::create::<u64>(1024), Memory::create_at::<u64>(&path, 1024)] {
        let error = made.expect_err("8 KiB of messages in a file of at most 4 KiB");
        assert!(error.to_string().contains("File too large"), "{error}");
    }
    assert!(!path.exists());
}

#[test]
fn an_end_of_a_file_that_cannot_be_reopened_is_an_error_with_the_reason() {
    use std::os::unix::fs::PermissionsExt;
    if !is_again() {
        return passes_again("shared::an_end_of_a_file_that_cannot_be_reopened_is_an_error_with_the_reason", "", &["dac_override"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    let memory = Memory::create_at::<u64>(&path, 4).unwrap();
    let early = memory.producer::<u64>().unwrap();
    // As after dropping rights.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let error = memory.consumer::<u64>().map(drop).expect_err("it is read-only").to_string();
    assert!(error.contains("Permission denied") && error.contains("before dropping rights"), "{error}");
    drop(early);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    // Only root may change the root. This process runs no other test.
    if std::os::unix::fs::chroot(folder.path()).is_ok() {
        let error = memory.consumer::<u64>().map(drop).expect_err("/proc is not mounted").to_string();
        assert!(error.contains("No such file") && error.contains("needs /proc"), "{error}");
    }
}

#[test]
fn each_untyped_owner_of_an_end_has_its_own_generation() {
    let memory = Memory::create::<u64>(4).unwrap();
    for generation in 1..4 {
        let (sink, source) = (memory.untyped_producer().unwrap(), memory.untyped_consumer().unwrap());
        for side in [Side::Producer, Side::Consumer] {
            assert_eq!((memory.generation(side), memory.state(side)), (generation, OwnerState::Alive));
        }
        assert_eq!((sink.peer_state(), source.peer_state()), (OwnerState::Alive, OwnerState::Alive));
        drop((sink, source));
        for side in [Side::Producer, Side::Consumer] {
            assert_eq!((memory.generation(side), memory.state(side)), (generation, OwnerState::Left));
        }
    }
}

const ODD: MessageFacts = MessageFacts::of::<Odd>();

#[test]
fn a_ring_created_without_a_type_has_typed_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    for memory in [Memory::create_untyped(ODD, 4, 4).unwrap(), Memory::create_untyped_at(&path, ODD, 4, 4).unwrap()] {
        let (mut producer, mut consumer) = (memory.producer::<Odd>().unwrap(), memory.consumer::<Odd>().unwrap());
        assert_eq!((producer.push_slice(&[0, 1, 2, 3, 4].map(odd)), consumer.pop()), (Ok(4), Ok(odd(0))));
    }
    let typed = Memory::create::<Odd>(4).unwrap();
    drop(typed.untyped_producer_of(ODD, 4).unwrap());
    assert_eq!(typed.untyped_consumer_of(ODD, 4).unwrap().align(), 4);
    // The same bytes, but for what ends and creators differ in.
    let image = |memory: &Memory| {
        let mut image = vec![0; 4096];
        File::from(duplicate(memory)).read_exact_at(&mut image[..(RING + 384 + 48) as usize], 0).unwrap();
        image
    };
    let untyped = Memory::create_untyped(ODD, 4, 4).unwrap();
    assert_eq!(image(&untyped), image(&Memory::create::<Odd>(4).unwrap()));
}

#[test]
fn messages_without_a_type_need_a_size_and_an_alignment_that_divides_it() {
    let created = |size, align| Memory::create_untyped(MessageFacts { size, ..ODD }, align, 4).map(drop);
    for (size, align) in [(0, 1), (12, 0), (12, 3), (12, 8), (usize::MAX, 1), (1 << 62, 1 << 62)] {
        assert!(matches!(created(size, align), Err(Error::Config(_))), "{size} bytes aligned to {align}");
    }
    assert!(matches!(created(8192, 8192), Err(Error::Align { asked: 8192, most: 4096 })));
    created(8192, 4096).unwrap();
}

#[test]
fn an_untyped_end_of_other_messages_is_an_error_with_both_values() {
    let memory = Memory::create::<Odd>(4).unwrap();
    let refused = |facts, align| {
        let errors = [memory.untyped_producer_of(facts, align).map(drop), memory.untyped_consumer_of(facts, align).map(drop)];
        let [producer, consumer] = errors.map(|refused| match refused {
            Err(Error::Attach(error)) => error,
            other => panic!("{other:?}"),
        });
        assert_eq!(producer, consumer);
        producer
    };
    assert_eq!(refused(MessageFacts { abi: 7, ..ODD }, 4), AttachError::Abi { expected: 7, got: ODD.abi });
    assert_eq!(refused(MessageFacts { kind: 7, ..ODD }, 4), AttachError::Kind { expected: 7, got: 12 });
    assert_eq!(refused(MessageFacts { size: 24, ..ODD }, 4), AttachError::SlotSize { expected: 24, got: 12 });
    for align in [0, 3, 8] {
        assert!(matches!(refused(ODD, align), AttachError::Misaligned { align: wanted, .. } if wanted == align as u64), "{align}");
    }
    for side in [Side::Producer, Side::Consumer] {
        assert_eq!((memory.state(side), memory.generation(side)), (OwnerState::NotYet, 0), "no peer has seen an owner");
    }
    assert!(memory.untyped_producer_of(ODD, 2).is_ok() && memory.untyped_consumer_of(ODD, 4).is_ok());
}

/// Fills or reads slots as a program in C would.
fn at<T>(slots: NonNull<u8>, place: u64) -> *mut T {
    slots.cast::<T>().as_ptr().wrapping_add(place as usize)
}

#[test]
fn slots_are_filled_and_read_in_place_across_the_ring_s_end() {
    let memory = Memory::create::<Odd>(8).unwrap();
    let (mut producer, mut consumer) = (memory.untyped_producer().unwrap(), memory.untyped_consumer().unwrap());
    let (mut pushed, mut popped, mut split) = (0, 0, 0);
    let mut random = Random(0x0DD5_EED5);
    while pushed < 2000 {
        let wanted = random.below(10);
        let (slots, count) = producer.reserve(wanted).unwrap();
        let free = 8 - (pushed - popped);
        assert_eq!(count, wanted.min(free).min(8 - pushed % 8));
        split += u64::from(count < wanted.min(free));
        for place in 0..count {
            // SAFETY: a reserved slot of an `Odd`, which no other thread accesses.
            unsafe { at::<Odd>(slots, place).write(odd((pushed + place) as u32)) };
        }
        let published = random.below(count + 1);
        producer.commit(published);
        pushed += published;
        let wanted = random.below(10);
        let (slots, count) = consumer.peek_in_place(wanted).unwrap();
        assert_eq!(count, wanted.min(pushed - popped).min(8 - popped % 8));
        for place in 0..count {
            // SAFETY: the slot of a message, which no other thread accesses.
            assert_eq!(unsafe { at::<Odd>(slots, place).read() }, odd((popped + place) as u32));
        }
        let released = random.below(count + 1);
        consumer.release(released);
        popped += released;
        assert_eq!(memory.indices(), (popped, pushed));
    }
    assert!(split > 100, "{split} of the reservations end at the ring's end");
}

#[test]
fn a_commit_publishes_at_most_the_free_slots() {
    let memory = Memory::create::<u64>(4).unwrap();
    let (mut producer, mut consumer) = (memory.untyped_producer().unwrap(), memory.untyped_consumer().unwrap());
    producer.commit(u64::MAX);
    assert_eq!((memory.indices(), producer.free()), ((0, 4), 0));
    producer.commit(1);
    assert_eq!(producer.reserve(u64::MAX).map(|(_, count)| count), Ok(0));
    assert_eq!(consumer.peek_in_place(u64::MAX).map(|(_, count)| count), Ok(4));
    consumer.release(u64::MAX);
    consumer.release(1);
    assert_eq!((memory.indices(), consumer.available()), ((4, 4), 0));
    assert_eq!(consumer.peek_in_place(0).map(|(_, count)| count), Ok(0));
}

#[test]
fn wrong_indices_lend_no_slots() {
    let memory = Memory::create::<u64>(4).unwrap();
    let file = File::from(duplicate(&memory));
    let mut producer = memory.untyped_producer().unwrap();
    producer.commit(4);
    for head in [5, u64::MAX - 4, 1 << 63] {
        file.write_all_at(&u64::to_ne_bytes(head), RING + 128).unwrap();
        assert_eq!(producer.reserve(4).map(drop), Err(Corrupt { head, tail: 4, capacity: 4 }));
    }
    assert!(memory.untyped_consumer().is_err());
    file.write_all_at(&u64::to_ne_bytes(0), RING + 128).unwrap();
    let mut consumer = memory.untyped_consumer().unwrap();
    consumer.release(4);
    for tail in [3, 9, u64::MAX] {
        file.write_all_at(&u64::to_ne_bytes(tail), RING).unwrap();
        assert_eq!(consumer.peek_in_place(4).map(drop), Err(Corrupt { head: 4, tail, capacity: 4 }));
    }
}

/// Waits for a message, and copies it.
fn next(consumer: &mut UntypedConsumer, most: Duration) -> Result<u64, WaitError<Corrupt>> {
    let mut bytes = [0; 8];
    let mut waiting = consumer.waiting(WaitStrategy::Sleep { polls: 0 });
    let waited = waiting.wait(Some(Instant::now() + most), |end| match end.peek(0, &mut bytes) {
        Ok(0) => None,
        Ok(_) => {
            end.release(1);
            Some(Ok(()))
        }
        Err(corrupt) => Some(Err(corrupt)),
    });
    waited.map(|()| u64::from_ne_bytes(bytes))
}

#[test]
fn untyped_ends_wait_for_room_for_messages_and_for_peers() {
    let memory = Memory::create::<u64>(2).unwrap();
    let how = WaitStrategy::Sleep { polls: 0 };
    let mut consumer = memory.untyped_consumer().unwrap();
    let nobody = consumer.wait_for_peer(how, Some(Instant::now()));
    assert_eq!(nobody, Err(NoPeer { end: Side::Producer, state: OwnerState::NotYet }));
    assert_eq!(next(&mut consumer, Duration::ZERO), Err(WaitError::Timeout));
    let mut producer = memory.untyped_producer().unwrap();
    assert_eq!(woken(|most| producer.wait_for_peer(how, Some(Instant::now() + most))), Ok(1));
    assert_eq!(woken(|most| consumer.wait_for_peer(how, Some(Instant::now() + most))), Ok(1));
    let thread = thread::spawn(move || {
        for number in 0..1000_u64 {
            let mut waiting = producer.waiting(how);
            let push =
                |end: &mut &mut UntypedProducer| end.push(&number.to_ne_bytes()).map(|pushed| (pushed > 0).then_some(())).transpose();
            assert_eq!(woken(|most| waiting.wait(Some(Instant::now() + most), push)), Ok(()));
        }
        assert!(!producer.is_disconnected());
        producer
    });
    for number in 0..1000 {
        assert_eq!(woken(|most| next(&mut consumer, most)), Ok(number));
    }
    let producer = thread.join().unwrap();
    assert!(!consumer.is_disconnected());
    drop(producer);
    assert_eq!(woken(|most| next(&mut consumer, most)), Err(WaitError::Disconnected));
    assert_eq!((consumer.is_disconnected(), consumer.peer_generation()), (true, 1));
}

#[test]
fn an_untyped_consumer_waits_for_the_successor_of_a_killed_process() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut consumer = memory.untyped_consumer().unwrap();
    let how = WaitStrategy::Sleep { polls: 0 };
    for generation in 1..=2 {
        let mut worker = Worker::start("three", &memory, None);
        assert_eq!(woken(|most| consumer.wait_for_peer(how, Some(Instant::now() + most))), Ok(generation));
        for number in 1..=3 {
            assert_eq!(woken(|most| next(&mut consumer, most)), Ok(number));
        }
        worker.kill();
        assert_eq!(woken(|most| next(&mut consumer, most)), Err(WaitError::Disconnected));
        assert_eq!(consumer.peer_state(), OwnerState::Died);
    }
}

/// A message may come from a slot, such as in a relay between rings.
#[test]
fn a_message_is_pushed_from_the_slot_of_another_ring() {
    let (from, to) = (Memory::create::<Odd>(4).unwrap(), Memory::create::<Odd>(4).unwrap());
    let (mut source, mut sink) = (from.untyped_consumer().unwrap(), to.untyped_producer().unwrap());
    assert_eq!(from.producer::<Odd>().unwrap().push_slice(&[1, 2, 3].map(odd)), Ok(3));
    let (slots, count) = source.peek_in_place(u64::MAX).unwrap();
    // SAFETY: so many messages are there.
    assert_eq!(unsafe { sink.push_raw(slots.as_ptr(), count) }, Ok(3));
    source.release(count);
    let mut bytes = [0; 36];
    // SAFETY: a place for three messages, which is not aligned as one.
    assert_eq!(unsafe { to.untyped_consumer().unwrap().peek_raw(1, bytes.as_mut_ptr().wrapping_add(1), 2) }, Ok(2));
    assert_eq!((&bytes[1..6], &bytes[13..18]), (&[2, 0, 0, 0, 2][..], &[3, 0, 0, 0, 3][..]));
}
