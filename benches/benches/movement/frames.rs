use std::sync::Arc;
use std::time::Duration;

use ringmem::backend::host::{HostBackend, Link};
use ringmem::double_buffer::{Policy, Uploads, pair};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, Memory, Pinned};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Abi, Image, LAYOUTS};
use ringmem_benches::{LINK_MODEL, Workload};

const BYTES: usize = 960_000;
const COMPUTE: u64 = 81_000;
const LOOKS: u64 = COMPUTE / 2;
const FRAMES: u64 = 32;

const LIMIT: Duration = Duration::from_secs(30);
const KERNELS: Image = Image { ptx: b"", host: &[Entry { name: "compute", arguments: 2, run: nothing }], abi: Abi::of(LAYOUTS) };

fn nothing(_: &dyn KernelHost, _: &[u64]) {}

struct Rig {
    backend: Arc<HostBackend>,
    buffers: [GpuBuffer<u8>; 2],
    work: Stream,
    module: Module,
}

impl Rig {
    fn new() -> Self {
        let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| arguments[1]);
        let link = Link { latency_ns: 1000, pinned: 12.0, pageable: 6.0, device: 500.0, host: 10.0, peer: 12.0, kernel_ns };
        let backend = HostBackend::builder().device_memory(8 << 20).link(link).build().expect("a backend");
        let buffers = [0; 2].map(|_| Buffer::new(Device::new(&backend, 0), BYTES).expect("room"));
        let work = Stream::new(&backend, 0).expect("a stream");
        let module = Module::load(&backend, &KERNELS, &Abi::of(LAYOUTS)).expect("our ABI");
        Self { backend, buffers, work, module }
    }

    fn now(&self) -> u64 {
        self.backend.model_now().expect("a model")
    }

    fn launch(&mut self, turn: u64) -> Pending<()> {
        let buffer = &mut self.buffers[turn as usize % 2];
        buffer.ready_on(&self.work).expect("a live stream");
        let address = buffer.device_address().expect("it has bytes").get();
        // SAFETY: the kernel accesses nothing.
        let launched = unsafe { self.work.launch(&self.module, "compute", &[address, COMPUTE]) }.expect("queued");
        buffer.used_by(&self.work).expect("a live stream");
        launched
    }
}

fn overlapped(looks: u64, blocked_only: bool) -> f64 {
    let mut rig = Rig::new();
    let (mut writer, mut reader) =
        pair::<u8, _>(Pinned::new(&rig.backend, 0), 3, Policy::Every { wait: Duration::ZERO }).expect("a stream");
    let (begun, mut blocked) = (rig.now(), 0);
    for turn in 0..FRAMES + 2 {
        if turn < FRAMES {
            drop(rig.launch(turn));
            writer.start(&mut rig.buffers[turn as usize % 2], ..).expect("a slot");
        }
        if turn >= 2 {
            let before = rig.now();
            assert_eq!(reader.next(LIMIT).expect("no fault").expect("in time").sequence, turn - 1);
            blocked += rig.now() - before;
            rig.backend.model_work(looks);
            reader.release();
        }
    }
    (if blocked_only { blocked } else { rig.now() - begun }) as f64 / FRAMES as f64
}

fn one_after_the_other<H: Memory>(memory: impl FnOnce(&Arc<HostBackend>) -> H, looks: u64, blocked_only: bool) -> f64 {
    let mut rig = Rig::new();
    let mut slot = Buffer::<u8, _>::new(memory(&rig.backend), BYTES).expect("room");
    let (begun, mut blocked) = (rig.now(), 0);
    for turn in 0..FRAMES {
        let before = rig.now();
        rig.launch(turn).wait().expect("it does not fail");
        slot.as_view_mut().copy_from_view(rig.buffers[turn as usize % 2].as_view()).expect("as long");
        blocked += rig.now() - before;
        rig.backend.model_work(looks);
    }
    (if blocked_only { blocked } else { rig.now() - begun }) as f64 / FRAMES as f64
}

fn computing_alone() -> f64 {
    let mut rig = Rig::new();
    let begun = rig.now();
    (0..FRAMES).for_each(|turn| drop(rig.launch(turn)));
    rig.work.synchronize().expect("no fault");
    (rig.now() - begun) as f64 / FRAMES as f64
}

fn uploaded() -> f64 {
    let mut rig = Rig::new();
    let mut uploads = Uploads::<u8, _>::new(Pinned::new(&rig.backend, 0), 2, LIMIT).expect("a stream");
    let begun = rig.now();
    for turn in 0..FRAMES {
        let backend = &rig.backend;
        uploads.send(&mut rig.buffers[turn as usize % 2], .., |_| backend.model_work(COMPUTE)).expect("in time");
        drop(rig.launch(turn));
    }
    uploads.settle().expect("no fault");
    rig.work.synchronize().expect("no fault");
    (rig.now() - begun) as f64 / FRAMES as f64
}

pub fn workloads() -> Vec<Workload> {
    let modelled = |name, aim, subjects| Workload { unit: "ns/frame", source: LINK_MODEL, ..Workload::one(name, aim, subjects) };
    vec![
        modelled("frames-overlap", 1.1, vec![("ringmem frames", |_| overlapped(0, false)), ("computing alone", |_| computing_alone())]),
        modelled(
            "frames-blocked",
            1.0 / 2.8,
            vec![
                ("ringmem frames", |_| overlapped(LOOKS, true)),
                ("waited for", |_| one_after_the_other(|b| Pinned::new(b, 0), LOOKS, true)),
            ],
        ),
        modelled(
            "frames-pinned",
            1.0 / 2.8,
            vec![
                ("ringmem frames", |_| overlapped(0, false)),
                ("pageable, waited for", |_| one_after_the_other(|b| Host::new(b, 0), 0, false)),
            ],
        ),
        modelled("uploads-overlap", 1.1, vec![("ringmem Uploads", |_| uploaded()), ("computing alone", |_| computing_alone())]),
    ]
}
