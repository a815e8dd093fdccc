//! The CUDA backend over the **driver double**, not a GPU: the host thread's time in calls. The stream is
//! held: its thread would sleep when idle, and the slower subject would wake it more often.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Address, Backend, Block, Copy, Fill, Launch, MemoryLocation, ModuleId, Options, Request, StreamId, Ticket, Uses};
use ringmem_benches::{Turn, Wanted, Workload};
use ringmem_kernels::{ABI, IMAGE};

use crate::each;

const TOGETHER: u64 = 32;

const AIM: f64 = 100.0;

struct Rig {
    backend: Arc<CudaBackend>,
    library: Library,
    stream: StreamId,
    raw: usize,
    context: usize,
    pinned: Block,
    device: Block,
    module: ModuleId,
}

fn address(block: &Block) -> u64 {
    block.device_address.map_or(0, |address| address.get())
}

fn place(block: &Block) -> Address {
    Address::Device(block.device_address.expect("a device sees it"))
}

fn request(location: MemoryLocation, bytes: usize) -> Request {
    Request { location, device: 0, layout: Layout::from_size_align(bytes, 256).expect("a layout"), options: Options::empty() }
}

impl Rig {
    fn open() -> Option<Self> {
        let path = ringmem_driver_double::library().inspect_err(|error| eprintln!("no driver double: {error}")).ok()?;
        // Loaded first: later loads by its `SONAME` get it.
        // SAFETY: its initialisers do nothing.
        let library = unsafe { Library::new(path) }.ok()?;
        let backend = CudaBackend::open().ok()?;
        if !backend.driver().gpus().ok()?.iter().all(|gpu| gpu.name.contains("not a GPU")) {
            eprintln!("no calls of the double: there is a driver here");
            return None;
        }
        let stream = backend.open_stream(0).ok()?;
        let [raw, context] = [backend.raw_stream(stream).ok()?.addr(), backend.raw_context(0).ok()?.addr()];
        let allocate = |location| backend.allocate(&request(location, 4096), None).ok();
        let (pinned, device) = (allocate(MemoryLocation::Pinned)?, allocate(MemoryLocation::Device)?);
        let module = backend.load(&IMAGE, &ABI).ok()?;
        Some(Self { backend, library, stream, raw, context, pinned, device, module })
    }

    fn call<F: core::marker::Copy>(&self, name: &str) -> F {
        // SAFETY: each caller names a function with its signature.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.expect("the double has it")
    }

    fn settle(&self) {
        type Synchronize = unsafe extern "C" fn(usize) -> u32;
        // SAFETY: a live stream.
        assert_eq!(unsafe { self.call::<Synchronize>("cuStreamSynchronize")(self.raw) }, 0);
    }
}

fn rig() -> Option<&'static Rig> {
    static RIG: OnceLock<Option<Rig>> = OnceLock::new();
    RIG.get_or_init(Rig::open).as_ref()
}

#[inline(never)]
fn counted(calls: &mut dyn FnMut()) {
    calls();
}

unsafe extern "C" fn held(gate: *const Mutex<()>) {
    // SAFETY: a static.
    drop(unsafe { &*gate }.lock());
}

fn queued<T>(times: u64, call: impl FnMut(&'static Rig) -> T + Send, after: impl FnMut(&'static Rig, Vec<T>) + Send) -> f64 {
    static GATE: Mutex<()> = Mutex::new(());
    type Call = unsafe extern "C" fn(usize, unsafe extern "C" fn(*const Mutex<()>), *const Mutex<()>) -> u32;
    let hold = |rig: &'static Rig| {
        let gate = GATE.lock().expect("nobody panics with it");
        // SAFETY: a live stream; the function takes the data passed.
        assert_eq!(unsafe { rig.call::<Call>("cuLaunchHostFunc")(rig.raw, held, &raw const GATE) }, 0);
        gate
    };
    timed(times, TOGETHER, hold, call, after)
}

