use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;

use ringmem::Error;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Backend, Launch, Ticket};
use ringmem::channel::{Channel, Options};
use ringmem::kernel::{DevicePointer, Epoch};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem_kernels::echo::{ECHO, ECHO_BLOCK, Echo};
use ringmem_kernels::{ABI, IMAGE};

use crate::busy_stream::Held;
use crate::rig::{self, LIMIT, alone};

const MOST: u64 = 64;

fn stay(backend: &Arc<CudaBackend>, words: &PinnedBuffer<u64>, groups: u32, stream: &Stream) -> Result<Ticket, Error> {
    let module = backend.load(&IMAGE, &ABI).expect("our ABI");
    let arguments = [words.device_address().expect("it has one").get()];
    let launch = Launch { module, name: "hold", arguments: &arguments, groups, warps: 1, stays: true, operands: &[], elements: None };
    // SAFETY: two atomic words that outlive the kernel.
    unsafe { backend.launch(&launch, stream.id()) }
}

fn words(backend: &Arc<CudaBackend>) -> PinnedBuffer<u64> {
    PinnedBuffer::new(Pinned::new(backend, 0), 2).expect("room")
}

fn word(words: &PinnedBuffer<u64>, index: usize) -> &AtomicU64 {
    // SAFETY: one of two aligned, atomic words.
    unsafe { words.as_ptr().expect("two words").add(index).cast().as_ref() }
}

fn refused<T>(outcome: Result<T, Error>) -> [u64; 4] {
    match outcome {
        Err(Error::Residency { asked, free, most, resident }) => [asked, free, most, resident],
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was launched"),
    }
}

