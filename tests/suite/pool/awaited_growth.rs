//! A request that finds no memory waits for the slab that another thread allocates.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::{Backend, Block, Uses};
use ringmem::memory::{Buffer, Device, DeviceOnly, Memory};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use super::{Clean, Held, LIMIT, MIB, backend};
use crate::eventually;

type Answer = Box<dyn FnOnce(&Device, Layout) -> ringmem::Result<Block> + Send>;

/// Sends a channel for each allocation, and does what it receives.
struct Gated {
    memory: Device,
    begun: Sender<Sender<Answer>>,
    /// Calls of `backend`, which a waiting request repeats.
    polls: Arc<AtomicU64>,
}

// SAFETY: the blocks are the device's: each answer of a test allocates from it, or fails.
unsafe impl Memory for Gated {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, _: Option<&Stream>) -> ringmem::Result<Block> {
        let (sender, answer) = mpsc::channel::<Answer>();
        self.begun.send(sender).expect("the test receives");
        answer.recv_timeout(LIMIT).expect("an answer")(&self.memory, layout)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, as the
        // tests' answers allocate them.
        unsafe { self.memory.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.polls.fetch_add(1, Relaxed);
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

struct Rig {
    pool: Pool<Gated>,
    begun: Receiver<Sender<Answer>>,
    polls: Arc<AtomicU64>,
    _backend: Clean,
}

impl Rig {
    fn new(backend: Clean, limit: u64, slab: u64) -> Self {
        let (begun, has_begun) = mpsc::channel();
        let polls = Arc::default();
        let memory = Gated { memory: Device::new(&backend, 0), begun, polls: Arc::clone(&polls) };
        let pool = Pool::builder(memory).limit(limit).slab(slab).patience(Duration::ZERO).build().unwrap();
        Self { pool, begun: has_begun, polls, _backend: backend }
    }

    fn next(&self) -> Sender<Answer> {
        self.begun.recv_timeout(LIMIT).expect("a slab is missing")
    }

    fn request(&self) -> Got {
        let ((sender, receiver), pool) = (mpsc::channel(), self.pool.clone());
        thread::spawn(move || sender.send(Buffer::new(pool, MIB as usize)));
        receiver
    }

    /// Exact without other waiting requests.
    fn is_waiting(&self, got: &Got) {
        let before = self.polls.load(Relaxed);
        eventually("it waits", || {
            let early = got.try_recv();
            assert!(early.is_err(), "it does not wait: {:?}", early.map(|outcome| outcome.map(drop)));
            self.polls.load(Relaxed) > before + 100
        });
    }

    /// Exact without other waiting requests.
    fn gives_up(&self, answer: impl Fn() -> Option<ringmem::Result<()>>) {
        let before = self.polls.load(Relaxed);
        eventually("it gives up", || {
            assert!(self.polls.load(Relaxed) < before + 1000, "it waits");
            let answer = answer();
            assert!(matches!(answer, None | Some(Err(Error::OutOfMemory { .. }))), "{answer:?}");
            answer.is_some()
        });
    }
}

type Got = Receiver<ringmem::Result<Buffer<u8, Pool<Gated>>>>;

fn arrived(got: &Got) -> ringmem::Result<Buffer<u8, Pool<Gated>>> {
    got.recv_timeout(LIMIT).expect("in time")
}

fn really() -> Answer {
    Box::new(|memory, layout| memory.alloc(layout, None))
}

fn refused() -> Answer {
    Box::new(|_, layout| Err(Error::OutOfMemory { requested: layout.size() as u64, free: 0, largest: 0, limit: None, unavailable: None }))
}

fn unsupported() -> Answer {
    Box::new(|_, _| Err(Error::Unsupported { what: "this allocation" }))
}

#[test]
fn a_request_waits_longer_than_the_patience_for_a_slab_being_allocated() {
    let rig = Rig::new(backend(64 * MIB), 4 * MIB, 4 * MIB);
    let first = rig.request();
    let answer = rig.next();
    let others = [(); 3].map(|()| {
        let other = rig.request();
        rig.is_waiting(&other);
        other
    });
    answer.send(really()).expect("it waits");
    let blocks: Vec<_> = [first].iter().chain(&others).map(|got| arrived(got).expect("a quarter of the slab")).collect();
    assert_eq!((blocks.len(), rig.pool.statistics().memory_allocations), (4, 1));
    assert!(matches!(arrived(&rig.request()), Err(Error::OutOfMemory { free: 0, .. })), "nothing is being allocated");
}

#[test]
fn a_request_allocates_a_slab_once_the_one_being_allocated_is_refused() {
    let rig = Rig::new(backend(64 * MIB), MIB, MIB);
    let first = rig.request();
    let answer = rig.next();
    let second = rig.request();
    rig.is_waiting(&second);
    answer.send(unsupported()).expect("it waits");
    assert!(matches!(arrived(&first), Err(Error::Unsupported { .. })));
    rig.next().send(really()).expect("it waits");
    arrived(&second).expect("its own slab");
}

#[test]
fn a_request_waits_for_a_slab_that_is_not_ready() {
    let backend = backend(64 * MIB);
    let stream = Stream::new(&backend, 0).unwrap();
    let held = Held::new(&backend, &stream);
    let ready = backend.record_position(stream.id()).unwrap();
    let rig = Rig::new(backend, 2 * MIB, 2 * MIB);
    let (given, is_given) = mpsc::channel();
    let first = rig.request();
    let late: Answer = Box::new(move |memory, layout| {
        let block = memory.alloc(layout, None)?;
        given.send(()).expect("the test receives");
        Ok(Block { ready: Some(ready), ..block })
    });
    rig.next().send(late).expect("it waits");
    is_given.recv_timeout(LIMIT).expect("a slab");
    let second = rig.request();
    rig.is_waiting(&second);
    held.release();
    let _blocks = [first, second].map(|got| arrived(&got).expect("a half of the slab"));
}

#[test]
fn a_request_within_an_allocation_of_its_pool_does_not_wait_for_it() {
    let rig = Rig::new(backend(64 * MIB), MIB, MIB);
    let first = rig.request();
    let (inner, (seen, within)) = (rig.pool.clone(), mpsc::channel());
    let nested: Answer = Box::new(move |memory, layout| {
        seen.send(Buffer::<u8, _>::new(inner, MIB as usize).map(drop)).expect("the test receives");
        memory.alloc(layout, None)
    });
    rig.next().send(nested).expect("it waits");
    rig.gives_up(|| within.try_recv().ok());
    arrived(&first).expect("a slab");
}

#[test]
fn a_slab_begun_after_the_patience_is_not_awaited() {
    let rig = Rig::new(backend(64 * MIB), 2 * MIB, MIB);
    let first = rig.request();
    let first_answer = rig.next();
    let second = rig.request();
    let second_answer = rig.next();
    let third = rig.request();
    rig.is_waiting(&third);
    second_answer.send(unsupported()).expect("it waits");
    arrived(&second).map(drop).expect_err("not supported");
    // The third request allocates in vain, and waits for the first.
    rig.next().send(refused()).expect("it waits");
    rig.is_waiting(&third);
    let fourth = rig.request();
    let fourth_answer = rig.next();
    first_answer.send(unsupported()).expect("it waits");
    arrived(&first).map(drop).expect_err("not supported");
    rig.next().send(refused()).expect("it waits");
    rig.gives_up(|| third.try_recv().ok().map(|outcome| outcome.map(drop)));
    fourth_answer.send(really()).expect("it waits");
    arrived(&fourth).expect("a slab");
}
