//! Collective operations, on doubles of NCCL and the driver.

use std::error::Error as _;
use std::ffi::{CString, c_char};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{fs, thread};

use libloading::Library;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::cuda::nccl::{Bf16, Collective, Communicator, Element, F16, Reduce, UniqueId, group};
use ringmem::memory::{Buffer, Device, DeviceOnly, GpuBuffer, Memory, Pinned};
use ringmem::registry::Registry;
use ringmem::stream::{Module, Operand, Pending, Stream};
use ringmem::{DeviceBytes, Error};
use ringmem_kernels::{ABI, IMAGE};

use crate::held::Held;
use crate::rig::{self, Alone, Double, LIMIT, Step, alone};

fn linked() -> std::path::PathBuf {
    let exports = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nccl-double/exports.map");
    ringmem_driver_double::link("ringmem_nccl_double", "libnccl.so.2", Path::new(exports)).expect("the double of NCCL is built")
}

fn folders() -> String {
    let folder = linked().with_file_name("nccl");
    fs::create_dir_all(&folder).expect("a folder");
    // Another test may link it.
    let _ = std::os::unix::fs::symlink(linked(), folder.join("libnccl.so.2"));
    format!("{}:{}", ringmem_driver_double::libraries().expect("the double is built").display(), folder.display())
}

struct Nccl(Library);

impl Nccl {
    fn new() -> Self {
        // SAFETY: its initialisers do nothing.
        Self(unsafe { Library::new("libnccl.so.2") }.expect("the double"))
    }

    fn calls(&self, symbol: &str) -> u64 {
        let symbol = CString::new(symbol).expect("a name");
        // SAFETY: the function's signature, and a C string.
        unsafe { self.0.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"ringmem_nccl_calls\0").expect("it has it")(symbol.as_ptr()) }
    }

    fn fail(&self, symbol: &str, code: u32) {
        let symbol = CString::new(symbol).expect("a name");
        // SAFETY: as above.
        unsafe {
            self.0.get::<unsafe extern "C" fn()>(b"ringmem_nccl_reset\0").expect("it has it")();
            self.0.get::<unsafe extern "C" fn(*const c_char, u64, u32)>(b"ringmem_nccl_fail\0").expect("it has it")(
                symbol.as_ptr(),
                1,
                code,
            );
        }
    }

    fn lose(&self, code: u32) {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn(u32)>(b"ringmem_nccl_lose\0").expect("it has it")(code) }
    }

    fn live(&self) -> u64 {
        // SAFETY: as above.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(b"ringmem_nccl_live\0").expect("it has it")() }
    }
}

struct Ranks {
    backend: Arc<CudaBackend>,
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
}

impl Ranks {
    fn new(count: u32) -> Self {
        let backend = rig::open();
        let devices: Vec<u32> = (0..count).collect();
        let ranks = Communicator::all(&backend, &devices).expect("ranks");
        let streams = devices.iter().map(|&device| Stream::new(&backend, device).expect("a stream")).collect();
        Self { backend, ranks, streams }
    }

    fn buffer<T: DeviceBytes>(&self, rank: usize, elements: &[T]) -> GpuBuffer<T> {
        Buffer::from_slice(Device::new(&self.backend, rank as u32), elements).expect("room")
    }

    fn on<T: Operand>(&self, rank: usize, operand: T) -> Collective<'_, T> {
        self.ranks[rank].on(&self.streams[rank], operand)
    }

    fn sum(&self) -> Vec<Pending<GpuBuffer<u32>>> {
        let sum = |rank| self.on(rank, self.buffer(rank, &[7_u32; 4])).all_reduce(Reduce::Sum, ..);
        group([sum(0), sum(1)]).expect("queued")
    }

    fn results<T: DeviceBytes>(&self, queued: Vec<Pending<GpuBuffer<T>>>) -> Vec<Vec<T>> {
        let all = self.ranks.iter().zip(queued);
        all.map(|(rank, pending)| rank.wait(pending).expect("done").to_vec().expect("a copy")).collect()
    }
}

fn reduced<T: Element + PartialEq + std::fmt::Debug>(ranks: &Ranks, of: [[T; 2]; 2], expected: [[T; 2]; 4]) {
    for (reduce, expected) in [Reduce::Sum, Reduce::Product, Reduce::Maximum, Reduce::Minimum].into_iter().zip(expected) {
        let queued = group([0, 1].map(|rank| ranks.on(rank, ranks.buffer(rank, &of[rank])).all_reduce(reduce, ..))).expect("queued");
        assert_eq!(ranks.results(queued), [expected; 2], "{reduce:?} of {}", std::any::type_name::<T>());
    }
}

