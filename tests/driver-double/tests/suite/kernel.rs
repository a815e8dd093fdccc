use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::alone::alone;
use crate::rig::{NON_BLOCKING, begin, device, eventually, function, launch, module, ok, pinned, stream};
use ringmem_driver_double::*;
use ringmem_kernels::{ABI, echo::Echo};
use ringmem_layouts::control::{Capabilities, Command, Fault, HostSide, Launch, Shared, State};
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::{Host, HostWord, RingHeader, RingLayout};

const CAPACITY: u64 = 16;
const EPOCH: u32 = 7;
const IDLE_NS: u64 = 20_000_000_000;

struct Line {
    control: HostSide<'static, HostWord>,
    sender: Producer<'static, Echo, Host>,
    receiver: Consumer<'static, Echo, Host>,
}

impl Line {
    fn new(row: NonNull<u8>, index: usize, input: Option<u64>) -> Self {
        let ring = RingLayout::of::<Echo>(CAPACITY).expect("a ring");
        let [telemetry, inward, outward] = [64, ring.size() as usize, ring.size() as usize].map(pinned);
        let address = |place: NonNull<u8>| place.addr().get() as u64;
        let prepared = Launch {
            abi: ABI.hash,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch: EPOCH,
            input_ring: input.unwrap_or(address(inward)),
            output_ring: address(outward),
            second_headers: [None; 2],
            telemetry: address(telemetry),
        };
        // SAFETY: zeroed pinned memory of this size, aligned to pages and never freed, exclusive.
        unsafe {
            inward.cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&ring, u64::MAX - 20);
            outward.cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&ring, u64::MAX - 20);
            Self {
                control: HostSide::prepare(row.cast::<Shared<HostWord>>().add(index).as_ref(), &prepared),
                sender: Producer::from_raw(inward, ring.size()).expect("the input ring"),
                receiver: Consumer::from_raw(outward, ring.size()).expect("the output ring"),
            }
        }
    }

    fn command(&mut self, command: Command) {
        self.control.command(command);
        eventually("the command is acted on", || self.control.acknowledged());
    }

    fn talk(&mut self, messages: u64, key: u64) {
        let (mut sent, mut received) = (0, 0);
        let begun = Instant::now();
        while received < messages {
            if sent < messages && self.sender.push(Echo { words: [sent ^ key; 8] }).is_ok() {
                sent += 1;
            }
            match self.receiver.pop() {
                Ok(answer) => {
                    assert_eq!(answer.words, [received ^ key; 8]);
                    received += 1;
                }
                Err(_) => std::thread::yield_now(),
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{received} of {messages}, {:?}", self.control.state());
        }
    }
}

#[test]
fn echo_answers_through_rings_in_pinned_memory() {
    alone("kernel::echo_answers_through_rings_in_pinned_memory", &[], || {
        begin();
        let (row, on) = (pinned(128), stream(NON_BLOCKING));
        let mut line = Line::new(row, 0, None);
        ok(launch(function(module(), c"echo"), 1, on, &[row.addr().get() as u64, EPOCH.into(), IDLE_NS, 8]));
        line.command(Command::ACTIVATE);
        line.talk(1000, 0);
        line.command(Command::DRAIN);
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamSynchronize(on) });
        assert_eq!(line.control.state(), Some(State::Terminated));
        assert_eq!(line.control.snapshot().processed, 1000);
    });
}

#[test]
fn each_block_serves_its_own_control_block() {
    alone("kernel::each_block_serves_its_own_control_block", &[], || {
        const BLOCKS: u32 = 3;
        begin();
        let (row, on) = (pinned(128 * BLOCKS as usize), stream(NON_BLOCKING));
        let mut lines: Vec<Line> = (0..BLOCKS as usize).map(|index| Line::new(row, index, None)).collect();
        ok(launch(function(module(), c"echo"), BLOCKS, on, &[row.addr().get() as u64, EPOCH.into(), IDLE_NS, 8]));
        for (index, line) in (1..).zip(&mut lines) {
            line.command(Command::ACTIVATE);
            line.talk(100 * index, index << 32);
        }
        for line in &mut lines {
            line.command(Command::TERMINATE);
        }
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamSynchronize(on) });
        let processed: Vec<u64> = lines.iter().map(|line| line.control.snapshot().processed).collect();
        assert_eq!(processed, [100, 200, 300]);
    });
}

#[test]
fn blocks_beyond_the_capacity_run_after_the_others() {
    alone("kernel::blocks_beyond_the_capacity_run_after_the_others", &[], || {
        const BLOCKS: u32 = 65;
        begin();
        let (row, on) = (pinned(128 * BLOCKS as usize), stream(NON_BLOCKING));
        let mut lines: Vec<Line> = (0..BLOCKS as usize).map(|index| Line::new(row, index, None)).collect();
        ok(launch(function(module(), c"echo"), BLOCKS, on, &[row.addr().get() as u64, EPOCH.into(), IDLE_NS, 8]));
        let ready = |line: &Line| line.control.state() == Some(State::Ready);
        eventually("64 are ready", || lines.iter().filter(|line| ready(line)).count() == 64);
        assert!(!ready(&lines[64]));
        lines[0].command(Command::ACTIVATE);
        lines[0].command(Command::TERMINATE);
        eventually("the last is ready", || ready(&lines[64]));
        for line in &mut lines[1..] {
            line.control.command(Command::ACTIVATE | Command::TERMINATE);
        }
    });
}

#[test]
fn with_cuda_launch_blocking_a_launch_returns_after_its_kernel() {
    const DELAY: (&str, &str) = ("RINGMEM_DOUBLE_DELAY_US", "300000");
    let is_over = || {
        begin();
        let (words, on) = (pinned(512), stream(NON_BLOCKING));
        ok(launch(function(module(), c"publish"), 1, on, &[words.addr().get() as u64, 1, 0]));
        // SAFETY: takes a handle.
        unsafe { cuStreamQuery(on) }
    };
    let name = "kernel::with_cuda_launch_blocking_a_launch_returns_after_its_kernel";
    alone(name, &[DELAY, ("CUDA_LAUNCH_BLOCKING", "1")], || assert_eq!(is_over(), 0));
}

#[test]
fn a_kernel_faults_at_an_address_that_is_not_live() {
    alone("kernel::a_kernel_faults_at_an_address_that_is_not_live", &[], || {
        begin();
        let (freed, own, on) = (device(4096), vec![0_u8; 8192], stream(NON_BLOCKING));
        // SAFETY: takes an address.
        ok(unsafe { cuMemFree_v2(freed) });
        let echo = function(module(), c"echo");
        let pageable = own.as_ptr().addr().next_multiple_of(128) as u64;
        for foreign in [0, freed, pageable, u64::MAX - 127] {
            let row = pinned(128);
            let line = Line::new(row, 0, Some(foreign));
            ok(launch(echo, 1, on, &[row.addr().get() as u64, EPOCH.into(), IDLE_NS, 8]));
            // SAFETY: takes a handle.
            ok(unsafe { cuStreamSynchronize(on) });
            let seen = line.control.snapshot();
            assert_eq!((seen.kernel_state(), seen.faults()), (Some(State::Faulted), (1, Some(Fault::Address))), "{foreign:#x}");
        }
    });
}
