use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Address, Backend, Copy, DeviceAddress, Ticket};
use ringmem::bridge::{Opened, Options, Placement, Receiver, RingAddresses, RingBufferBridge, TransferStrategy};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::busy_stream::Held;
use crate::rig::{self, Alone, Double, LIMIT, alone};

fn flushed() -> [u64; 3] {
    let (backend, double) = (rig::open(), Double::new());
    let options = Options { placement: Some([Placement::DEVICE; 2]), capacity: [8; 2], start: 6, ..Options::new(TransferStrategy::Sync) };
    let Opened { mut sender, mut bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options).expect("a bridge");
    let messages: [Echo; 5] = std::array::from_fn(|number| Echo { words: [number as u64; 8] });
    assert_eq!(sender.push_slice(&messages), Ok(5));
    double.reset();
    assert_eq!(bridge.flush_to_device().expect("no fault"), 5);
    let calls = ["cuMemcpyHtoDAsync_v2", "cuStreamWriteValue64_v2", "cuStreamSynchronize"].map(|symbol| double.calls(symbol));
    let [input, _] = bridge.addresses().expect("addresses");
    let read = |address| {
        let mut words = [0_u64; 8];
        let (to, from) = (Address::Host(NonNull::from(&mut words).cast()), Address::Device(DeviceAddress::new(address)));
        // SAFETY: within the ring, not written now.
        unsafe { backend.copy_now(&Copy { to, from, bytes: 64 }) }.expect("live");
        words
    };
    assert_eq!(read(input.own)[0], 11);
    assert_eq!([6, 7, 0, 1, 2].map(|slot| read(input.slots + slot * 64)), messages.map(|message| message.words));
    calls
}

fn fetches(double: &Double) -> [u64; 3] {
    ["cuMemcpyDtoHAsync_v2", "cuStreamWriteValue64_v2", "cuStreamSynchronize"].map(|symbol| double.calls(symbol))
}

struct Answers {
    backend: Arc<CudaBackend>,
    receiver: Receiver<Echo>,
    bridge: RingBufferBridge<Echo, Echo>,
    ring: RingAddresses,
}

impl Answers {
    fn new() -> Self {
        let backend = rig::open();
        let options =
            Options { placement: Some([Placement::SPLIT; 2]), capacity: [8; 2], start: 6, ..Options::new(TransferStrategy::Sync) };
        let Opened { receiver, bridge, .. } = RingBufferBridge::open(&backend, 0, &options).expect("a bridge");
        let [_, ring] = bridge.addresses().expect("addresses");
        let answers = Self { backend, receiver, bridge, ring };
        answers.write(0);
        // SAFETY: a live ring's tail; this test is its kernel.
        unsafe { answers.backend.publish_now(Address::Device(DeviceAddress::new(ring.peer)), 11) }.expect("live");
        answers
    }

    fn write(&self, first: u64) {
        for (number, slot) in [6, 7, 0, 1, 2].into_iter().enumerate() {
            let words = [first + number as u64; 8];
            let (to, from) =
                (Address::Device(DeviceAddress::new(self.ring.slots + slot * 64)), Address::Host(NonNull::from(&words).cast()));
            // SAFETY: a live ring's slot, otherwise unused.
            unsafe { self.backend.copy_now(&Copy { to, from, bytes: 64 }) }.expect("live");
        }
    }

    fn have_arrived(&mut self) -> bool {
        let all = (0..5).all(|number| self.receiver.pop().is_ok_and(|message| message.words == [number; 8]));
        all && self.receiver.pop().is_err()
    }

    fn released(&self) -> u64 {
        let mut word = 0_u64;
        let from = Address::Device(DeviceAddress::new(self.ring.own + 128));
        // SAFETY: a live ring's head.
        unsafe { self.backend.copy_now(&Copy { to: Address::Host(NonNull::from(&mut word).cast()), from, bytes: 8 }) }.expect("live");
        word
    }
}

