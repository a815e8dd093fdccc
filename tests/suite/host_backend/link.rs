use ringmem::backend::host::Link;
use ringmem::backend::{Fill, Launch, Ticket};
use ringmem::config::ConfigError;
use ringmem::memory::{Device, GpuBuffer, Host};

use super::*;

fn link() -> Link {
    let kernel_ns = Arc::new(|name: &str, arguments: &[u64]| if name == "increment" { arguments[1] } else { 7 });
    Link { latency_ns: 1000, pinned: 10.0, pageable: 5.0, device: 100.0, host: 20.0, peer: 10.0, kernel_ns }
}

struct Setup {
    backend: Clean,
}

fn setup(builder: Builder) -> Setup {
    let backend = build(builder.link(link()));
    Setup { backend }
}

impl Setup {
    fn now(&self) -> u64 {
        self.backend.model_now().expect("a model")
    }

    fn takes(&self, run: impl FnOnce()) -> u64 {
        let before = self.now();
        run();
        self.now() - before
    }

    fn block(&self, location: MemoryLocation, device: u32, bytes: usize) -> Given {
        give(&self.backend, location, device, bytes).expect("room")
    }

    fn upload(&self, from: &Block, to: &Block, bytes: u64, on: &Stream) -> Ticket {
        // SAFETY: the tests wait before accessing the blocks.
        unsafe { self.backend.copy(&Copy { to: start(to), from: start(from), bytes }, on.id()) }.expect("it is queued")
    }

    fn kernel(&self, block: &Block, ns: u64, on: &Stream) -> Ticket {
        let arguments = &[block.device_address.expect("a device sees it").get(), ns];
        let module = self.backend.load(&IMAGE, &Abi::of(LAYOUTS)).expect("our ABI");
        let launch = Launch { module, name: "increment", arguments, groups: 1, warps: 1, stays: false, operands: &[], elements: None };
        // SAFETY: the tests wait before accessing the block, which has more bytes than the kernel accesses.
        unsafe { self.backend.launch(&launch, on.id()) }.expect("it is queued")
    }

    fn wait(&self, ticket: Ticket) {
        assert!(self.backend.wait(ticket, Some(LIMIT)).expect("it succeeds"));
    }

    fn stream(&self, device: u32) -> Stream {
        Stream::new(&self.backend, device).expect("a stream")
    }
}

#[test]
fn a_blocking_copy_takes_its_latency_and_transfer_time() {
    let setup = setup(HostBackend::builder());
    let [device, other] = [0; 2].map(|_| setup.block(MemoryLocation::Device, 0, 10_000));
    let [pinned, more] = [0; 2].map(|_| setup.block(MemoryLocation::Pinned, 0, 10_000));
    let pageable = setup.block(MemoryLocation::Host, 0, 10_000);
    for (from, to, ns) in [
        (&pinned, &device, 2000),
        (&device, &pinned, 2000),
        (&pageable, &device, 3000),
        (&device, &pageable, 3000),
        (&device, &other, 100),
        (&pinned, &more, 500),
    ] {
        assert_eq!(setup.takes(|| copy(&setup.backend, from, to, 10_000).expect("a copy")), ns, "{:?} to {:?}", from.location, to.location);
    }
    // SAFETY: within the block, otherwise unused.
    let fill = || unsafe { setup.backend.fill_now(&Fill { to: start(&device), pattern: 0, size: 1, count: 10_000 }) }.expect("a fill");
    assert_eq!(setup.takes(fill), 100);
    assert_eq!(setup.takes(|| setup.backend.model_work(55)), 55);
    assert_eq!(build(HostBackend::builder()).model_now(), None);
}

#[test]
fn queued_copies_take_no_host_time_until_the_wait() {
    let setup = setup(HostBackend::builder());
    let (stream, device, pinned) =
        (setup.stream(0), setup.block(MemoryLocation::Device, 0, 10_000), setup.block(MemoryLocation::Pinned, 0, 10_000));
    let (mut first, mut last) = (None, None);
    let queued = setup.takes(|| {
        for _ in 0..5 {
            last = Some(setup.upload(&pinned, &device, 10_000, &stream));
            first = first.or(last);
        }
    });
    let (first, last) = (first.expect("five"), last.expect("five"));
    assert_eq!((queued, setup.backend.model_end(first), setup.backend.model_end(last)), (0, Some(2000), Some(10_000)));
    setup.wait(first);
    assert_eq!(setup.now(), 2000);
    setup.wait(first);
    synchronize(&stream);
    assert_eq!(setup.now(), 10_000);
    setup.backend.model_work(500);
    let ticket = setup.upload(&pinned, &device, 10_000, &stream);
    assert_eq!(setup.backend.model_end(ticket), Some(12_500));
    setup.wait(ticket);
}