fn message<T, U>(outcome: Result<T, ringmem::Rejected<U>>) -> String {
    outcome.err().expect("an error").to_string()
}

alone! {
    fn all_reduce_combines_every_element_type() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let ranks = Ranks::new(2);
        macro_rules! numbers {
            ($($number:ty),+) => {$(
                reduced(&ranks, [[3, 100], [7, 20]].map(|row| row.map(|n| n as $number)), [[10, 120], [21, 2000_u16], [7, 100], [3, 20]].map(|row| row.map(|n| n as $number)));
            )+};
        }
        numbers!(i32, u32, i64, u64, f32, f64);
        reduced(&ranks, [[3_i8, -100], [7, 20]], [[10, -80], [21, 48], [7, 20], [3, -100]]);
        reduced(&ranks, [[3_u8, 200], [7, 100]], [[10, 44], [21, 32], [7, 200], [3, 100]]);
        // 1.5 and 2, 4 and -1: 3.5 and 3, 3 and -4, and so on.
        reduced(&ranks, [[0x3E00, 0x4400], [0x4000, 0xBC00]].map(|row| row.map(F16)), [[0x4300, 0x4200], [0x4200, 0xC400], [0x4000, 0x4400], [0x3E00, 0xBC00]].map(|row| row.map(F16)));
        reduced(&ranks, [[0x3FC0, 0x4080], [0x4000, 0xBF80]].map(|row| row.map(Bf16)), [[0x4060, 0x4040], [0x4040, 0xC080], [0x4000, 0x4080], [0x3FC0, 0xBF80]].map(|row| row.map(Bf16)));
        assert_eq!((ranks.ranks[1].rank(), ranks.ranks[1].ranks(), ranks.ranks[1].device()), (1, 2, 1));
    }

    fn broadcasts_and_exchanges_change_only_their_ranges() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 3) {
        let ranks = Ranks::new(3);
        let queued = group((0..3).map(|rank| ranks.on(rank, ranks.buffer(rank, &[rank as u32 * 10; 5])).broadcast(1, 1..3)));
        assert_eq!(ranks.results(queued.expect("queued")), [[0, 10, 10, 0, 0], [10; 5], [20, 10, 10, 20, 20]]);
        let queued = group((0..3).map(|rank| {
            let [next, previous] = [1, 2].map(|step| (rank as u32 + step) % 3);
            let buffer = ranks.buffer(rank, &[rank as i64 + 1, 0, 5]);
            ranks.on(rank, buffer).receive(previous, 1..2).send(next, 0..1).all_reduce(Reduce::Product, 2..)
        }));
        assert_eq!(ranks.results(queued.expect("queued")), [[1, 3, 125], [2, 1, 125], [3, 2, 125]]);
        let registry = Registry::new();
        let id = registry.register(ranks.buffer(0, &[8_u8, 9])).expect("room");
        let sent = ranks.on(0, registry.lease(id).expect("it is free").into_owned()).send(2, 1..).queue().expect("queued");
        let received = ranks.on(2, ranks.buffer(2, &[0_u8; 3])).receive(0, 2..).all_reduce(Reduce::Sum, 1..1).queue().expect("queued");
        assert_eq!(ranks.ranks[2].wait(received).expect("done").to_vec().expect("a copy"), [0, 0, 9]);
        drop(sent.wait().expect("done"));
        assert!(ranks.on(1, ranks.buffer::<u8>(1, &[])).all_reduce(Reduce::Sum, ..).queue().expect("nothing").is_done());
        assert!(group::<GpuBuffer<u8>>([]).expect("nothing").is_empty());
    }

    fn threads_meet_by_unique_id_and_do_not_block_each_other() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 4, "RINGMEM_DOUBLE_WAITS" = "cuMemHostUnregister") {
        let (backend, bytes) = (rig::open(), UniqueId::new().expect("an id").to_bytes());
        let nccl = Nccl::new();
        thread::scope(|scope| {
            for rank in (0..4_u32).rev() {
                let (backend, nccl) = (&backend, &nccl);
                scope.spawn(move || {
                    let stream = Stream::new(backend, rank).expect("a stream");
                    let own = Communicator::new(backend, rank, UniqueId::from_bytes(bytes), 4, rank).expect("a rank");
                    let memory = || Device::new(backend, rank);
                    if rank == 0 {
                        // The others wait in their first call: no backend lock is held.
                        let begun = Instant::now();
                        while nccl.calls("ncclAllReduce") < 3 {
                            assert!(begun.elapsed() < LIMIT, "the other ranks do not call");
                            thread::yield_now();
                        }
                        let place = Box::new([0_u8; 4096]);
                        // SAFETY: unlocked before the box is dropped.
                        let registered = unsafe { backend.register(0, std::ptr::NonNull::from(&*place).cast(), 4096) }.expect("pinned");
                        drop(registered); // would wait for the others' kernels
                        assert_eq!(backend.waiting(), 1, "deferred");
                        assert!(matches!(backend.context(0), Err(Error::Busy { .. })));
                        let mut buffer = GpuBuffer::<u8>::new(memory(), 100).expect("room");
                        buffer.fill(3).expect("a fill");
                        std::mem::forget(place);
                    }
                    let mut buffer = GpuBuffer::from_slice(memory(), &[u64::from(rank), 1]).expect("room");
                    for _ in 0..20 {
                        buffer = own.on(&stream, buffer).all_reduce(Reduce::Sum, ..).queue().expect("queued").ordered();
                    }
                    assert_eq!(buffer.to_vec().expect("a copy"), [6 * 4_u64.pow(19), 4_u64.pow(20)]);
                    own.close().expect("it is idle");
                });
            }
        });
        assert_eq!((nccl.live(), nccl.calls("ncclCommAbort"), backend.waiting()), (0, 0, 0));
    }

    fn collectives_are_ordered_with_kernels_and_copies() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let ranks = Ranks::new(2);
        let module = Module::load(&ranks.backend, &IMAGE, &ABI).expect("our ABI");
        ranks.results(ranks.sum()); // connects
        let other = Stream::new(&ranks.backend, 0).expect("a stream");
        // Connects, and loads the kernel on both devices.
        for (buffer, stream) in group([0, 1].map(|rank| ranks.on(rank, ranks.buffer(rank, &[0_u8])).all_reduce(Reduce::Sum, ..))).expect("queued").into_iter().zip(&ranks.streams) {
            // SAFETY: the launch's byte.
            drop(unsafe { stream.launch_with(&module, "increment", buffer.ordered(), &[1]) }.expect("a launch").wait().expect("done"));
        }
        let held = Held::on(&ranks.streams[0]);
        let filled = [&other, &ranks.streams[1]].map(|stream| {
            let buffer = GpuBuffer::<u8>::new(Device::new(&ranks.backend, stream.device()), 100).expect("room");
            stream.fill(buffer, .., 20).expect("a fill").ordered()
        });
        let sums = group((0..2).zip(filled).map(|(rank, buffer)| ranks.on(rank, buffer).all_reduce(Reduce::Sum, 10..)));
        let sums = sums.expect("queued").into_iter().map(Pending::ordered);
        let results: Vec<_> = sums
            .zip(&ranks.streams)
            .map(|(buffer, stream)| {
                // SAFETY: the launch's 100 bytes.
                let buffer = unsafe { stream.launch_with(&module, "increment", buffer, &[100]) }.expect("a launch").ordered();
                let pinned = Buffer::<u8, _>::new(Pinned::new(&ranks.backend, stream.device()), 100).expect("room");
                stream.copy(buffer, pinned).expect("a copy")
            })
            .collect();
        assert!(results.iter().all(|copy| !copy.is_done()), "rank 1 waits for rank 0, and that for its kernel");
        drop(held);
        for copy in results {
            assert_eq!(copy.wait().expect("done").1.as_slice().expect("it is idle"), [[21; 10].as_slice(), &[41; 90]].concat());
        }
    }

    fn a_wait_for_earlier_work_does_not_wait_for_a_collective() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let ranks = Ranks::new(2);
        ranks.results(ranks.sum());
        let stream = &ranks.streams[0];
        let before = stream.fill(ranks.buffer(0, &[0_u8; 4]), .., 1).expect("a fill");
        let sum = |rank| ranks.on(rank, ranks.buffer(rank, &[7_u8; 4])).all_reduce(Reduce::Sum, ..).queue().expect("queued");
        let alone = sum(0);
        let Ok(before) = before.wait_timeout(LIMIT / 10) else { panic!("it waits for the collective") };
        drop(before.expect("done"));
        assert!(!alone.is_done());
        assert_eq!(ranks.results(vec![alone, sum(1)]), [[14; 4]; 2]);
    }

    fn a_buffer_dropped_in_a_collective_is_freed_after_it() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let (mut ranks, double) = (Ranks::new(2), Double::new());
        ranks.results(ranks.sum());
        let backend = Arc::clone(&ranks.backend);
        let live = || {
            let _ = backend.waiting();
            backend.counters().device_live.bytes
        };
        double.hold(Step::Function, 1);
        drop(ranks.sum());
        assert_eq!(live(), 32, "both are in use");
        assert!(matches!(backend.context(0), Err(Error::Busy { .. })), "it counts as a kernel");
        ranks.streams.clear(); // without waiting for it
        double.hold(Step::Function, 0);
        assert!(rig::soon(|| live() == 0));
    }

    fn wrong_operations_are_errors_with_the_facts() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 3) {
        let (ranks, nccl) = (Ranks::new(2), Nccl::new());
        let one = |rank| ranks.on(rank, ranks.buffer(rank, &[1_u32; 4]));
        nccl.fail("none", 0);
        assert_eq!(message(one(0).all_reduce(Reduce::Sum, 2..5).queue()), "invalid range: 3 elements of 4 bytes at offset 2 are not within 4 elements of 4 bytes");
        let refused = one(0).send(2, ..).queue().expect_err("no such rank");
        assert_eq!((refused.error.to_string().as_str(), refused.value.len()), ("invalid rank of the peer: got 2, expected 0 to 1", 4));
        assert_eq!(message(one(1).broadcast(7, ..).queue()), "invalid rank of the root: got 7, expected 0 to 1");
        assert_eq!(message(ranks.on(0, ranks.buffer(1, &[1_u32])).send(1, ..).queue()), "invalid device of the buffer: got 1, expected 0");
        let elsewhere = ranks.ranks[0].on(&ranks.streams[1], ranks.buffer(0, &[1_u32])).send(1, ..).queue();
        assert_eq!(message(elsewhere), "invalid device of the stream: got 1, expected 0");
        let overlap = one(0).send(1, ..2).receive(1, 1..).queue();
        assert_eq!(message(overlap), "a write to elements that another operation of the group uses is not supported");
        let other = rig::open();
        let foreign = GpuBuffer::<u32>::new(Device::new(&other, 0), 4).expect("room");
        assert!(matches!(ranks.on(0, foreign).send(1, ..).queue().expect_err("foreign").error, Error::OtherBackend { .. }));
        let lengths = message(group([one(0).all_reduce(Reduce::Sum, ..), one(1).all_reduce(Reduce::Sum, 1..)]));
        assert_eq!(lengths, "invalid number of elements of another rank in the group: got 3, expected 4");
        let lengths = message(group([one(0).send(1, ..2), one(1).receive(0, ..)]));
        assert_eq!(lengths, "invalid number of elements of another rank in the group: got 4, expected 2");
        let missing = message(group([one(0).send(1, ..2).broadcast(0, 2..), one(1).broadcast(0, ..2)]));
        assert_eq!(missing, "invalid number of operations of another rank in the group: got 0, expected 1");
        let kinds = message(group([one(0).all_reduce(Reduce::Sum, ..), one(1).all_reduce(Reduce::Maximum, ..)]));
        assert_eq!(kinds, "an operation that differs from another rank's in the group is not supported");
        for symbol in ["ncclGroupStart", "ncclAllReduce", "ncclBroadcast", "ncclSend", "ncclRecv"] {
            assert_eq!(nccl.calls(symbol), 0, "{symbol}");
        }
        assert_eq!(ranks.results(ranks.sum()), [[14; 4]; 2]);

        let all = |devices: &[u32]| Communicator::all(&ranks.backend, devices).expect_err("refused").to_string();
        assert_eq!(all(&[]), "invalid number of devices: got 0, expected 1 to 3");
        assert_eq!(all(&[1, 1]), "one device as two ranks of a communicator is not supported");
        assert_eq!(all(&[1, 3]), "no device 3: the backend has 3");
        let id = UniqueId::new().expect("an id");
        let new = |ranks_of, rank| Communicator::new(&ranks.backend, 0, id, ranks_of, rank).expect_err("refused").to_string();
        assert_eq!(new(0, 0), "invalid number of ranks: got 0, expected 1 to 2147483647");
        assert_eq!(new(2, 2), "invalid rank: got 2, expected 0 to 1");
        let held = Held::on(&ranks.streams[0]);
        assert!(matches!(Communicator::all(&ranks.backend, &[2]), Err(Error::Busy { .. })));
        drop(held);
    }

    fn each_failed_call_ends_its_communicators_and_keeps_nothing() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let nccl = Nccl::new();
        for symbol in ["ncclGetUniqueId", "ncclGroupStart", "ncclCommInitRank", "ncclGroupEnd"] {
            let backend = rig::open();
            nccl.fail(symbol, 2);
            let error = Communicator::all(&backend, &[0, 1]).expect_err("it fails");
            assert_eq!(error.to_string(), format!("{symbol}: ncclSystemError (2); NCCL prints the cause with NCCL_DEBUG=WARN"));
        }
        for symbol in ["ncclGroupStart", "ncclAllReduce", "ncclBroadcast", "ncclSend", "ncclRecv", "ncclGroupEnd"] {
            let ranks = Ranks::new(2);
            nccl.fail(symbol, 3);
            let one = |rank: usize, peer| {
                let all = ranks.on(rank, ranks.buffer(rank, &[1_u32; 5])).all_reduce(Reduce::Sum, 2..3).broadcast(0, 3..);
                if peer == 1 { all.send(peer, ..1) } else { all.receive(peer, ..1) }
            };
            let refused = group([one(0, 1), one(1, 0)]).expect_err("it fails");
            assert!(matches!(refused.error, Error::Nccl { call, code: 3, name: "ncclInternalError" } if call == symbol), "{symbol}: {}", refused.error);
            assert_eq!((nccl.calls("ncclCommAbort"), nccl.live()), (2, 0), "{symbol}");
            for (rank, buffer) in refused.value.iter().enumerate() {
                assert!(buffer.slice(1..2).expect("an element").to_vec().is_err(), "{symbol}: its use failed");
                let written = if rank == 1 { 0..1 } else { 2..3 };
                assert!(matches!(buffer.slice(written).expect("an element").to_vec(), Err(Error::Tainted { .. })), "{symbol}");
            }
            assert!(matches!(one(0, 1).queue().expect_err("it has failed").error, Error::Nccl { call, .. } if call == symbol), "{symbol}");
            drop(refused);
            let backend = Arc::clone(&ranks.backend);
            drop(ranks);
            assert!(rig::soon(|| backend.waiting() == 0 && backend.counters().device_live.bytes == 0), "{symbol}");
        }
        for (symbol, aborts, live) in [("ncclCommGetAsyncError", 1, 0), ("ncclCommDestroy", 0, 1)] {
            let mut ranks = Ranks::new(2);
            let before = ranks.backend.counters().unreported;
            nccl.fail(symbol, 1);
            drop(ranks.ranks.remove(0));
            assert_eq!((ranks.backend.counters().unreported - before, nccl.calls("ncclCommAbort"), nccl.live()), (1, aborts, 1 + live), "{symbol}");
            nccl.fail("none", 0);
            assert_eq!(ranks.ranks.remove(0).close().is_err(), aborts == 1, "{symbol}: its peer was aborted");
        }
    }

    fn after_a_lost_rank_waits_end_with_its_error() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let (ranks, nccl) = (Ranks::new(2), Nccl::new());
        ranks.results(ranks.sum());
        nccl.lose(7); // in progress
        ranks.ranks[0].check().expect("no error yet");
        nccl.lose(0);
        let alone = ranks.on(0, ranks.buffer(0, &[7_u32; 4])).all_reduce(Reduce::Sum, 1..).queue().expect("queued");
        let behind = ranks.on(0, ranks.buffer(0, &[7_u32; 4])).send(1, ..).queue().expect("queued").ordered();
        nccl.lose(6);
        let lost = ranks.ranks[0].wait(alone).expect_err("rank 1 is lost");
        assert!(matches!(lost.error, Error::Nccl { call: "ncclCommGetAsyncError", code: 6, name: "ncclRemoteError" }), "{}", lost.error);
        assert!(matches!(lost.value.slice(1..2).expect("an element").to_vec(), Err(Error::Tainted { .. })));
        assert_eq!(lost.value.slice(..1).expect("an element").to_vec().expect("not written"), [7]);
        assert!(matches!(behind.to_vec(), Err(Error::Nccl { code: 6, .. })), "also of operations that nobody has waited for");
        assert_eq!(behind.to_vec().expect("it was only read"), [7; 4]);
        assert!(matches!(ranks.ranks[0].check(), Err(Error::Nccl { code: 6, .. })));
        assert!(matches!(ranks.ranks[1].check(), Err(Error::Nccl { code: 6, .. })));
        ranks.ranks[0].abort().expect("again is nothing");
        let refused = ranks.ranks[1].on(&ranks.streams[1], ranks.buffer(1, &[7_u32])).send(0, ..).queue();
        assert!(matches!(refused.expect_err("its error").error, Error::Nccl { code: 6, .. }));
        assert!(matches!(ranks.on(0, lost.value).send(1, ..).queue().expect_err("invalid").error, Error::Tainted { .. }));
        let backend = Arc::clone(&ranks.backend);
        drop((ranks, behind));
        assert_eq!((nccl.calls("ncclCommAbort"), nccl.calls("ncclCommDestroy"), nccl.live()), (2, 0, 0));
        assert_eq!(backend.counters().unreported, 0);
    }

    fn a_dropped_communicator_aborts_what_does_not_end() with("LD_LIBRARY_PATH" = folders(), "RINGMEM_DOUBLE_DEVICES" = 2) {
        let (mut ranks, nccl) = (Ranks::new(2), Nccl::new());
        ranks.results(ranks.sum());
        let alone = ranks.on(0, ranks.buffer(0, &[7_u32; 4])).all_reduce(Reduce::Sum, ..).queue().expect("queued");
        drop(ranks.ranks.remove(0));
        assert!(matches!(alone.wait().expect_err("it was aborted").error, Error::Busy { .. }));
        assert_eq!((ranks.backend.counters().unreported, nccl.live()), (1, 1));
        assert!(matches!(ranks.ranks.remove(0).close(), Err(Error::Nccl { code: 6, .. })), "rank 0 is lost");
        // Next to an endless kernel, the library would wait for that.
        let rank = Communicator::all(&ranks.backend, &[0]).expect("a rank");
        let held = Held::on(&ranks.streams[1]);
        drop(rank);
        assert_eq!((ranks.backend.counters().unreported, nccl.live()), (2, 1), "leaked");
        drop(held);
    }
}

