use std::alloc::Layout;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use ringmem::backend::{MemoryLocation, Options, Request, Uses};
use ringmem::memory::{Aligned, Arena, Buffer, Device, Failing, Limited, Logged, Memory, Statistics, Tracked};
use ringmem_benches::{Subject, Workload};

use crate::host::{backend, each};

const BYTES: usize = 64;

const TRACED: u64 = 1024;

pub fn bare(buffers: u64) -> f64 {
    let backend = backend();
    let layout = Layout::from_size_align(BYTES, 1).expect("a layout");
    let request = Request { location: MemoryLocation::Device, device: 0, layout, options: Options::empty() };
    each(buffers, || {
        for _ in 0..buffers {
            let block = black_box(backend.allocate(black_box(&request), None).expect("room"));
            // SAFETY: just allocated and unused.
            unsafe { backend.free(&block, &Uses::NONE) }.expect("live");
        }
    })
}

fn made<M: Memory + Clone>(buffers: u64, memory: &M, every_so_often: impl Fn() + Sync) -> f64 {
    each(buffers, || {
        for number in 0..buffers {
            drop(black_box(Buffer::<u8, _>::new(memory.clone(), black_box(BYTES)).expect("room")));
            if number % TRACED == 0 {
                every_so_often();
            }
        }
    })
}

fn through<M: Memory + Clone>(buffers: u64, over: impl FnOnce(Device) -> M) -> f64 {
    made(buffers, &over(Device::new(&backend(), 0)), || ())
}

pub fn plain(buffers: u64) -> f64 {
    through(buffers, |device| device)
}

fn erased(buffers: u64) -> f64 {
    through(buffers, |device| -> Arc<dyn Memory<Visibility = _>> { Arc::new(device) })
}

fn limited(buffers: u64) -> f64 {
    through(buffers, |device| Limited::new(device, 1 << 20))
}

fn logged(buffers: u64) -> f64 {
    let memory = Logged::new(Device::new(&backend(), 0));
    made(buffers, &memory, || drop(memory.take()))
}

fn failing(buffers: u64) -> f64 {
    through(buffers, Failing::new)
}

fn statistics(buffers: u64) -> f64 {
    through(buffers, Statistics::new)
}

fn aligned(buffers: u64) -> f64 {
    through(buffers, |device| Aligned::new(device, 256).expect("a power of two"))
}

fn tracked(buffers: u64) -> f64 {
    through(buffers, Tracked::new)
}

fn arena(buffers: u64) -> f64 {
    through(buffers, |device| Arena::new(device, 1 << 16, 256).expect("room"))
}

fn of_a_static(buffers: u64) -> f64 {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    made(buffers, &DEVICE.get_or_init(|| Device::new(&backend(), 0)), || ())
}

pub fn workloads() -> Vec<Workload> {
    let alloc: Vec<Subject> = vec![("ringmem Buffer", plain), ("ringmem Buffer, static", of_a_static), ("backend", bare)];
    let adaptors: Vec<Subject> = vec![
        ("none", plain),
        ("ringmem Arc<dyn Memory>", erased),
        ("ringmem Limited", limited),
        ("ringmem Logged", logged),
        ("ringmem Failing", failing),
        ("ringmem Statistics", statistics),
        ("ringmem Aligned", aligned),
        ("ringmem Tracked", tracked),
        ("ringmem Arena", arena),
    ];
    vec![
        Workload { unit: "ns/buffer", aim_added_ns: Some(20.0), ..Workload::one("buffer-alloc-drop", 1.15, alloc) },
        Workload { unit: "ns/buffer", ..Workload::one("adaptors", 1.15, adaptors) },
    ]
}
