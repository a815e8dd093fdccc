use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Backend, MemoryLocation};
use ringmem::bridge::{Placement, TransferStrategy};
use ringmem::channel::{Channel, Options, ReceiveError};
use ringmem::control::{Command, State};
use ringmem::image::Entry;
use ringmem::memory::{Buffer, Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Image};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::{self, LIMIT, alone};

const FEWER: &[Entry] = IMAGE.host.split_at(1).0;

fn open(backend: &Arc<CudaBackend>, options: &Options<'_>) -> Channel<Echo, Echo> {
    let module = Module::load(backend, &IMAGE, &ABI).expect("our ABI");
    // SAFETY: `echo` takes no own arguments.
    unsafe { Channel::open_raw(backend, 0, &module, options) }.expect("a channel")
}

fn message(id: u64) -> Echo {
    Echo { words: [id, !id, id << 7, 3, 4, 5, 6, id.wrapping_mul(id)] }
}

fn exchange(channel: &mut Channel<Echo, Echo>, first: u64, count: u64) {
    let (mut sent, mut received, begun) = (first, first, Instant::now());
    while received < first + count {
        while sent < first + count && channel.try_send(message(sent)).is_ok() {
            sent += 1;
        }
        match channel.try_recv() {
            Ok(answer) => {
                assert_eq!(answer, message(received));
                received += 1;
            }
            Err(ReceiveError::Empty) => {
                channel.check().expect("it runs");
                assert!(begun.elapsed() < LIMIT, "{received} of {count} came back");
                thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn split(slots: MemoryLocation, header: MemoryLocation) -> Placement {
    Placement { slots, peer_header: Some(header) }
}

alone! {
    fn every_strategy_delivers_messages_once_in_order() {
        let backend = rig::open();
        let strategies =
            [TransferStrategy::Unified, TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }];
        let ways = strategies.map(|strategy| (strategy, "echo")).into_iter().chain([(TransferStrategy::Flagged, "echo_flagged")]);
        for (strategy, kernel) in ways {
            let options =
                Options { strategy: Some(strategy), input_capacity: 16, output_capacity: 8, start: u64::MAX - 20, ..Options::new(kernel) };
            let mut channel = open(&backend, &options);
            exchange(&mut channel, 0, 500);
            let closed = channel.close().expect("it ends as told");
            assert_eq!((closed.control.processed, closed.control.kernel_state()), (500, Some(State::Terminated)), "{strategy:?}");
        }
    }

    fn the_default_strategy_shares_the_rings() {
        let backend = rig::open();
        let mut channel = open(&backend, &Options::new("echo"));
        let before = backend.counters();
        exchange(&mut channel, 0, 100);
        let after = backend.counters();
        assert_eq!((after.uploads, after.downloads, after.publications), (before.uploads, before.downloads, before.publications), "one ring");
        channel.close().expect("it ends as told");
    }

    fn under_explicit_dma_every_message_is_copied() with("RINGMEM_VISIBILITY" = "dma") {
        let backend = rig::open();
        let mut channel = open(&backend, &Options::new("echo"));
        exchange(&mut channel, 0, 300);
        let counters = backend.counters();
        assert!(counters.uploads.count > 0 && counters.downloads.count > 0 && counters.publications > 0, "{counters:?}");
        channel.close().expect("it ends as told");
    }

    fn split_rings_work_with_copies() {
        let backend = rig::open();
        for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
            let placement = [split(MemoryLocation::Device, MemoryLocation::Pinned), split(MemoryLocation::Pinned, MemoryLocation::Device)];
            let options = Options { strategy: Some(strategy), placement: Some(placement), ..Options::new("echo") };
            let mut channel = open(&backend, &options);
            exchange(&mut channel, 0, 200);
            channel.close().expect("it ends as told");
        }
    }

    fn memory_operations_do_not_wait_for_a_running_kernel() {
        for stream_ordered in [true, false] {
            let settings = ringmem::backend::cuda::Settings { stream_ordered, ..Default::default() };
            let backend = CudaBackend::with(settings).expect("a driver");
            let mut channel = open(&backend, &Options::new("echo"));
            exchange(&mut channel, 0, 10);
            let before = backend.waiting();
            // The double aborts if a call waits for the kernel.
            let stream = Stream::new(&backend, 0).expect("a stream");
            for round in 0..10_u8 {
                let mut gpu = GpuBuffer::<u8>::new(Device::new(&backend, 0), 5000).expect("room");
                gpu.fill(round).expect("a fill");
                let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 5000).expect("room");
                let (gpu, pinned) = stream.copy(gpu, pinned).expect("as many").wait().expect("done");
                assert_eq!(pinned.as_slice().expect("nothing is queued"), [round; 5000]);
                drop((gpu, pinned));
                let other = Stream::new(&backend, 0).expect("a stream");
                drop(Module::load(&backend, &IMAGE, &ABI).expect("it is loaded already"));
                drop(other);
            }
            // A synchronising call frees pinned buffers, and without a pool all others.
            let expected = if stream_ordered { 10 } else { 20 };
            assert_eq!(backend.waiting() - before, expected);
            channel.close().expect("it ends as told");
            backend.free_deferred();
            rig::eventually("all is freed, perhaps by another thread", || backend.waiting() == 0);
        }
    }

    fn loading_an_image_is_busy_while_a_kernel_runs() {
        let backend = rig::open();
        let channel = open(&backend, &Options::new("echo"));
        let other = Image { host: FEWER, ..IMAGE };
        let error = Module::load(&backend, &other, &ABI).expect_err("a kernel runs");
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        channel.close().expect("it ends as told");
        Module::load(&backend, &other, &ABI).expect("nothing runs");
    }

    fn loading_an_image_is_busy_even_with_eager_loading() with("CUDA_MODULE_LOADING" = "EAGER") {
        let backend = rig::open();
        let channel = open(&backend, &Options::new("echo"));
        let other = Image { host: FEWER, ..IMAGE };
        assert!(matches!(Module::load(&backend, &other, &ABI), Err(Error::Busy { .. })));
        channel.close().expect("it ends as told");
    }

    fn dropping_a_channel_ends_its_kernel_and_frees_its_memory() {
        let backend = rig::open();
        let mut channel = open(&backend, &Options::new("echo"));
        channel.command(Command::PAUSE).expect("it is acted on");
        drop(channel);
        let left = || (backend.counters().pinned_live.bytes, backend.waiting());
        assert!(rig::soon(|| left() == (0, 0)), "{:?}", left());
    }

    fn a_launch_beyond_the_resident_groups_is_an_error() {
        let backend = rig::open();
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let stream = Stream::new(&backend, 0).expect("a stream");
        let launch = |groups| ringmem::backend::Launch { module: backend.load(&IMAGE, &ABI).expect("loaded"), name: "increment", arguments: &[0, 0], groups, warps: 1, stays: false, operands: &[], elements: None };
        for groups in [0, 65] {
            // SAFETY: it is not launched.
            let error = unsafe { backend.launch(&launch(groups), stream.id()) }.expect_err("not so many");
            assert!(matches!(error, Error::Size { asked, least: 1, most: 64, .. } if asked == u64::from(groups)), "{error}");
        }
        let mut buffer = Buffer::<u8, _>::from_slice(Device::new(&backend, 0), &[0; 100]).expect("room");
        let arguments = [buffer.device_address().expect("it has one").get(), 0];
        // SAFETY: accesses no bytes.
        let ticket = unsafe { backend.launch(&ringmem::backend::Launch { arguments: &arguments, ..launch(64) }, stream.id()) }.expect("as many as fit");
        assert!(backend.wait(ticket, Some(LIMIT)).expect("done"));
        buffer.zero().expect("a fill");
        drop(module);
    }

    fn an_image_with_ptx_of_another_abi_is_an_error() {
        let backend = rig::open();
        let mine = Abi::of(ringmem::LAYOUTS);
        let error = Module::load(&backend, &Image { abi: mine, ..IMAGE }, &mine).expect_err("the text says otherwise");
        assert!(matches!(error, Error::Abi { expected, got } if expected == mine && got.hash == ABI.hash), "{error}");
    }
}
