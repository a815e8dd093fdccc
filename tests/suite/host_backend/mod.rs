//! [`HostBackend`]: what the conformance suite cannot ask of every backend.

mod address_ranges;
mod counters;
mod device_memory;
mod devices;
mod faults;
mod invalid_blocks;
mod kernels;
mod limits;
mod link;
mod log;
mod pager;
mod pinned;
#[cfg(target_os = "linux")]
mod process;
mod published_words;
mod setup;
mod stream_end;
mod waits;

use std::alloc::Layout;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::{Builder, HostBackend};
use ringmem::backend::{Address, Backend, Block, Copy, MemoryLocation, Options, Request, Uses};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, LAYOUTS};

use setup::{IMAGE, done, within};

fn load(backend: &Arc<HostBackend>) -> Module {
    Module::load(backend, &IMAGE, &Abi::of(LAYOUTS)).expect("our ABI")
}

fn build(builder: Builder) -> Clean {
    Clean::build(builder)
}

fn request(location: MemoryLocation, device: u32, bytes: usize) -> Request {
    let layout = Layout::from_size_align(bytes, 64).expect("a layout");
    Request { location, device, layout, options: Options::empty() }
}

#[derive(Debug)]
struct Given {
    block: Block,
    backend: Arc<HostBackend>,
}

impl Deref for Given {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // SAFETY: the test no longer uses the block; a freed one is rejected.
        let _ = unsafe { self.backend.free(&self.block, &Uses::NONE) };
    }
}

fn give(backend: &Arc<HostBackend>, location: MemoryLocation, device: u32, bytes: usize) -> Result<Given, Error> {
    ask(backend, &request(location, device, bytes))
}

fn ask(backend: &Arc<HostBackend>, request: &Request) -> Result<Given, Error> {
    Ok(Given { block: backend.allocate(request, None)?, backend: Arc::clone(backend) })
}

fn start(block: &Block) -> Address {
    // SAFETY: offset 0 is within every block.
    unsafe { block.address_at(0) }.expect("it has bytes")
}

fn copy(backend: &Arc<HostBackend>, from: &Block, to: &Block, bytes: u64) -> Result<(), Error> {
    // SAFETY: two otherwise unused blocks; the test checks their lengths.
    unsafe { backend.copy_now(&Copy { to: start(to), from: start(from), bytes }) }
}

fn write(backend: &Arc<HostBackend>, bytes: &[u8], to: &Block) -> Result<(), Error> {
    let from = Address::Host(std::ptr::NonNull::from(bytes).cast());
    // SAFETY: an otherwise unused block, whose length the test checks; the bytes are borrowed.
    unsafe { backend.copy_now(&Copy { to: start(to), from, bytes: bytes.len() as u64 }) }
}

fn read(backend: &Arc<HostBackend>, from: &Block, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    let to = Address::Host(std::ptr::NonNull::from(&mut read[..]).cast());
    // SAFETY: an otherwise unused block, whose length the test checks; the bytes are borrowed mutably.
    unsafe { backend.copy_now(&Copy { to, from: start(from), bytes: bytes as u64 }) }.expect("a download");
    read
}

fn synchronize(stream: &Stream) {
    let ticket = stream.backend().record_position(stream.id()).expect("a live stream");
    eventually("the stream is through", || stream.backend().is_complete(ticket));
    stream.synchronize().expect("nothing failed");
}

struct Held {
    words: PinnedBuffer<u64>,
}

impl Held {
    fn new(backend: &Arc<HostBackend>, stream: &Stream) -> Self {
        let words = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), 2).expect("pinned memory");
        let address = words.device_address().expect("it has bytes").get();
        // SAFETY: atomic words that live until the kernel's exit.
        drop(unsafe { stream.launch(&load(backend), "hold", &[address]) }.expect("a launch"));
        let held = Self { words };
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let first = self.words.as_ptr().expect("it has bytes").cast::<AtomicU64>();
        // SAFETY: one of two aligned, atomic words that live as long as `self`.
        unsafe { first.add(index).as_ref() }
    }

    fn release(self, stream: &Stream) {
        self.word(1).store(1, Release);
        synchronize(stream);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.word(1).store(1, Release);
    }
}