alone! {
    fn a_launch_beyond_the_free_residency_is_an_error() {
        let backend = rig::open();
        let streams: [Stream; 3] = std::array::from_fn(|_| Stream::new(&backend, 0).expect("a stream"));
        let held = words(&backend);
        let first = stay(&backend, &held, 40, &streams[0]).expect("it fits");
        assert_eq!(refused(stay(&backend, &held, 25, &streams[1])), [25, 24, MOST, 40]);
        let second = stay(&backend, &held, 24, &streams[1]).expect("it just fits");
        // Exiting kernels are rejected too: their groups would wait for these.
        assert_eq!(refused(stay(&backend, &held, 1, &streams[2])), [1, 0, MOST, 64]);
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        // SAFETY: no byte is touched.
        assert_eq!(refused(unsafe { streams[2].launch(&module, "increment", &[0, 0]) }), [1, 0, MOST, 64]);
        // SAFETY: `echo` takes no own arguments.
        assert_eq!(refused(unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("echo")) }), [1, 0, MOST, 64]);
        assert_eq!(refused(stay(&backend, &held, 41, &streams[0])), [41, 40, MOST, 24]);
        let behind = stay(&backend, &held, 40, &streams[0]).expect("it comes after the first");
        assert_eq!(refused(stay(&backend, &held, 1, &streams[2])), [1, 0, MOST, 64]);
        word(&held, 1).store(1, Release);
        for ticket in [first, second, behind] {
            assert!(backend.wait(ticket, Some(LIMIT)).expect("done"));
        }
        let whole = stay(&backend, &held, 64, &streams[2]).expect("all have left");
        assert!(backend.wait(whole, Some(LIMIT)).expect("done"));
        assert!(matches!(stay(&backend, &held, 65, &streams[2]), Err(Error::Size { asked: 65, least: 1, most: MOST, .. })));
    }

    fn growing_local_memory_under_a_resident_kernel_is_busy() with("RINGMEM_DOUBLE_LOCAL" = "increment=256,hold=64", "RINGMEM_DOUBLE_DEADLINE_MS" = "2000") {
        let backend = rig::open();
        let streams: [Stream; 2] = std::array::from_fn(|_| Stream::new(&backend, 0).expect("a stream"));
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        // SAFETY: no byte is touched.
        let increment = || unsafe { streams[1].launch(&module, "increment", &[0, 0]) };
        let held = words(&backend);
        let end = |ticket| {
            word(&held, 1).store(1, Release);
            assert!(backend.wait(ticket, Some(LIMIT)).expect("done"));
            word(&held, 1).store(0, Release);
        };
        let resident = stay(&backend, &held, 1, &streams[0]).expect("it fits");
        let refused = increment().expect_err("the driver would wait for the resident kernel");
        assert!(matches!(refused, Error::Busy { what } if what.contains("local memory")), "{refused}");
        end(resident);
        increment().expect("no kernel is resident").wait().expect("done");
        let resident = stay(&backend, &held, 1, &streams[0]).expect("it fits");
        increment().expect("the memory is there").wait().expect("done");
        end(resident);
    }

    fn a_block_of_several_warps_takes_their_part_of_a_multiprocessor() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = words(&backend);
        let mut channel = Channel::builder(ECHO_BLOCK).warps(8).open(&backend, 0).expect("it fits");
        assert_eq!(refused(stay(&backend, &held, 57, &stream)), [57, 56, MOST, 1], "half of one of four");
        for id in 0..300 {
            channel.send(Echo { words: [id; 8] }).expect("room");
        }
        (0..300).for_each(|id| assert_eq!(channel.recv().expect("an answer").words, [id; 8]));
        channel.restart().expect_err("it runs");
        channel.drain().expect("it ends");
        channel.restart().expect("as many warps again");
        assert_eq!(refused(stay(&backend, &held, 57, &stream)), [57, 56, MOST, 1]);
        channel.close().expect("it ends as told");

        let many = [1, 16].map(|warps| Channel::builder(ECHO_BLOCK).warps(warps).open(&backend, 0).expect("it fits"));
        assert_eq!(refused(Channel::builder(ECHO_BLOCK).warps(16).open(&backend, 0).and_then(|first| {
            let rest: Vec<_> = [16, 16].map(|warps| Channel::builder(ECHO_BLOCK).warps(warps).open(&backend, 0)).into_iter().collect::<Result<_, _>>()?;
            drop(first);
            Ok(rest)
        })), [1, 0, 4, 4], "each takes a multiprocessor, and the first has a warp on it");
        drop(many);
        for warps in [17, 32] {
            let error = Channel::builder(ECHO_BLOCK).warps(warps).open(&backend, 0).expect_err("as its registers allow");
            assert!(matches!(error, Error::Size { what, asked, least: 1, most: 16 } if what.contains("of this kernel") && asked == u64::from(warps)), "{error}");
        }
        let error = Channel::builder(ECHO_BLOCK).warps(33).open(&backend, 0).expect_err("as any block");
        assert!(matches!(error, Error::Size { asked: 33, least: 1, most: 32, .. }), "{error}");
    }

    fn lanes_of_all_warps_answer_by_ptx() with("RINGMEM_DOUBLE_KERNELS" = "ptx") {
        let backend = rig::open();
        for warps in [1, 2, 5] {
            let mut channel = Channel::builder(ECHO_BLOCK).warps(warps).batch(160).open(&backend, 0).expect("it fits");
            for id in 0..200 {
                channel.send(Echo { words: [id; 8] }).expect("room");
            }
            (0..200).for_each(|id| assert_eq!(channel.recv().expect("an answer").words, [id; 8]));
            assert_eq!(channel.close().expect("it ends").control.processed, 200);
        }
    }

    fn channel_and_epoch_kernels_count_as_resident() {
        let backend = rig::open();
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let [stream, other]: [Stream; 2] = std::array::from_fn(|_| Stream::new(&backend, 0).expect("a stream"));
        let unused = words(&backend);
        // SAFETY: `echo` takes no own arguments.
        let channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("echo")) }.expect("a channel");
        assert_eq!(refused(stay(&backend, &unused, 64, &other)), [64, 63, MOST, 1]);
        channel.close().expect("it ends as told");
        let held = Held::on(&stream);
        // Without a control block it exits, but waits for the non-resident kernel before it. SAFETY: it accesses nothing.
        let queued = unsafe { stream.start(&module, &ECHO.kernel(), (DevicePointer::new(0), Epoch::new(1), 0, 1), 5) }.expect("a launch");
        assert_eq!(refused(stay(&backend, &unused, 64, &other)), [64, 59, MOST, 5]);
        drop(held);
        queued.wait().expect("done");
    }
}
