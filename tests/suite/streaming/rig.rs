use ringmem::backend::host::{Builder, HostBackend};
use ringmem::image::{Entry, KernelHost};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::streaming::{Cause, Chunk, Stage, Streamer};
use ringmem::{Abi, Image, LAYOUTS};

use crate::rig::leak_checked::Clean;

pub fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn backend() -> Clean {
    build(HostBackend::builder().device_memory(1 << 20))
}

pub fn build(builder: Builder) -> Clean {
    Clean::build(builder)
}

pub fn streamer(backend: &Clean, chunk: u64, depth: u32) -> Streamer {
    Streamer::builder(backend, 0).chunk(chunk).depth(depth).build().expect("room")
}

const IMAGE: Image = Image {
    ptx: b"",
    host: &[Entry { name: "increment", arguments: 2, run: increment }, Entry { name: "increment_late", arguments: 2, run: increment_late }],
    abi: Abi::of(LAYOUTS),
};

fn increment(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]).expect("mapped bytes");
    for i in 0..arguments[1] as usize {
        // SAFETY: translated for so many bytes.
        let byte = unsafe { place.add(i) };
        // SAFETY: an otherwise unused chunk.
        unsafe { byte.write(byte.read().wrapping_add(1)) };
    }
}

fn increment_late(host: &dyn KernelHost, arguments: &[u64]) {
    for _ in 0..50 {
        host.pause(4000);
    }
    increment(host, arguments);
}

pub fn plus_one(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.wrapping_add(1)).collect()
}

pub struct Increment(Module);

impl Increment {
    pub fn new(backend: &Clean) -> Self {
        Self(Module::load(backend, &IMAGE, &Abi::of(LAYOUTS)).expect("our ABI"))
    }

    pub fn at_once(&self, chunk: &Chunk, on: &Stream) -> Result<Pending<()>, Cause> {
        self.launch("increment", chunk, on)
    }

    pub fn late(&self, chunk: &Chunk, on: &Stream) -> Result<Pending<()>, Cause> {
        self.launch("increment_late", chunk, on)
    }

    fn launch(&self, name: &str, chunk: &Chunk, on: &Stream) -> Result<Pending<()>, Cause> {
        // SAFETY: it accesses the chunk and exits.
        Ok(unsafe { on.launch(&self.0, name, &[chunk.address.get(), chunk.length]) }?)
    }
}

pub fn incremented(backend: &Clean) -> impl Stage {
    let increment = Increment::new(backend);
    ringmem::streaming::Queued(move |chunk: &Chunk, on: &Stream| increment.at_once(chunk, on))
}