fn timed<T, H>(
    times: u64,
    together: u64,
    before: impl Fn(&'static Rig) -> H + Send + Sync,
    mut call: impl FnMut(&'static Rig) -> T + Send,
    mut after: impl FnMut(&'static Rig, Vec<T>) + Send,
) -> f64 {
    let rig = rig().expect("workloads are there only with it");
    let rounds = times.div_ceil(together);
    let mut sum = Duration::ZERO;
    each(rounds * together, || {
        type Bind = unsafe extern "C" fn(usize) -> u32;
        // SAFETY: a live context.
        assert_eq!(unsafe { rig.call::<Bind>("cuCtxSetCurrent")(rig.context) }, 0);
        for _ in 0..rounds {
            let mut made = Vec::with_capacity(together as usize);
            let before = before(rig);
            let begun = Instant::now();
            counted(&mut || made.extend((0..together).map(|_| call(rig))));
            sum += begun.elapsed();
            drop(before);
            rig.settle();
            after(rig, made);
        }
    });
    sum.as_nanos() as f64 / (rounds * together) as f64
}

fn over(rig: &'static Rig, tickets: Vec<Ticket>) {
    while tickets.last().is_some_and(|ticket| !rig.backend.is_complete(*ticket)) {
        std::thread::yield_now();
    }
}

fn nothing(_: &'static Rig, said: Vec<u32>) {
    assert!(said.iter().all(|&said| said == 0));
}

fn copy(times: u64) -> f64 {
    let call = |rig: &'static Rig| {
        // SAFETY: both live as long as the rig.
        unsafe { rig.backend.copy(&Copy { to: place(&rig.device), from: place(&rig.pinned), bytes: 64 }, rig.stream) }.expect("queued")
    };
    queued(times, call, over)
}

fn bare_copy(times: u64) -> f64 {
    type Call = unsafe extern "C" fn(u64, u64, usize, usize) -> u32;
    let function: Call = rig().expect("it is there").call("cuMemcpyHtoDAsync_v2");
    // SAFETY: both buffers live as long as the rig, as does the stream; the signature is the driver's.
    queued(times, |rig| unsafe { function(address(&rig.device), address(&rig.pinned), 64, rig.raw) }, nothing)
}

fn fill(times: u64) -> f64 {
    let call = |rig: &'static Rig| {
        // SAFETY: it lives as long as the rig.
        unsafe { rig.backend.fill(&Fill::of(place(&rig.device), 7_u8, 64), rig.stream) }.expect("queued")
    };
    queued(times, call, over)
}

fn bare_fill(times: u64) -> f64 {
    type Call = unsafe extern "C" fn(u64, u8, usize, usize) -> u32;
    let function: Call = rig().expect("it is there").call("cuMemsetD8Async");
    // SAFETY: the buffer lives as long as the rig, as does the stream; the signature is the driver's.
    queued(times, |rig| unsafe { function(address(&rig.device), 7, 64, rig.raw) }, nothing)
}

fn launch(times: u64) -> f64 {
    let call = |rig: &'static Rig| {
        let launch = Launch {
            module: rig.module,
            name: "increment",
            arguments: &[address(&rig.device), 0],
            groups: 1,
            warps: 1,
            stays: false,
            operands: &[],
            elements: None,
        };
        // SAFETY: no byte is accessed.
        unsafe { rig.backend.launch(&launch, rig.stream) }.expect("queued")
    };
    queued(times, call, over)
}

/// Without the event, a wait for earlier work would include the kernel.
fn bare_launch(times: u64) -> f64 {
    bare_launch_after(times, true)
}

fn bare_launch_alone(times: u64) -> f64 {
    bare_launch_after(times, false)
}