#[test]
fn each_direction_has_one_engine_and_both_overlap() {
    let setup = setup(HostBackend::builder());
    let streams = [0; 3].map(|_| setup.stream(0));
    let devices = [0; 3].map(|_| setup.block(MemoryLocation::Device, 0, 10_000));
    let pinned = [0; 3].map(|_| setup.block(MemoryLocation::Pinned, 0, 10_000));
    let ends = [
        setup.upload(&pinned[0], &devices[0], 10_000, &streams[0]),
        setup.upload(&pinned[1], &devices[1], 10_000, &streams[1]),
        setup.upload(&devices[2], &pinned[2], 10_000, &streams[2]),
    ]
    .map(|ticket| {
        setup.wait(ticket);
        setup.backend.model_end(ticket).expect("a model")
    });
    assert_eq!(ends, [2000, 4000, 2000], "two uploads one after the other, and a download beside them");
}

#[test]
fn a_stream_wait_orders_virtual_time() {
    for slow in [false, true] {
        let setup = setup(HostBackend::builder());
        let (first, second) = (setup.stream(0), setup.stream(0));
        let device = GpuBuffer::<u8>::new(Device::new(&setup.backend, 0), 10_000).expect("room");
        let source = PinnedBuffer::<u8>::new(Pinned::new(&setup.backend, 0), 10_000).expect("room");
        let (_source, device) = first.copy(source, device).expect("it is queued").detach();
        if slow {
            eventually("the upload is executed", || setup.backend.counters().uploads.count == 1);
        }
        let target = PinnedBuffer::<u8>::new(Pinned::new(&setup.backend, 0), 10_000).expect("room");
        done(second.copy(device, target).expect("it is queued"));
        assert_eq!(setup.now(), 4000, "executed before: {slow}");
    }
}

#[test]
fn virtual_times_are_reproducible() {
    let run = || {
        let setup = setup(HostBackend::builder());
        let streams = [0; 3].map(|_| setup.stream(0));
        let buffers = [0; 3].map(|_| (setup.block(MemoryLocation::Pinned, 0, 4096), setup.block(MemoryLocation::Device, 0, 4096)));
        for i in 0..60 {
            let (stream, (pinned, device)) = (&streams[i % 3], &buffers[i % 3]);
            setup.upload(pinned, device, 4096, stream);
            setup.kernel(device, (i as u64 * 97) % 4096, stream);
            setup.upload(device, pinned, 4096, stream);
        }
        streams.iter().for_each(synchronize);
        setup.now()
    };
    let first = run();
    assert!(first > 60 * 1409, "{first}");
    assert!((0..5).all(|_| run() == first));
}

#[test]
fn one_large_transfer_is_six_times_faster_than_a_thousand() {
    let setup = setup(HostBackend::builder());
    let (pinned, device) = (setup.block(MemoryLocation::Pinned, 0, 1_000_000), setup.block(MemoryLocation::Device, 0, 1_000_000));
    let single = setup.takes(|| (0..1000).for_each(|_| copy(&setup.backend, &pinned, &device, 1000).expect("a copy")));
    let batched = setup.takes(|| copy(&setup.backend, &pinned, &device, 1_000_000).expect("a copy"));
    assert_eq!((single, batched), (1_100_000, 101_000));
    assert!(single >= 6 * batched);
}

#[test]
fn data_kept_on_the_device_saves_transfers() {
    const BYTES: u64 = 140_000;
    let setup = setup(HostBackend::builder());
    let (stream, pinned) = (setup.stream(0), setup.block(MemoryLocation::Pinned, 0, BYTES as usize));
    let device = setup.block(MemoryLocation::Device, 0, BYTES as usize);
    let kernel = || setup.kernel(&device, 15_000, &stream);
    let apart = setup.takes(|| {
        for _ in 0..2 {
            setup.upload(&pinned, &device, BYTES, &stream);
            kernel();
            setup.wait(setup.upload(&device, &pinned, BYTES, &stream));
        }
    });
    let kept = setup.takes(|| {
        kernel();
        setup.wait(kernel());
    });
    assert_eq!((apart, kept), (90_000, 30_000));
    assert!(apart >= 3 * kept);
}

