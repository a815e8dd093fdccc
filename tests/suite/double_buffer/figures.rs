use std::sync::Arc;

use ringmem::backend::host::Link;
use ringmem::double_buffer::Uploads;
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Host};
use ringmem::stream::{Module, Pending};
use ringmem::{Abi, Image, LAYOUTS};

use super::*;

const MANY: usize = 300_000;
const TRANSFER: u64 = 101_000;
const PAGEABLE: u64 = 201_000;
const FRAMES: u64 = 40;

const KERNELS: Image = Image { ptx: b"", host: &[Entry { name: "compute", arguments: 2, run: nothing }], abi: Abi::of(LAYOUTS) };

fn nothing(_: &dyn KernelHost, _: &[u64]) {}

struct Model {
    sources: [GpuBuffer<u32>; 2],
    work: Stream,
    module: Module,
    backend: Clean,
}

impl Model {
    fn new() -> Self {
        let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| arguments[1]);
        let link = Link { latency_ns: 1000, pinned: 12.0, pageable: 6.0, device: 500.0, host: 10.0, peer: 12.0, kernel_ns };
        let backend = Clean::build(HostBackend::builder().device_memory(16 << 20).link(link));
        let sources = [0; 2].map(|_| Buffer::new(Device::new(&backend, 0), MANY).expect("room"));
        let module = Module::load(&backend, &KERNELS, &Abi::of(LAYOUTS)).expect("our ABI");
        Self { sources, work: Stream::new(&backend, 0).expect("a stream"), module, backend }
    }

    fn now(&self) -> u64 {
        self.backend.model_now().expect("a model")
    }

    fn launch(&mut self, turn: u64, ns: u64) -> Pending<()> {
        let source = &mut self.sources[turn as usize % 2];
        source.ready_on(&self.work).expect("a live stream");
        let address = source.device_address().expect("it has bytes").get();
        // SAFETY: the kernel accesses nothing.
        let launched = unsafe { self.work.launch(&self.module, "compute", &[address, ns]) }.expect("queued");
        source.used_by(&self.work).expect("a live stream");
        launched
    }

    fn frames(&mut self, compute: u64, looks: u64) -> [u64; 2] {
        let (mut writer, mut reader) = double_buffer::pair::<u32, _>(Pinned::new(&self.backend, 0), 3, EVERY).expect("a stream");
        let (begun, mut blocked) = (self.now(), 0);
        for turn in 0..FRAMES + 2 {
            if turn < FRAMES {
                drop(self.launch(turn, compute));
                writer.start(&mut self.sources[turn as usize % 2], ..).expect("a slot");
            }
            if turn >= 2 {
                let before = self.now();
                assert_eq!(reader.next(LIMIT).expect("no fault").expect("in time").sequence, turn - 1);
                blocked += self.now() - before;
                self.backend.model_work(looks);
                reader.release();
            }
        }
        [(self.now() - begun) / FRAMES, blocked / FRAMES]
    }

    fn blocking<H: ringmem::memory::Memory>(&mut self, slot: &mut Buffer<u32, H>, compute: u64, looks: u64) -> [u64; 2] {
        let (begun, mut blocked) = (self.now(), 0);
        for turn in 0..FRAMES {
            let before = self.now();
            self.launch(turn, compute).wait().expect("it does not fail");
            slot.as_view_mut().copy_from_view(self.sources[turn as usize % 2].as_view()).expect("as long");
            blocked += self.now() - before;
            self.backend.model_work(looks);
        }
        [(self.now() - begun) / FRAMES, blocked / FRAMES]
    }
}

#[test]
fn a_frame_takes_the_longer_of_compute_and_transfer() {
    for compute in [20_000, 80_000, TRANSFER, 130_000, 500_000] {
        let slower = compute.max(TRANSFER);
        let [takes, _] = Model::new().frames(compute, 0);
        assert!(takes >= slower && takes * 100 <= slower * 110, "{takes} ns for {compute} and {TRANSFER}");
    }
}

#[test]
fn overlap_cuts_the_blocked_time_of_a_busy_reader() {
    let looks = TRANSFER / 2;
    let mut model = Model::new();
    let mut slot = Buffer::<u32, _>::new(Pinned::new(&model.backend, 0), MANY).expect("room");
    let [_, sync] = model.blocking(&mut slot, TRANSFER, looks);
    let [_, overlapped] = model.frames(TRANSFER, looks);
    assert_eq!(sync, 2 * TRANSFER);
    assert!(10 * sync >= 28 * overlapped, "{sync} ns and {overlapped}");
    let [_, idle] = model.frames(TRANSFER, 0);
    assert!(sync <= 2 * idle && 10 * sync >= 18 * idle, "{sync} ns and {idle}");
}

#[test]
fn pinned_overlapped_frames_are_2_8_times_faster() {
    let mut model = Model::new();
    let mut slot = Buffer::<u32, _>::new(Host::new(&model.backend, 0), MANY).expect("room");
    let [sync, _] = model.blocking(&mut slot, TRANSFER, 0);
    assert_eq!(sync, TRANSFER + PAGEABLE);
    let [overlapped, _] = model.frames(TRANSFER, 0);
    assert!(10 * sync >= 28 * overlapped, "{sync} ns and {overlapped}");
}

#[test]
fn overlapped_uploads_take_the_slowest_stage() {
    for (fill, compute) in [(TRANSFER, TRANSFER), (150_000, 60_000), (10_000, 10_000), (30_000, 200_000)] {
        let mut model = Model::new();
        let mut uploads = Uploads::<u32, _>::new(Pinned::new(&model.backend, 0), 2, LIMIT).expect("a stream");
        let begun = model.now();
        for turn in 0..FRAMES {
            let backend = &model.backend;
            let target = &mut model.sources[turn as usize % 2];
            uploads.send(target, .., |_| backend.model_work(fill)).expect("in time");
            drop(model.launch(turn, compute));
        }
        uploads.settle().expect("no fault");
        model.work.synchronize().expect("no fault");
        let (takes, slowest) = ((model.now() - begun) / FRAMES, fill.max(compute).max(TRANSFER));
        assert!(takes >= slowest && takes * 100 <= slowest * 110, "{takes} ns for {fill}, {TRANSFER} and {compute}");
    }
}