fn _accepts_any_device_memory<M: Memory<Visibility = DeviceOnly>>(all: Collective<'_, Buffer<f32, M>>) {
    drop(all.all_reduce(Reduce::Sum, ..));
}

fn absent(path: &'static str, folder: &str, expected: &str) {
    let alone = Alone::new(path).with("LD_LIBRARY_PATH", folder);
    if alone.is_here() {
        let error = Communicator::all(&rig::open(), &[0]).expect_err("no NCCL");
        assert!(matches!(error, Error::NoNccl { .. }), "{error}");
        eprintln!("it says {error}: {}", error.source().expect("the loader's"));
        return;
    }
    let said = alone.run();
    let remedy =
        "no NCCL: none of [\"libnccl.so.2\", \"libnccl.so\"] can be used; install NCCL 2.7 or later, or add its folder to LD_LIBRARY_PATH";
    assert!(said.lines().any(|line| line.starts_with(&format!("it says {remedy}")) && line.contains(expected)), "{said}");
}

#[test]
fn without_the_library_the_error_has_its_names_and_the_remedy() {
    let folder = ringmem_driver_double::libraries().expect("the double is built");
    let path = concat!(module_path!(), "::without_the_library_the_error_has_its_names_and_the_remedy");
    absent(path, &folder.display().to_string(), "cannot open shared object file");
}

#[test]
fn a_library_without_a_function_is_an_error_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = fs::read(linked()).expect("the double");
    let name = b"\0ncclSend\0";
    let place = bytes.windows(name.len()).position(|window| window == name).expect("its name");
    bytes[place + 1] = b'_';
    fs::write(folder.path().join("libnccl.so.2"), bytes).expect("room");
    let double = ringmem_driver_double::libraries().expect("the double is built");
    let path = concat!(module_path!(), "::a_library_without_a_function_is_an_error_with_its_name");
    absent(path, &format!("{}:{}", double.display(), folder.path().display()), "ncclSend");
}