#[test]
fn zero_copy_saves_transfers_on_shared_memory() {
    const BYTES: u64 = 20_000;
    let setup = setup(HostBackend::builder().shared_memory(true));
    let (stream, pinned) = (setup.stream(0), setup.block(MemoryLocation::Pinned, 0, BYTES as usize));
    let device = setup.block(MemoryLocation::Device, 0, BYTES as usize);
    let copied = setup.takes(|| {
        setup.upload(&pinned, &device, BYTES, &stream);
        setup.kernel(&device, 2000, &stream);
        setup.wait(setup.upload(&device, &pinned, BYTES, &stream));
    });
    let before = setup.backend.counters();
    let shared = setup.block(MemoryLocation::Unified, 0, BYTES as usize);
    let zero = setup.takes(|| setup.wait(setup.kernel(&shared, 2000, &stream)));
    let after = setup.backend.counters();
    assert_eq!((after.uploads, after.downloads, after.host_copies), (before.uploads, before.downloads, before.host_copies));
    assert_eq!((copied, zero), (8000, 2000));
    assert!(copied as f64 >= 3.2 * zero as f64);
}

#[test]
fn a_peer_copy_takes_one_transfer_and_a_staged_copy_two() {
    let setup = setup(HostBackend::builder().devices(2).peer(1, 0));
    let blocks = [0, 1].map(|device| setup.block(MemoryLocation::Device, device, 10_000));
    let staged = setup.takes(|| copy(&setup.backend, &blocks[0], &blocks[1], 10_000).expect("a copy"));
    setup.backend.set_peer(1, 0, true).expect("it can");
    let direct = setup.takes(|| copy(&setup.backend, &blocks[0], &blocks[1], 10_000).expect("a copy"));
    assert_eq!((staged, direct), (4000, 2000));
}

#[test]
fn pageable_transfers_take_longer_than_pinned_ones() {
    let setup = setup(HostBackend::builder());
    let device = GpuBuffer::<u8>::new(Device::new(&setup.backend, 0), 1 << 20).expect("room");
    let stream = setup.stream(0);
    let mut device = Some(device);
    let mut upload = |from| {
        let target = device.take().expect("it came back");
        device = Some(match from {
            MemoryLocation::Host => {
                let source = ringmem::memory::Buffer::<u8, _>::new(Host::new(&setup.backend, 0), 1 << 20).expect("room");
                done(stream.copy(source, target).expect("it is queued")).1
            }
            _ => {
                let source = PinnedBuffer::<u8>::new(Pinned::new(&setup.backend, 0), 1 << 20).expect("room");
                done(stream.copy(source, target).expect("it is queued")).1
            }
        });
    };
    let (pageable, pinned) = (setup.takes(|| upload(MemoryLocation::Host)), setup.takes(|| upload(MemoryLocation::Pinned)));
    assert!(pageable as f64 / pinned as f64 > 1.9, "{pageable} ns and {pinned} ns");
}

#[test]
fn a_rejected_copy_takes_no_time() {
    let setup = setup(HostBackend::builder());
    let (pinned, device) = (setup.block(MemoryLocation::Pinned, 0, 64), setup.block(MemoryLocation::Device, 0, 64));
    let stream = setup.stream(0);
    let refused = setup.takes(|| {
        copy(&setup.backend, &pinned, &device, 65).expect_err("too much");
        // SAFETY: rejected.
        unsafe { setup.backend.copy(&Copy { to: start(&device), from: start(&pinned), bytes: 65 }, stream.id()) }.expect_err("too much");
        synchronize(&stream);
    });
    assert_eq!(refused, 0);
}

#[test]
fn a_non_positive_rate_is_an_error_with_name_and_value() {
    for (link, expected) in [
        (Link { pinned: 0.0, ..link() }, "invalid link.pinned: got 0 GB/s, expected more than 0"),
        (Link { pageable: -1.5, ..link() }, "invalid link.pageable: got -1.5 GB/s, expected more than 0"),
        (Link { peer: f64::NAN, ..link() }, "invalid link.peer: got NaN GB/s, expected more than 0"),
    ] {
        let error = HostBackend::builder().link(link).build().expect_err(expected);
        assert!(matches!(error, Error::Config(ConfigError::Rate { .. })), "{error:?}");
        assert_eq!(error.to_string(), expected);
    }
}