fn fetched() -> [u64; 3] {
    let (mut answers, double) = (Answers::new(), Double::new());
    double.reset();
    assert_eq!(answers.bridge.flush_to_host().expect("no fault"), 5);
    let calls = fetches(&double);
    assert_eq!((answers.released(), answers.have_arrived()), (11, true));
    calls
}

alone! {
    fn a_free_is_queued_on_the_last_stream_of_its_block() {
        let (backend, double) = (rig::open(), Double::new());
        let [stream, other]: [Stream; 2] = std::array::from_fn(|_| Stream::new(&backend, 0).expect("a stream"));
        let filled = |on: &Stream| on.fill(GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill").detach();
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let held = Held::on(&stream);
        double.reset();
        let frees = |expected: u64, why: &str| assert_eq!(double.calls("cuMemFreeAsync"), expected, "{why}");

        drop(filled(&stream));
        frees(1, "behind its use, which is behind the kernel");
        assert_eq!(backend.waiting(), 0, "nothing is deferred");

        let (late, mut both) = (filled(&stream), filled(&stream));
        // SAFETY: no byte is touched.
        let second = unsafe { stream.launch(&module, "increment", &[0, 0]) }.expect("a launch");
        drop(late);
        frees(1, "the free would wait for the second kernel");
        both.used_by(&other).expect("a mark");
        drop(both);
        frees(1, "two streams use it");
        assert_eq!(backend.waiting(), 2);

        let live = backend.counters().device_live.bytes;
        drop(held);
        second.wait().expect("done");
        stream.synchronize().expect("done");
        other.synchronize().expect("done");
        assert_eq!((backend.waiting(), backend.counters().device_live.bytes), (0, 0), "{live} bytes were live");
        frees(3, "all");

        let held = Held::on(&stream);
        double.reset();
        double.fail("cuMemFreeAsync", 1, 999);
        drop(filled(&stream));
        assert_eq!((double.calls("cuMemFreeAsync"), backend.waiting()), (1, 1));
        drop(held);
        stream.synchronize().expect("done");
        assert_eq!((backend.waiting(), backend.counters().device_live.bytes), (0, 0));
        frees(2, "again, on an internal stream");
    }

    fn waiting_for_an_operation_ignores_later_kernels() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let filled = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill");
        let held = Held::on(&stream);
        let Ok(done) = filled.wait_timeout(LIMIT) else { panic!("the fill waits for the kernel") };
        done.expect("done");
        let behind = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill");
        let Err(behind) = behind.wait_timeout(Duration::from_millis(20)) else { panic!("the kernel is in front of it") };
        drop(held);
        behind.wait().expect("done");
    }

    fn only_large_operations_have_an_event_each() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut buffer = Buffer::<u8, _>::new(Device::new(&backend, 0), 1 << 20).expect("room");
        let records = || double.calls("cuEventRecord");
        let before = records();
        for _ in 0..20 {
            buffer = stream.fill(buffer, ..10, 1).expect("a fill").detach();
        }
        assert_eq!(records(), before);
        stream.synchronize().expect("done");
        assert_eq!(records(), before + 1);
        for _ in 0..3 {
            buffer = stream.fill(buffer, .., 1).expect("a fill").detach();
        }
        assert_eq!(records(), before + 4);
        stream.synchronize().expect("done");
        assert_eq!(records(), before + 4, "the last one's event is the stream's end");
        drop(buffer);
    }

    fn a_completed_ticket_needs_no_driver_calls() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        drop(stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill").wait().expect("done"));
        let last = Ticket { stream: stream.id(), number: 1 };
        let before = double.all_calls();
        assert!((0..1000).all(|_| backend.is_complete(last)));
        assert_eq!(double.all_calls(), before);
    }

    fn pageable_copies_access_memory_in_stream_order() {
        const LEN: usize = (2 << 20) + 777;
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut source = Buffer::<u8, _>::new(Host::new(&backend, 0), LEN).expect("room");
        source.as_mut_slice().expect("nothing is queued").fill(1);
        let first = source.as_ptr().expect("bytes");
        let gpu = Buffer::<u8, _>::new(Device::new(&backend, 0), LEN).expect("room");
        let held = Held::on(&stream);
        let (source, gpu) = stream.copy(source, gpu).expect("as many").detach();
        let (gpu, target) = stream.copy(gpu, Buffer::<u8, _>::new(Host::new(&backend, 0), LEN).expect("room")).expect("as many").detach();
        let pinned = Buffer::<u8, _>::new(Pinned::new(&backend, 0), LEN).expect("room");
        let copied = stream.copy(target, pinned).expect("as many");
        // SAFETY: the operation owns the memory, and the kernel before it delays readers.
        unsafe { first.write_bytes(2, LEN) };
        drop(held);
        let (target, pinned) = copied.wait().expect("done");
        assert!(target.as_slice().expect("nothing is queued").iter().all(|&byte| byte == 2));
        assert!(pinned.as_slice().expect("nothing is queued").iter().all(|&byte| byte == 2));
        let counters = backend.counters();
        assert_eq!((counters.staged.count, counters.host_copies.count), (2, 1));
        drop((source, gpu));
    }

    fn publishing_after_a_partial_failure_is_an_error_once() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let gpu = Buffer::<u64, _>::new(Device::new(&backend, 0), 100).expect("room");
        let mut word = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 1).expect("room");
        let place = Address::Host(word.as_ptr().expect("a word").cast());
        double.reset();
        double.fail("cuMemcpyDtoDAsync_v2", 1, 999);
        let filled = stream.fill(gpu, .., 0x0102_0304_0506_0708).expect("its first call was made");
        let since = Ticket { stream: stream.id(), number: 1 };
        // SAFETY: a live buffer's word, otherwise unused.
        let refused = unsafe { backend.publish(place, 7, since, stream.id()) }.expect("it is queued");
        assert!(matches!(backend.wait(refused, Some(LIMIT)), Err(Error::Operation { what: OperationFault::Unpublished, number: 1, .. })));
        assert!(backend.wait(refused, Some(LIMIT)).expect("told once"));
        let error = filled.wait().expect_err("half of it").into_error();
        assert!(matches!(error, Error::Driver { call: "cuMemcpyDtoDAsync_v2", code: 999, .. }), "{error}");
        assert_eq!(word.as_slice().expect("nothing is queued"), [0]);
        let later = Ticket { stream: stream.id(), number: 3 };
        // SAFETY: a live buffer's word, otherwise unused.
        let stored = unsafe { backend.publish(place, 8, later, stream.id()) }.expect("it is queued");
        assert!(backend.wait(stored, Some(LIMIT)).expect("nothing failed since"));
        assert_eq!(word.as_mut_slice().expect("nothing is queued"), [8]);
        stream.synchronize().expect("all were told");
    }

    fn a_partial_failure_is_reported_to_every_dependent_operation() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let gpu = |len| Buffer::<u64, _>::new(Device::new(&backend, 0), len).expect("room");
        let (first, second) = (gpu(100), gpu(100));
        double.reset();
        double.fail("cuMemcpyDtoDAsync_v2", 1, 999);
        let failed = stream.fill(first, .., 0x0102_0304_0506_0708).expect("its first call was made");
        let filled = stream.fill(second, .., 0x0102_0304_0506_0708).expect("it does not fail");
        let error = stream.synchronize().expect_err("planned");
        assert!(matches!(error, Error::Driver { call: "cuMemcpyDtoDAsync_v2", code: 999, .. }), "{error}");
        let rejected = failed.wait().expect_err("half of it");
        assert!(matches!(rejected.error, Error::Operation { what: OperationFault::AlreadyReported, number: 1, .. }), "{rejected}");
        assert_eq!(filled.wait().expect("nothing of its own failed").to_vec().expect("a copy"), [0x0102_0304_0506_0708; 100]);
        let half = rejected.value;
        for _ in 0..2 {
            let error = half.to_vec().expect_err("half of it");
            assert!(matches!(&error, Error::Tainted { number: 1, cause, .. } if cause.contains("cuMemcpyDtoDAsync_v2")), "{error}");
        }
        let refused = stream.copy(half, gpu(100)).expect_err("nothing to copy");
        assert!(matches!(refused.error, Error::Tainted { number: 1, .. }), "{refused}");
        let (half, other) = refused.value;
        let half = stream.fill(half, .., 0x0102_0304_0506_0708).expect("queued").detach();
        let (_, other) = stream.copy(half, other).expect("queued").wait().expect("written as a whole");
        assert_eq!(other.to_vec().expect("valid"), [0x0102_0304_0506_0708; 100]);
    }

    fn a_buffer_reports_a_failure_after_its_stream_was_dropped() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let gpu = Buffer::<u64, _>::new(Device::new(&backend, 0), 100).expect("room");
        double.reset();
        double.fail("cuMemcpyDtoDAsync_v2", 1, 999);
        let filled = stream.fill(gpu, .., 0x0102_0304_0506_0708).expect("its first call was made").detach();
        drop(stream);
        assert_eq!(backend.counters().unreported, 1, "so far");
        let error = filled.to_vec().expect_err("half of it");
        assert!(matches!(error, Error::Driver { call: "cuMemcpyDtoDAsync_v2", code: 999, .. }), "{error}");
        assert_eq!(backend.counters().unreported, 0);
    }

    fn words_in_any_memory_are_published_without_stream_words() with("RINGMEM_DOUBLE_ATTRIBUTES" = "122=0,93=0") {
        words();
    }

    fn words_in_any_memory_are_published() {
        words();
    }

    fn a_blocking_flush_to_the_device_waits_once() {
        assert_eq!(flushed(), [2, 1, 1]);
    }

    fn a_flush_to_the_device_waits_per_copy_without_stream_words() with("RINGMEM_DOUBLE_ATTRIBUTES" = "122=0,93=0") {
        assert_eq!(flushed(), [3, 0, 3]);
    }

    fn a_blocking_flush_to_the_host_waits_once() {
        assert_eq!(fetched(), [2, 1, 1]);
    }

    fn a_flush_to_the_host_waits_per_copy_without_stream_words() with("RINGMEM_DOUBLE_ATTRIBUTES" = "122=0,93=0") {
        assert_eq!(fetched(), [2, 0, 3]);
    }

    fn answers_with_released_slots_arrive_despite_failed_waits() {
        let double = Double::new();
        let mut answers = loop {
            let mut answers = Answers::new();
            double.reset();
            (1..10_000).for_each(|number| double.fail("cuStreamSynchronize", number, 999));
            let flushed = answers.bridge.flush_to_host();
            double.reset();
            if flushed.is_err() {
                break answers;
            }
        };
        assert_eq!(answers.released(), 11);
        answers.write(100);
        assert_eq!(answers.bridge.flush_to_host().expect("no fault"), 5);
        assert!(answers.have_arrived());
    }

    fn answers_without_released_slots_are_copied_again() {
        let (mut answers, double) = (Answers::new(), Double::new());
        double.reset();
        double.fail("cuStreamWriteValue64_v2", 1, 999);
        answers.bridge.flush_to_host().expect_err("it fails");
        assert_eq!((answers.released(), answers.receiver.pop().is_err()), (6, true));
        assert_eq!(answers.bridge.flush_to_host().expect("no fault"), 5);
        assert_eq!((answers.released(), answers.have_arrived()), (11, true));
    }

    fn a_long_wait_sleeps_in_the_driver_without_polling() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let behind = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill");
        double.reset();
        let waiter = thread::spawn(move || drop(behind.wait().expect("done")));
        let begun = Instant::now();
        while double.calls("cuEventSynchronize") == 0 {
            assert!(begun.elapsed() < LIMIT, "it looks still");
            thread::yield_now();
        }
        let looks = double.calls("cuEventQuery");
        thread::sleep(Duration::from_millis(20));
        assert!(looks > 0 && double.calls("cuEventQuery") == looks && double.calls("cuEventSynchronize") == 1, "{looks} looks");
        drop(held);
        waiter.join().expect("no panic");
    }

    fn a_failed_driver_query_is_repeated() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        for symbol in ["cuEventQuery", "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuCtxGetCurrent"] {
            let pending = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill");
            double.reset();
            double.fail(symbol, 1, 999);
            pending.wait().unwrap_or_else(|error| panic!("{symbol}: {error}"));
        }
    }

    fn a_failed_query_behind_a_kernel_completes_the_operations_before_it() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let room = |bytes| Buffer::<u8, _>::new(Device::new(&backend, 0), bytes).expect("room");
        let (before, behind) = (room(100), room(1 << 20));
        let (_before, first) = (stream.fill(before, .., 1).expect("a fill").detach(), Ticket { stream: stream.id(), number: 1 });
        let held = Held::on(&stream);
        // Long enough to have an event of its own.
        let behind = stream.fill(behind, .., 1).expect("a fill");
        double.reset();
        double.fail("cuEventQuery", 2, 999);
        let is_first_complete = backend.wait(first, Some(LIMIT));
        let is_kernel_complete = backend.is_complete(Ticket { number: 2, ..first });
        drop(held);
        behind.wait().expect("the kernel has ended");
        assert!(is_first_complete.expect("the driver answers again"), "nothing before the kernel is left");
        assert!(!is_kernel_complete, "the kernel runs");
        assert!(double.calls("cuEventQuery") >= 2, "the events before and behind the kernel were polled");
    }

    fn a_closed_stream_is_complete_and_accepts_nothing() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (id, ticket) = (stream.id(), Ticket { stream: stream.id(), number: 1 });
        drop(stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill").detach());
        drop(stream);
        assert!(backend.is_complete(ticket) && backend.wait(ticket, None).expect("over"));
        assert!(matches!(backend.record_position(id), Err(Error::Closed { what: "stream" })));
        assert!(matches!(backend.synchronize(id), Err(Error::Closed { what: "stream" })));
        backend.close_stream(id);
    }

    fn a_stream_closed_under_a_kernel_has_no_raw_handle() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (id, held) = (stream.id(), Held::on(&stream));
        backend.close_stream(id);
        assert!(matches!(backend.raw_stream(id), Err(Error::Closed { what: "stream" })), "the driver's has gone");
        drop(held);
    }

    fn a_stream_with_a_failed_end_event_is_reused_when_idle() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (id, held) = (stream.id(), Held::on(&stream));
        let behind = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 1).expect("a fill");
        double.reset();
        (1..20).for_each(|number| double.fail("cuEventRecord", number, 2));
        backend.close_stream(id);
        double.reset();
        let rest: Vec<Stream> = (0..STOCK - 1).map(|_| Stream::new(&backend, 0).expect("a stream")).collect();
        assert_eq!(double.calls("cuStreamCreate"), 0);
        let another = Stream::new(&backend, 0).expect("a stream");
        assert_eq!(double.calls("cuStreamCreate"), 1, "the closed one is in use");
        drop(held);
        behind.wait().expect("done");
        drop((stream, rest, another));
        backend.memory_info(0).expect("device 0");
        let all: Vec<Stream> = (0..=STOCK).map(|_| Stream::new(&backend, 0).expect("a stream")).collect();
        assert_eq!(double.calls("cuStreamCreate"), 1);
        drop(all);
        assert_eq!(double.calls("cuStreamDestroy_v2"), 0);
    }
}

