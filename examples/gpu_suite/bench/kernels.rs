use std::cell::RefCell;
use std::ptr::NonNull;
use std::time::Instant;

use ringmem::bridge::TransferStrategy;
use ringmem::channel::{Options, ReceiveError};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::ring::spsc::{PopError, PushError};
use ringmem::stream::{Pending, Stream};
use ringmem::{HostWord, Word};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::probe::{self, mode};

use super::copies::Link;
use super::{Rig, Subject, Workload};
use crate::exchange::{Echoes, open};
use crate::report::Failure;

const ALONE: u64 = 1000;
const TOGETHER: u64 = 200_000;
const KERNELS: u64 = 8;
const IDLE_NS: u64 = 5_000_000_000;

pub fn round_trip(rig: &Rig, name: &'static str) -> Result<(), Failure> {
    let options = match name {
        "flagged-trip" => Options { strategy: Some(TransferStrategy::Flagged), ..Options::new("echo_flagged") },
        _ => Options::new("echo"),
    };
    let probe = RefCell::new(Probe::new(rig)?);
    let channel = RefCell::new(open(&rig.backend, &options)?);
    let turn = |percent| {
        let channel = &channel;
        Box::new(move || part(&mut one_by_one(&mut channel.borrow_mut())?, percent))
    };
    let floor = Subject { name: "one word, ping-pong", turn: Box::new(|| probe.borrow_mut().ping_pong()) };
    let (percent, unit, aim, beside) = match name {
        "round-trip" => {
            (50, "ns, p50", 2.5, vec![floor, Subject { name: "launch and wait", turn: Box::new(|| probe.borrow_mut().launch()) }])
        }
        "flagged-trip" => (50, "ns, p50", 1.3, vec![floor]),
        _ => (99, "ns, p99", 2.0, vec![Subject { name: "its median", turn: turn(50) }]),
    };
    let ours = Subject { name: "ringmem Channel", turn: turn(percent) };
    rig.measure(Workload { name, unit, aim, subjects: [ours].into_iter().chain(beside).collect() })?;
    channel.into_inner().close()?;
    Ok(())
}

fn part(times: &mut [u64], percent: usize) -> Result<f64, Failure> {
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100);
    Ok(*times.get(rank.saturating_sub(1)).ok_or("nothing was measured")? as f64)
}

fn one_by_one(channel: &mut Echoes) -> Result<Vec<u64>, Failure> {
    let mut times = Vec::with_capacity(ALONE as usize);
    for id in 0..ALONE {
        let begun = Instant::now();
        channel.try_send(Echo { words: [id; 8] })?;
        let answer = loop {
            match channel.try_recv() {
                Ok(answer) => break answer,
                Err(ReceiveError::Empty) if begun.elapsed().as_nanos() as u64 > IDLE_NS => channel.check()?,
                Err(ReceiveError::Empty) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        };
        times.push(begun.elapsed().as_nanos() as u64);
        if answer.words != [id; 8] {
            return Err(format!("message {id} came back as {:?}", answer.words).into());
        }
    }
    Ok(times)
}

struct Probe<'a> {
    rig: &'a Rig,
    stream: Stream,
    buffer: PinnedBuffer<u64>,
    address: u64,
    first: NonNull<u8>,
    next: u64,
}

impl<'a> Probe<'a> {
    /// Allocates everything before a channel is opened: the creation of a stream or of pinned memory may wait for a running kernel.
    fn new(rig: &'a Rig) -> Result<Self, Failure> {
        let buffer = PinnedBuffer::new(Pinned::new(&rig.backend, 0), (probe::BYTES + 128) as usize / 8)?;
        let begin = buffer.device_address().ok_or("pinned memory without a device address")?.get();
        let first = buffer.as_ptr().ok_or("pinned memory that the host does not see")?;
        let address = begin.next_multiple_of(128);
        // SAFETY: within the buffer, which has 128 bytes to spare.
        let first = unsafe { first.cast::<u8>().byte_add((address - begin) as usize) };
        Ok(Self { rig, stream: Stream::new(&rig.backend, 0)?, buffer, address, first, next: 1 })
    }

    fn word(&self, line: u64) -> &HostWord {
        // SAFETY: within the words, which live as long as `self`, accessed as words.
        unsafe { self.first.byte_add(line as usize + 8).cast().as_ref() }
    }

    fn start(&mut self, kernel: &str, arguments: &[u64]) -> Result<Pending<()>, Failure> {
        // SAFETY: the buffer records the launch, so the words outlive it; accessed as words.
        let kernel = unsafe { self.stream.launch(&self.rig.module, kernel, arguments) }?;
        self.buffer.used_by(&self.stream)?;
        Ok(kernel)
    }