fn bare_launch_after(times: u64, event: bool) -> f64 {
    type Record = unsafe extern "C" fn(usize, usize) -> u32;
    type Call = unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut *mut c_void, *mut *mut c_void) -> u32;
    type Load = unsafe extern "C" fn(*mut usize, *const u8) -> u32;
    type Find = unsafe extern "C" fn(*mut usize, usize, *const u8) -> u32;
    static HANDLES: OnceLock<[usize; 2]> = OnceLock::new();
    let rig = rig().expect("it is there");
    let [kernel, before] = *HANDLES.get_or_init(|| {
        let (mut module, mut kernel, mut before) = (0, 0, 0);
        let text: Vec<u8> = IMAGE.ptx.iter().copied().chain([0]).collect();
        // SAFETY: live context; zero-terminated text and name; each writes one handle.
        unsafe {
            assert_eq!(rig.call::<unsafe extern "C" fn(usize) -> u32>("cuCtxSetCurrent")(rig.context), 0);
            assert_eq!(rig.call::<Load>("cuModuleLoadData")(&raw mut module, text.as_ptr()), 0);
            assert_eq!(rig.call::<Find>("cuModuleGetFunction")(&raw mut kernel, module, c"increment".as_ptr().cast()), 0);
            assert_eq!(rig.call::<unsafe extern "C" fn(usize) -> u32>("cuFuncLoad")(kernel), 0);
            assert_eq!(rig.call::<unsafe extern "C" fn(*mut usize, u32) -> u32>("cuEventCreate")(&raw mut before, 3), 0);
        }
        [kernel, before]
    });
    let (function, record): (Call, Record) = (rig.call("cuLaunchKernel"), rig.call("cuEventRecord"));
    let call = |rig: &'static Rig| {
        let (mut first, mut count) = (address(&rig.device), 0_u64);
        let mut arguments = [(&raw mut first).cast(), (&raw mut count).cast()];
        // SAFETY: a live event and stream.
        let recorded = if event { unsafe { record(before, rig.raw) } } else { 0 };
        // SAFETY: a live function with two arguments; accesses no byte.
        recorded + unsafe { function(kernel, 1, 1, 1, 32, 1, 1, 0, rig.raw, arguments.as_mut_ptr(), null_mut()) }
    };
    queued(times, call, nothing)
}

fn record(times: u64) -> f64 {
    let forget = |rig: &'static Rig, tickets: Vec<Ticket>| {
        over(rig, tickets.clone());
        tickets.into_iter().for_each(|ticket| rig.backend.forget(ticket));
    };
    queued(times, |rig| rig.backend.record(rig.stream).expect("queued").expect("timed"), forget)
}

fn bare_record(times: u64) -> f64 {
    type Create = unsafe extern "C" fn(*mut usize, u32) -> u32;
    type Record = unsafe extern "C" fn(usize, usize) -> u32;
    let rig = rig().expect("it is there");
    let (create, record): (Create, Record) = (rig.call("cuEventCreate"), rig.call("cuEventRecord"));
    let call = |rig: &'static Rig| {
        let mut event = 0;
        // SAFETY: writes one handle; a live event and stream.
        assert_eq!(unsafe { create(&raw mut event, 0) + record(event, rig.raw) }, 0);
        event
    };
    let destroy = |rig: &'static Rig, events: Vec<usize>| {
        let destroy: unsafe extern "C" fn(usize) -> u32 = rig.call("cuEventDestroy_v2");
        // SAFETY: created above, once.
        events.into_iter().for_each(|event| assert_eq!(unsafe { destroy(event) }, 0));
    };
    queued(times, call, destroy)
}

fn wait(times: u64) -> f64 {
    waited(times, |rig, ticket, _| assert!(rig.backend.wait(ticket, None).expect("done")))
}

fn bare_wait(times: u64) -> f64 {
    type Record = unsafe extern "C" fn(usize, usize) -> u32;
    type Query = unsafe extern "C" fn(usize) -> u32;
    let rig = rig().expect("it is there");
    let (record, query): (Record, Query) = (rig.call("cuEventRecord"), rig.call("cuEventSynchronize"));
    // SAFETY: a live event and stream.
    waited(times, |rig, _, event| assert_eq!(unsafe { record(event, rig.raw) + query(event) }, 0))
}

