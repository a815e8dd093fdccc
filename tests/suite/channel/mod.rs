mod broken;
mod burst;
mod counts;
mod drain;
mod dump;
#[cfg(feature = "futures")]
mod duplex;
mod faults;
mod grouped;
mod life;
mod messages;
mod refusals;
mod typed;
mod waits;
mod warps;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::HostBackend;
use ringmem::bridge::{Placement, TransferStrategy};
use ringmem::channel::{Channel, Options, ReceiveError, SendError};
use ringmem::ring::spsc::PopError;
use ringmem::stream::Module;
use ringmem::{Error, Image, Rejected};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn load(backend: &Arc<HostBackend>, image: &Image) -> Module {
    Module::load(backend, image, &ABI).expect("our ABI")
}

fn open(backend: &Arc<HostBackend>, options: &Options<'_>) -> Result<Channel<Echo, Echo>, Error> {
    // SAFETY: `echo` takes no own arguments.
    unsafe { Channel::open_raw(backend, 0, &load(backend, &IMAGE), options) }
}

fn message(id: u64) -> Echo {
    Echo { words: [id, !id, id << 7, 3, 4, 5, 6, id.wrapping_mul(id)] }
}

/// Sends messages while the ring has room; their answers come in the same order.
fn exchange(channel: &mut Channel<Echo, Echo>, count: u64) {
    let mut sent = 0;
    for id in 0..count {
        while sent < count && channel.try_send(message(sent)).is_ok() {
            sent += 1;
        }
        assert_eq!(channel.recv().expect("an answer"), message(id), "{channel:?}");
    }
}

/// Receives the answers of a launch in the next one, three times.
fn restart_with_answers(channel: &mut Channel<Echo, Echo>, count: u64) {
    for launch in 0..3 {
        (0..count).for_each(|id| channel.send(message(count * launch + id)).expect("room"));
        channel.drain().expect("it ends");
        channel.restart().expect("it runs again");
        (0..count).for_each(|id| assert_eq!(channel.recv().expect("an answer"), message(count * launch + id)));
    }
    assert_eq!(channel.state(), Some(ringmem::control::State::Active));
}

fn receive(channel: &mut Channel<Echo, Echo>) -> Echo {
    receive_sending(channel, |_| {})
}

/// Sends while it waits: an answer may be seen before the slot of its message is free.
fn receive_sending(channel: &mut Channel<Echo, Echo>, mut send: impl FnMut(&mut Channel<Echo, Echo>)) -> Echo {
    let mut answer = None;
    eventually("there is an answer", || {
        send(channel);
        match channel.try_recv() {
            Ok(value) => answer = Some(value),
            Err(ReceiveError::Empty) => {}
            Err(error) => panic!("{error}"),
        }
        answer.is_some()
    });
    answer.expect("just received")
}

/// The messages that a paused kernel's rings of four slots hold: the host's and the kernel's, unless they are one.
fn room(strategy: TransferStrategy) -> u64 {
    if strategy == TransferStrategy::Unified { 4 } else { 8 }
}

const SHARED: usize = 2;

fn ways() -> Vec<Options<'static>> {
    let queued = [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }];
    let moved = queued.into_iter().flat_map(|strategy| {
        [Placement::DEVICE, Placement::SPLIT].map(|placement| Options {
            strategy: Some(strategy),
            placement: Some([placement; 2]),
            ..Options::new("echo")
        })
    });
    let flagged = Options { strategy: Some(TransferStrategy::Flagged), ..Options::new("echo_flagged") };
    [Options::new("echo"), flagged].into_iter().chain(moved).collect()
}

fn with_a_batch(way: &Options<'_>) -> (Clean, Channel<Echo, Echo>) {
    let backend = backend();
    let mut channel = open(&backend, way).expect("a channel");
    let mut batch = channel.send_batch(64);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    (backend, channel)
}
