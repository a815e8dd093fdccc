#![allow(dead_code)]

use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use ringmem_driver_double::*;
use ringmem_kernels::IMAGE;
use ringmem_kernels::probe::mode;

pub const NON_BLOCKING: u32 = 1;

#[track_caller]
pub fn ok(code: u32) {
    assert_eq!(code, 0);
}

pub fn begin() {
    let mut context = 0;
    // SAFETY: writes one handle.
    unsafe {
        ok(cuInit(0));
        ok(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        ok(cuCtxSetCurrent(context));
    }
}

pub fn device(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: writes one address.
    ok(unsafe { cuMemAlloc_v2(&raw mut address, bytes) });
    address
}

pub fn pinned(bytes: usize) -> NonNull<u8> {
    let mut pointer = null_mut();
    // SAFETY: writes one pointer; then all bytes of its block.
    unsafe {
        ok(cuMemHostAlloc(&raw mut pointer, bytes, 3));
        pointer.cast::<u8>().write_bytes(0, bytes);
    }
    NonNull::new(pointer.cast()).expect("a pointer")
}

pub fn stream(flags: u32) -> usize {
    let mut stream = 0;
    // SAFETY: writes one handle.
    ok(unsafe { cuStreamCreate(&raw mut stream, flags) });
    stream
}

pub fn ordered(bytes: usize, stream: usize) -> u64 {
    let mut address = 0;
    // SAFETY: writes one address.
    ok(unsafe { cuMemAllocAsync(&raw mut address, bytes, stream) });
    address
}

pub fn event(flags: u32) -> usize {
    let mut event = 0;
    // SAFETY: writes one handle.
    ok(unsafe { cuEventCreate(&raw mut event, flags) });
    event
}

pub fn bytes_at(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: of the stated length.
    ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len) });
    bytes
}

pub fn ptx(abi: u64, kernels: &[(&str, usize)]) -> CString {
    let bytes = abi.to_le_bytes().map(|byte| byte.to_string()).join(", ");
    let mut text = format!(".version 6.3\n.target sm_70\n.visible .global .align 8 .b8 RINGMEM_ABI[8] = {{{bytes}}};\n");
    for (name, count) in kernels {
        let parameters: Vec<String> = (0..*count).map(|i| format!("\t.param .u64 {name}_param_{i}")).collect();
        text.push_str(&format!(".visible .entry {name}(\n{}\n)\n{{\n\tret;\n}}\n", parameters.join(",\n")));
    }
    CString::new(text).expect("no zero in it")
}

pub fn module() -> usize {
    let kernels: Vec<(&str, usize)> = IMAGE.host.iter().map(|entry| (entry.name, entry.arguments)).collect();
    let (mut module, text) = (0, ptx(IMAGE.abi.hash, &kernels));
    // SAFETY: a C string.
    ok(unsafe { cuModuleLoadData(&raw mut module, text.as_ptr().cast()) });
    module
}

pub fn function(module: usize, name: &'static std::ffi::CStr) -> usize {
    let mut function = 0;
    // SAFETY: writes one handle.
    ok(unsafe { cuModuleGetFunction(&raw mut function, module, Name::new(name)) });
    function
}

pub fn launch(function: usize, blocks: u32, stream: usize, arguments: &[u64]) -> u32 {
    let mut parameters: Vec<*mut c_void> = arguments.iter().map(|argument| (&raw const *argument).cast_mut().cast()).collect();
    // SAFETY: as many arguments as the kernel takes; they name live memory.
    unsafe { cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()) }
}

pub struct Held {
    words: NonNull<u8>,
    pub module: usize,
    pub stream: usize,
}

impl Held {
    pub fn new(flags: u32) -> Self {
        let (words, module, stream) = (pinned(512), module(), stream(flags));
        let held = Self { words, module, stream };
        held.word(8).store(1, Release);
        let idle_ns = 20_000_000_000;
        ok(launch(function(module, c"ping_pong"), 1, stream, &[words.addr().get() as u64, 1, 2, idle_ns, mode::RELEASE]));
        eventually("the kernel runs", || held.word(128 + 8).load(Acquire) == 1);
        held
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the 512 bytes that are never freed, aligned; atomics on both sides.
        unsafe { self.words.add(offset).cast().as_ref() }
    }

    pub fn release(&self) {
        self.word(8).store(2, Release);
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamSynchronize(self.stream) });
    }
}

#[track_caller]
pub fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {fact}");
        thread::sleep(Duration::from_micros(50));
    }
}