fn waited(times: u64, mut wait: impl FnMut(&'static Rig, Ticket, usize) + Send) -> f64 {
    let mut sum = Duration::ZERO;
    let mut event = 0;
    let copy = |rig: &'static Rig| {
        // SAFETY: both live as long as the rig.
        unsafe { rig.backend.copy(&Copy { to: place(&rig.device), from: place(&rig.pinned), bytes: 64 }, rig.stream) }.expect("queued")
    };
    timed(times, 1, drop, copy, |rig, tickets| {
        type Create = unsafe extern "C" fn(*mut usize, u32) -> u32;
        if event == 0 {
            // SAFETY: writes one handle.
            assert_eq!(unsafe { rig.call::<Create>("cuEventCreate")(&raw mut event, 3) }, 0);
        }
        for ticket in tickets {
            let begun = Instant::now();
            counted(&mut || wait(rig, ticket, event));
            sum += begun.elapsed();
            over(rig, vec![ticket]);
        }
    });
    if event != 0 {
        // SAFETY: created above, once.
        unsafe { rig().expect("it is there").call::<unsafe extern "C" fn(usize) -> u32>("cuEventDestroy_v2")(event) };
    }
    sum.as_nanos() as f64 / times as f64
}

fn allocate(times: u64) -> f64 {
    let call = |rig: &'static Rig| {
        let block = rig.backend.allocate(&request(MemoryLocation::Device, 65_536), None).expect("room");
        // SAFETY: unused.
        unsafe { rig.backend.free(&block, &Uses::NONE) }.expect("a live block");
    };
    timed(times, TOGETHER, drop, call, |_, _| ())
}

fn bare_allocate(times: u64) -> f64 {
    type Allocate = unsafe extern "C" fn(*mut u64, usize, usize) -> u32;
    type Free = unsafe extern "C" fn(u64, usize) -> u32;
    let rig = rig().expect("it is there");
    let (allocate, free): (Allocate, Free) = (rig.call("cuMemAllocAsync"), rig.call("cuMemFreeAsync"));
    let call = |rig: &'static Rig| {
        let mut address = 0;
        // SAFETY: writes one address.
        assert_eq!(unsafe { allocate(&raw mut address, 65_536, rig.raw) }, 0);
        rig.settle();
        // SAFETY: just allocated, unused.
        assert_eq!(unsafe { free(address, rig.raw) }, 0);
        rig.settle();
    };
    timed(times, TOGETHER, drop, call, |_, _| ())
}

pub fn workloads(wanted: &Wanted) -> Vec<Workload> {
    let pairs: [(&'static str, Turn, Turn); 6] = [
        ("cuda-copy", copy, bare_copy),
        ("cuda-fill", fill, bare_fill),
        ("cuda-launch", launch, bare_launch),
        ("cuda-record", record, bare_record),
        ("cuda-wait", wait, bare_wait),
        ("cuda-alloc-free", allocate, bare_allocate),
    ];
    let beside = |(name, ours, bare)| {
        let mut workload = Workload {
            unit: "ns/call",
            source: "driver double",
            within: (!["cuda-wait", "cuda-alloc-free"].contains(&name)).then_some("driver::counted"),
            aim_added_ns: Some(AIM),
            ..Workload::one(name, 1.0, vec![("ringmem", ours), ("driver call", bare)])
        };
        if name == "cuda-launch" {
            workload.subjects.push(("beside: without the event", bare_launch_alone));
        }
        workload
    };
    let is_wanted = pairs.iter().any(|(name, ..)| wanted.wants(name));
    if wanted.counted || is_wanted && rig().is_some() { pairs.map(beside).into() } else { Vec::new() }
}