    fn ping_pong(&mut self) -> Result<f64, Failure> {
        let kernel = self.start("ping_pong", &[self.address, self.next, ALONE, IDLE_NS, mode::RELAXED])?;
        let numbers = self.next..self.next + ALONE;
        self.next = numbers.end;
        let (host, device) = (self.word(probe::HOST_LINE), self.word(probe::DEVICE_LINE));
        let mut times = Vec::with_capacity(ALONE as usize);
        for number in numbers {
            let begun = Instant::now();
            host.store_release(number);
            while device.load_acquire() != number {
                if begun.elapsed().as_nanos() as u64 > IDLE_NS {
                    return Err(format!("message {number} was not answered within {} s", IDLE_NS / 1_000_000_000).into());
                }
            }
            times.push(begun.elapsed().as_nanos() as u64);
        }
        kernel.wait().map_err(ringmem::Rejected::into_error)?;
        part(&mut times, 50)
    }

    fn launch(&mut self) -> Result<f64, Failure> {
        const TIMES: u32 = 50;
        let begun = Instant::now();
        for _ in 0..TIMES {
            self.start("publish", &[self.address, 0, mode::RELAXED])?.wait().map_err(ringmem::Rejected::into_error)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(TIMES))
    }
}

pub fn messages(rig: &Rig) -> Result<(), Failure> {
    // Before the channel is opened: a running kernel may delay allocations.
    let mut link = Link::new(rig)?;
    let channel = RefCell::new(open(&rig.backend, &Options::new("echo"))?);
    let subjects = vec![
        Subject { name: "ringmem Channel", turn: Box::new(|| batches(&mut channel.borrow_mut(), TOGETHER, 64)) },
        Subject { name: "the link, both ways", turn: Box::new(|| link.turn(size_of::<Echo>())) },
        Subject { name: "alone: publish each", turn: Box::new(|| batches(&mut channel.borrow_mut(), TOGETHER / 10, 1)) },
    ];
    rig.measure(Workload { name: "messages", unit: "ns/message", aim: 2.0, subjects })?;
    channel.into_inner().close()?;
    Ok(())
}

pub fn many(rig: &Rig) -> Result<(), Failure> {
    let mut link = Link::new(rig)?;
    let mut channels = (0..KERNELS).map(|_| open(&rig.backend, &Options::new("echo"))).collect::<Result<Vec<_>, Failure>>()?;
    let ours = || {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = channels.iter_mut().map(|channel| scope.spawn(|| batches(channel, TOGETHER / KERNELS, 64))).collect();
            let said: Vec<_> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect();
            said.into_iter().try_for_each(|said| said.map(drop))
        })?;
        Ok(begun.elapsed().as_nanos() as f64 / TOGETHER as f64)
    };
    let subjects = vec![
        Subject { name: "ringmem, 8 Channels", turn: Box::new(ours) },
        Subject { name: "the link, both ways", turn: Box::new(|| link.turn(size_of::<Echo>())) },
    ];
    rig.measure(Workload { name: "messages-8", unit: "ns/message", aim: 2.0, subjects })?;
    channels.into_iter().try_for_each(|channel| channel.close().map(drop))?;
    Ok(())
}

pub fn accounts(rig: &Rig) -> Result<(), Failure> {
    // One kernel at a time: an idle one takes processor time.
    let turn = |kernel: &'static str| {
        move || {
            let mut channel = open(&rig.backend, &Options::new(kernel))?;
            let took = batches(&mut channel, TOGETHER, 64)?;
            channel.close()?;
            Ok(took)
        }
    };
    let subjects = vec![
        Subject { name: "ringmem, echo", turn: Box::new(turn("echo")) },
        Subject { name: "echo without accounts", turn: Box::new(turn("echo_bare")) },
    ];
    rig.measure(Workload { name: "accounts", unit: "ns/message", aim: 1.02, subjects })
}

fn batches(channel: &mut Echoes, messages: u64, every: usize) -> Result<f64, Failure> {
    let (mut sent, mut received) = (0, 0);
    let begun = Instant::now();
    while received < messages {
        let before = (sent, received);
        let mut sender = channel.send_batch(every);
        while sent < messages {
            match sender.push(Echo { words: [sent; 8] }) {
                Ok(()) => sent += 1,
                Err(PushError::Full(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        drop(sender);
        channel.flush()?;
        let mut receiver = channel.recv_batch(every);
        loop {
            match receiver.pop() {
                Ok(answer) if answer.words == [received; 8] => received += 1,
                Ok(answer) => return Err(format!("message {received} came back as {:?}", answer.words).into()),
                Err(PopError::Empty) => break,
                Err(error) => return Err(error.into()),
            }
        }
        drop(receiver);
        if before == (sent, received) {
            channel.check()?;
            std::thread::yield_now();
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / messages as f64)
}