const STOCK: usize = 26;

/// The driver creates and destroys streams only without kernels, and has 32 hardware queues.
fn a_hundred_streams_under_a_kernel() {
    let (backend, double) = (rig::open(), Double::new());
    let first = Stream::new(&backend, 0).expect("a stream");
    let held = Held::on(&first);
    double.reset();
    let stock = (1..STOCK).map(|_| Stream::new(&backend, 0)).collect::<Result<Vec<_>, _>>().expect("no allocation");
    drop(stock);
    for round in 0..100_u8 {
        let stream = Stream::new(&backend, 0).expect("a stream");
        let buffer = Buffer::<u8, _>::new(Device::new(&backend, 0), 1000).expect("room");
        let filled = stream.fill(buffer, .., round).expect("a fill").wait().expect("done");
        assert_eq!(filled.to_vec().expect("a copy"), [round; 1000]);
    }
    assert_eq!((double.calls("cuStreamCreate"), double.calls("cuStreamDestroy_v2")), (0, 0));
    drop(held);
}

#[test]
fn streams_are_reused_under_a_kernel_and_share_no_queue() {
    let name = concat!(module_path!(), "::streams_are_reused_under_a_kernel_and_share_no_queue");
    let alone = Alone::new(name)
        .with("RINGMEM_DOUBLE_WAITS", "cuStreamCreate,cuStreamDestroy_v2,cuMemHostAlloc,cuMemFreeHost")
        .with("RINGMEM_DOUBLE_QUEUES", 32)
        .with("RINGMEM_DOUBLE_DEADLINE_MS", 3000);
    rig::clean(&alone, a_hundred_streams_under_a_kernel);
}

