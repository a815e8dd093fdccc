#![allow(dead_code, reason = "each test uses a part")]

use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::image::KernelHost;
use ringmem_ptx_machine::{Device, Fault, Image};

const PATIENCE: u64 = 1 << 22;
const LIMIT: Duration = Duration::from_secs(10);

pub struct Memory {
    words: Box<[AtomicU64]>,
    accesses: AtomicU64,
}

impl Memory {
    pub fn zeroed(words: usize) -> Self {
        Self::filled(words, 0)
    }

    pub fn filled(words: usize, value: u64) -> Self {
        Self { words: (0..words + 16).map(|_| AtomicU64::new(value)).collect(), accesses: AtomicU64::new(0) }
    }

    pub fn address(&self) -> u64 {
        (self.words.as_ptr().expose_provenance() as u64).next_multiple_of(128)
    }

    fn place(&self, at: usize) -> &AtomicU64 {
        let first = (self.address() - self.words.as_ptr().addr() as u64) / 8;
        &self.words[first as usize + at]
    }

    pub fn word(&self, at: usize) -> u64 {
        self.place(at).load(Acquire)
    }

    pub fn waits_for(&self, at: usize, value: u64) -> bool {
        let begin = Instant::now();
        while self.word(at) != value {
            if begin.elapsed() > LIMIT {
                return false;
            }
            thread::yield_now();
        }
        true
    }

    pub fn set(&self, at: usize, value: u64) {
        self.place(at).store(value, Release);
    }
}

impl KernelHost for Memory {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        (self.accesses.fetch_add(1, Relaxed) < PATIENCE).then_some(())?;
        let base = self.words.as_ptr().addr() as u64;
        let offset = address.checked_sub(base)?;
        (offset.checked_add(bytes)? <= self.words.len() as u64 * 8).then_some(())?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }
}

pub struct Block<'a> {
    pub memory: &'a Memory,
    pub group: u64,
    pub groups: u64,
}

impl KernelHost for Block<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.memory.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn group(&self) -> u64 {
        self.group
    }
    fn groups(&self) -> u64 {
        self.groups
    }
    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }
}

pub fn run_blocks(image: &Image, memory: &Memory, seed: u64, groups: u64, threads: u32, host: impl FnOnce()) -> Vec<Result<(), Fault>> {
    let device = &Device::new(seed);
    thread::scope(|scope| {
        let run = |group| scope.spawn(move || device.run(image, "f", &[memory.address()], &Block { memory, group, groups }, threads, 1));
        let running: Vec<_> = (0..groups).map(run).collect();
        host();
        running.into_iter().map(|block| block.join().expect("the machine does not panic")).collect()
    })
}

pub fn assemble(text: &str, architecture: &str) {
    let Some(ptxas) = std::env::var_os("RINGMEM_PTXAS").filter(|path| !path.is_empty()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, target) = (folder.path().join("cases.ptx"), folder.path().join("cases.cubin"));
    std::fs::write(&source, text).expect("a file");
    let output = Command::new(ptxas).args(["-arch", architecture, "-o"]).args([&target, &source]).output().expect("an assembler");
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}
