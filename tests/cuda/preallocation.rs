//! Allocating may wait for a kernel, so the backend allocates before a launch.

use std::thread;

use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Address, Backend, Copy, Fill};
use ringmem::bridge::TransferStrategy;
use ringmem::channel::{Channel, Options};
use ringmem::memory::{Buffer, Device, Host};
use ringmem::stream::{Module, Stream};
use ringmem_driver_double::ALLOCATORS;
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::{self, Double, alone};

const THREADS: u64 = 8;
const LEN: usize = (2 << 20) + 7;

fn allocations(double: &Double) -> Vec<(&'static str, u64)> {
    ALLOCATORS.map(|symbol| (symbol, double.calls(symbol))).into()
}

fn transfers_under_a_kernel() {
    let (backend, double) = (rig::open(), Double::new());
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
    let (one, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let options = Options { strategy: Some(TransferStrategy::Async), ..Options::new("echo") };
    // SAFETY: `echo` takes no own arguments.
    let mut channel: Channel<Echo, Echo> = unsafe { Channel::open_raw(&backend, 0, &module, &options) }.expect("a channel");
    let before = allocations(&double);
    for round in 0..3 {
        while channel.try_send(Echo { words: [round; 8] }).is_err() {}
        while channel.try_recv().is_err() {}
        there_and_back(&backend, &one, &other, round as u8);
        words(&backend, &one);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let backend = &backend;
                scope.spawn(move || at_once(backend, thread));
            }
        });
    }
    assert_eq!(allocations(&double), before);
    channel.close().expect("it ends as told");
}

fn there_and_back(backend: &std::sync::Arc<CudaBackend>, one: &Stream, other: &Stream, value: u8) {
    let under_way: Vec<_> = (0..4_u8)
        .map(|index| {
            let source = Buffer::<u8, _>::from_slice(Host::new(backend, 0), &vec![value + index; LEN]).expect("room");
            let (gpu, back) = (Buffer::<u8, _>::new(Device::new(backend, 0), LEN), Buffer::<u8, _>::new(Host::new(backend, 0), LEN));
            let (source, gpu) = one.copy(source, gpu.expect("room")).expect("as many").detach();
            (source, other.copy(gpu, back.expect("room")).expect("as many"))
        })
        .collect();
    for (index, (source, pending)) in (0..4_u8).zip(under_way) {
        let (gpu, back) = pending.wait().expect("done");
        assert!(back.as_slice().expect("nothing is queued").iter().all(|&byte| byte == value + index), "copy {index}");
        drop((source, gpu));
    }
}

fn words(backend: &std::sync::Arc<CudaBackend>, stream: &Stream) {
    let buffer = Buffer::<u64, _>::new(Device::new(backend, 0), 100).expect("room");
    let address = buffer.device_address().expect("it has one");
    for round in 1..50_u64 {
        let since = backend.record_position(stream.id()).expect("a ticket");
        // SAFETY: the buffer's words, waited for below.
        unsafe {
            backend.fill(&Fill::of(Address::Device(address), round << 33 | round, 100), stream.id()).expect("queued");
            backend.publish(Address::Device(address), round, since, stream.id()).expect("queued");
        }
    }
    stream.synchronize().expect("done");
    assert_eq!(buffer.to_vec().expect("a copy")[..2], [49, 49 << 33 | 49]);
}

fn at_once(backend: &std::sync::Arc<CudaBackend>, thread: u64) {
    let mut buffer = Buffer::<u64, _>::new(Device::new(backend, 0), 1000).expect("room");
    for round in 0..20 {
        buffer.fill(thread << 40 | round).expect("a fill");
        let mut words = [0_u64; 2];
        let to = Address::Host(std::ptr::NonNull::from(&mut words).cast());
        // SAFETY: live bytes on both sides.
        unsafe { backend.copy_now(&Copy { to, from: Address::Device(buffer.device_address().expect("it has one")), bytes: 16 }) }
            .expect("a copy");
        assert_eq!(words, [thread << 40 | round; 2]);
    }
}

alone! {
    fn the_backend_allocates_nothing_internal_under_a_kernel() {
        transfers_under_a_kernel();
    }

    fn forty_streams_allocate_nothing_internal_under_a_kernel() {
        let (backend, double) = (rig::open(), Double::new());
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let streams = [(); 40].map(|()| Stream::new(&backend, 0).expect("a stream"));
        // SAFETY: `echo` takes no own arguments.
        let channel: Channel<Echo, Echo> = unsafe { Channel::open_raw(&backend, 0, &module, &Options::new("echo")) }.expect("a channel");
        let mut ends = (Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), Buffer::<u8, _>::new(Host::new(&backend, 0), 100).expect("room"));
        let before = allocations(&double);
        for stream in &streams {
            let (from, to) = stream.copy(ends.0, ends.1).expect("as many").wait().expect("done");
            ends = (from, to);
        }
        assert_eq!(allocations(&double), before);
        channel.close().expect("it ends as told");
    }

    fn nothing_internal_is_allocated_without_stream_words() with("RINGMEM_DOUBLE_ATTRIBUTES" = "122=0") {
        transfers_under_a_kernel();
    }
}

const LAZY: &str = "cuMemsetD8Async:1,cuMemsetD32Async:1,cuMemcpyDtoDAsync_v2:1,cuMemcpyHtoDAsync_v2:1,cuMemcpyDtoHAsync_v2:1,\
                    cuStreamWriteValue64_v2:1,cuLaunchHostFunc:1,cuMemAllocFromPoolAsync:1,cuMemFreeAsync:1";

fn first_uses_under_a_kernel() {
    let (backend, double) = (rig::open(), Double::new());
    let (first, one, other) = (
        Stream::new(&backend, 0).expect("a stream"),
        Stream::new(&backend, 0).expect("a stream"),
        Stream::new(&backend, 0).expect("a stream"),
    );
    let held = crate::busy_stream::Held::on(&first);
    let lazy = || LAZY.split(',').filter_map(|lazy| lazy.split_once(':')).map(|(symbol, _)| double.calls(symbol));
    let before: Vec<u64> = lazy().collect();
    there_and_back(&backend, &one, &other, 1);
    words(&backend, &one);
    at_once(&backend, 1);
    for pattern in [0x0101_0101, 0x0102_0304_u32] {
        let mut words = Buffer::<u32, _>::new(Device::new(&backend, 0), 100).expect("room");
        words.fill(pattern).expect("a fill");
        assert_eq!(words.to_vec().expect("a copy"), [pattern; 100]);
    }
    for ((symbol, before), after) in LAZY.split(',').zip(before).zip(lazy()) {
        assert!(before > 0 && after > before, "{symbol}: {before} calls before the kernel, {after} in all");
    }
    drop(held);
}

#[test]
fn no_lazily_loaded_function_is_first_used_under_a_kernel() {
    let alone = rig::Alone::new(concat!(module_path!(), "::no_lazily_loaded_function_is_first_used_under_a_kernel"))
        .with("RINGMEM_DOUBLE_WAITS", LAZY)
        .with("RINGMEM_DOUBLE_DEADLINE_MS", 3000);
    rig::clean(&alone, first_uses_under_a_kernel);
}