#[test]
fn a_broken_context_ends_every_wait_with_its_error() {
    let alone = Alone::new(concat!(module_path!(), "::a_broken_context_ends_every_wait_with_its_error"));
    if !alone.is_here() {
        assert!(alone.run().contains(": 0 leaked"));
        return;
    }
    let (backend, double) = (rig::open(), Double::new());
    for (broken, named) in [(719, "CUDA_ERROR_LAUNCH_FAILED"), (911, "CUDA_ERROR_EXTERNAL_DEVICE")] {
        let (stream, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
        let buffer = || Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room");
        other.fill(buffer(), .., 1).expect("a fill").wait().expect("done");
        let pending = stream.fill(buffer(), .., 1).expect("a fill");
        double.reset();
        double.fail("cuEventQuery", 1, broken);
        let error = pending.wait().expect_err("the context is broken").into_error();
        assert!(matches!(error, Error::Driver { call: "cuEventQuery", code, name, .. } if code == broken && name == named), "{error}");
        assert!(matches!(stream.synchronize(), Err(Error::Driver { code, .. }) if code == broken));
    }
}

fn words() {
    let backend = rig::open();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let device = Buffer::<u64, _>::new(Device::new(&backend, 0), 1).expect("room");
    let pinned = Buffer::<u64, _>::new(Pinned::new(&backend, 0), 1).expect("room");
    let host = Buffer::<u64, _>::new(Host::new(&backend, 0), 1).expect("room");
    let places = [
        Address::Device(device.device_address().expect("it has one")),
        Address::Host(pinned.as_ptr().expect("a word").cast()),
        Address::Host(host.as_ptr().expect("a word").cast()),
    ];
    let read = |place| {
        let word = AtomicU64::new(0);
        let to = Address::Host(std::ptr::NonNull::from(&word).cast());
        // SAFETY: one live word at each end.
        unsafe { backend.copy_now(&Copy { to, from: place, bytes: 8 }) }.expect("a copy");
        word.into_inner()
    };
    for (i, place) in places.into_iter().enumerate() {
        let value = 100 + i as u64;
        // SAFETY: a live buffer's word.
        unsafe { backend.publish_now(place, value) }.expect("published");
        assert_eq!(read(place), value, "{place:?}");
        let since = Ticket { stream: stream.id(), number: u64::MAX };
        // SAFETY: a live buffer's word; waited for below.
        let ticket = unsafe { backend.publish(place, value + 50, since, stream.id()) }.expect("queued");
        assert!(backend.wait(ticket, Some(LIMIT)).expect("published"));
        assert_eq!(read(place), value + 50, "{place:?}");
    }
    assert_eq!(backend.counters().publications, 6);
}
