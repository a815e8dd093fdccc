//! Reuse in the order of streams, on the driver double: it reports each access to memory that another stream may still use.

use std::thread::{scope, sleep, spawn};
use std::time::Duration;

use libloading::Library;
use ringmem_capi::devices::{
    Direction, ringmem_copy, ringmem_devices_enable_peer, ringmem_stream_destroy, ringmem_stream_forget, ringmem_stream_synchronize,
    ringmem_stream_wait,
};
use ringmem_capi::pool::{Memory, PoolStatistics};
use ringmem_capi::status::Status;

use crate::rig::{Double, Step, soon};
use crate::{Address, KIB, MIB, NULL, Opened, alone, succeeds, text};

/// Device bytes that the driver has allocated.
fn device_bytes() -> u64 {
    // SAFETY: the double is loaded, and the function has this signature.
    unsafe {
        let library = Library::new("libcuda.so.1").expect("the double");
        library.get::<unsafe extern "C" fn() -> u64>(b"ringmem_double_live_bytes\0").expect("it has it")()
    }
}

/// Lets the driver execute held copies, after a while, in which the caller has begun to wait for them.
fn release_copies() {
    sleep(Duration::from_millis(20));
    Double::new().hold(Step::Copy, 0);
}

/// The driver's functions that a caller uses for its own streams.
struct Caller(Library);

impl Caller {
    fn new() -> Self {
        // SAFETY: its initialisers do nothing.
        Self(unsafe { Library::new("libcuda.so.1") }.expect("the double"))
    }

    /// In the primary context of device 0.
    fn bind(&self) {
        let mut context: Address = NULL;
        // SAFETY: the driver's signatures.
        unsafe {
            let retain = self.0.get::<unsafe extern "C" fn(*mut Address, i32) -> u32>(b"cuDevicePrimaryCtxRetain\0").expect("it has it");
            assert_eq!(retain(&raw mut context, 0), 0);
            assert_eq!(self.0.get::<unsafe extern "C" fn(Address) -> u32>(b"cuCtxSetCurrent\0").expect("it has it")(context), 0);
        }
    }

    fn create(&self) -> Address {
        let mut stream: Address = NULL;
        // SAFETY: the driver's signature.
        let create = unsafe { self.0.get::<unsafe extern "C" fn(*mut Address, u32) -> u32>(b"cuStreamCreate\0") }.expect("it has it");
        // SAFETY: a place for the result; 1 is a non-blocking stream.
        assert_eq!(unsafe { create(&raw mut stream, 1) }, 0);
        stream
    }

    fn destroy(&self, stream: Address) {
        // SAFETY: the driver's signature, and a live stream.
        assert_eq!(unsafe { self.0.get::<unsafe extern "C" fn(Address) -> u32>(b"cuStreamDestroy_v2\0").expect("it has it")(stream) }, 0);
    }

    /// Queues a copy, as a kernel of the caller would use the memory.
    fn copy(&self, to: Address, from: Address, bytes: usize, stream: Address) {
        type Copy = unsafe extern "C" fn(Address, Address, usize, Address) -> u32;
        // SAFETY: the driver's signature; live memory of the device.
        let code = unsafe { self.0.get::<Copy>(b"cuMemcpyDtoDAsync_v2\0").expect("it has it")(to, from, bytes, stream) };
        assert_eq!(code, 0);
    }
}

alone! {
    fn a_freed_block_is_reused_at_once_on_its_stream_and_on_no_other() {
        let (devices, double) = (Opened::cuda(), Double::new());
        for bytes in [64 * KIB, 3 * MIB] {
            let pool = devices.pool(Memory::Device, 0);
            let (a, b, from) = (devices.stream(), devices.stream(), pool.allocate(bytes, NULL));
            devices.fill(from, 1, bytes, a);
            let x = pool.allocate(bytes, a);
            double.hold(Step::Copy, 1);
            devices.copy(x, from, bytes, a);
            pool.free(x, a);
            let y = pool.allocate(bytes, a);
            assert_eq!(y, x, "the next work on the stream comes after the copy");
            devices.copy(from, y, bytes, a);
            pool.free(y, a);
            let other = pool.allocate(bytes, b);
            assert_ne!(other, x, "the copy on the other stream is not executed");
            devices.fill(other, 2, bytes, b);
            assert_eq!(double.executed(Step::Copy), 0, "no call has waited");
            double.hold(Step::Copy, 0);
            assert_eq!(devices.read(other, bytes, b), vec![2; bytes]);
            assert_eq!(devices.read(from, bytes, a), vec![1; bytes]);
            pool.free(other, b);
            pool.free(from, a);
            pool.close();
        }
    }

    fn a_block_is_valid_for_its_next_owner_after_a_failed_copy() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let (pool, a, mut host) = (devices.pool(Memory::Device, 0), devices.stream(), vec![7_u8; 64 * KIB]);
        let mut copy = |to_device: bool, address: Address| {
            let (place, bytes) = (host.as_mut_ptr().cast(), host.len() as u64);
            let (to, from, direction) =
                if to_device { (address, place, Direction::ToDevice) } else { (place, address, Direction::ToHost) };
            // SAFETY: open devices, live memory, and a vector that outlives the copies.
            unsafe { ringmem_copy(devices.0, 0, to, from, bytes, direction as i32, a) }
        };
        let x = pool.allocate(64 * KIB, a);
        double.reset();
        double.fail("cuMemcpyHtoDAsync_v2", 1, 999);
        assert_eq!(copy(true, x), Status::Ok, "its first call was made");
        // SAFETY: open devices and one of their streams.
        assert_eq!(unsafe { ringmem_stream_synchronize(devices.0, 0, a) }, Status::Driver);
        assert_ne!(copy(false, x), Status::Ok, "it was not written");
        pool.free(x, a);
        let y = pool.allocate(64 * KIB, a);
        assert_eq!(y, x);
        assert_eq!(copy(false, y), Status::Ok, "a kernel of its owner may have written it");
        devices.synchronize(a);
        pool.free(y, a);
    }

    fn a_recorded_stream_delays_the_reuse() {
        let (devices, double) = (Opened::cuda(), Double::new());
        for bytes in [64 * KIB, 3 * MIB] {
            let pool = devices.pool(Memory::Device, 0);
            let (a, b, to) = (devices.stream(), devices.stream(), pool.allocate(bytes, NULL));
            let x = pool.allocate(bytes, a);
            devices.fill(x, 3, bytes, a);
            devices.synchronize(a);
            double.hold(Step::Copy, 1);
            devices.copy(to, x, bytes, b);
            pool.record(x, b);
            pool.record(x, b);
            pool.free(x, a);
            let y = pool.allocate(bytes, a);
            assert_ne!(y, x, "the recorded stream still reads it");
            devices.fill(y, 4, bytes, a);
            assert_eq!(pool.statistics().live, 2);
            double.hold(Step::Copy, 0);
            devices.synchronize(b);
            let z = pool.allocate(bytes, a);
            assert_eq!(z, x, "its work is complete");
            assert_eq!(devices.read(to, bytes, b), vec![3; bytes]);
            for address in [y, z, to] {
                pool.free(address, a);
            }
            pool.close();
        }
    }

    fn a_stream_waits_for_the_work_of_another() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (a, b) = (devices.stream(), devices.stream());
        let [x, y] = [(); 2].map(|()| pool.allocate(MIB, a));
        devices.fill(x, 5, MIB, a);
        double.hold(Step::Copy, 1);
        devices.copy(y, x, MIB, a);
        // SAFETY: open devices and two of their streams.
        succeeds(unsafe { ringmem_stream_wait(devices.0, 0, b, a) });
        pool.record(x, b);
        devices.fill(x, 6, MIB, b);
        assert_eq!(double.executed(Step::Copy), 0, "no call has waited");
        // Without the wait, the fill would be executed meanwhile.
        release_copies();
        assert_eq!(devices.read(x, MIB, b), vec![6; MIB]);
        assert_eq!(devices.read(y, MIB, a), vec![5; MIB], "the fill came after the copy");
        pool.free(x, b);
        pool.free(y, a);
    }

    fn a_free_on_another_stream_delays_the_reuse() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (a, b, to) = (devices.stream(), devices.stream(), pool.allocate(KIB, NULL));
        let x = pool.allocate(KIB, a);
        double.hold(Step::Copy, 1);
        devices.fill(x, 5, KIB, b);
        devices.copy(to, x, KIB, b);
        pool.free(x, b);
        assert_ne!(pool.allocate(KIB, a), x);
        double.hold(Step::Copy, 0);
        devices.synchronize(b);
        assert_eq!(devices.read(to, KIB, b), vec![5; KIB]);
        std::mem::forget(pool);
    }

    fn trimmed_memory_is_freed_after_the_work_of_its_stream() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (a, from) = (devices.stream(), pool.allocate(MIB, NULL));
        let before = device_bytes();
        let x = pool.allocate(8 * MIB, a);
        assert_eq!(device_bytes() - before, 8 * MIB as u64);
        double.hold(Step::Copy, 1);
        devices.copy(x, from, MIB, a);
        pool.free(x, a);
        assert_eq!(pool.trim(0), 8 * MIB as u64);
        assert_eq!((device_bytes() - before, pool.statistics().reserved_bytes), (8 * MIB as u64, 10 * MIB as u64), "the copy may use it");
        double.hold(Step::Copy, 0);
        devices.synchronize(a);
        assert!(soon(|| pool.statistics().reserved_bytes == 2 * MIB as u64) && device_bytes() == before);
        pool.free(from, NULL);
    }

    fn memory_moves_after_the_work_of_its_stream() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 16 * MIB);
        let (a, from) = (devices.stream(), devices.pool(Memory::Device, 0));
        let source = from.allocate(MIB, NULL);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate(4 * MIB, a)).collect();
        devices.copy(blocks[0], source, MIB, a);
        pool.free(blocks[0], a);
        pool.free(blocks[2], a);
        devices.synchronize(a);
        let large = pool.allocate(8 * MIB, a);
        assert!(pool.statistics().moves > 0, "the work is complete");
        pool.free(large, a);
        let [x, y] = [pool.allocate(4 * MIB, a), pool.allocate(4 * MIB, a)];
        double.hold(Step::Copy, 1);
        devices.copy(x, source, MIB, a);
        pool.free(x, a);
        pool.free(y, a);
        pool.free(blocks[1], a);
        let PoolStatistics { moves, device_frees, .. } = pool.statistics();
        let (large, executed) = scope(|scope| {
            let releaser = scope.spawn(|| {
                let is_freed = soon(|| pool.statistics().device_frees > device_frees);
                let executed = Double::new().executed(Step::Copy);
                Double::new().hold(Step::Copy, 0);
                (is_freed, executed)
            });
            (pool.allocate(12 * MIB, a), releaser.join().expect("no panic"))
        });
        assert_eq!((executed, pool.statistics().moves), ((true, 0), moves), "freed, not moved, and had after the copy");
        for address in [blocks[3], large] {
            pool.free(address, a);
        }
        from.free(source, NULL);
    }

    fn an_allocation_waits_for_no_work_while_there_is_other_memory() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (a, from) = (devices.stream(), devices.pool(Memory::Device, 0));
        let source = from.allocate(MIB, NULL);
        let [x, y] = [pool.allocate(4 * MIB, a), pool.allocate(4 * MIB, a)];
        double.hold(Step::Copy, 1);
        devices.copy(x, source, MIB, a);
        pool.free(x, a);
        // The copy waits for this thread.
        let before = double.calls("cuEventQuery");
        let large = pool.allocate(6 * MIB, a);
        let queries = double.calls("cuEventQuery") - before;
        assert_eq!((double.executed(Step::Copy), pool.statistics().moves), (0, 0));
        assert!(queries < 100, "{queries} queries: it has waited");
        double.hold(Step::Copy, 0);
        devices.synchronize(a);
        for address in [y, large] {
            pool.free(address, a);
        }
        from.free(source, NULL);
    }

    fn at_the_limit_a_stream_takes_the_idle_memory_of_others_after_their_work() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 8 * MIB);
        let other = devices.pool(Memory::Device, 0);
        let (a, b, from) = (devices.stream(), devices.stream(), other.allocate(MIB, NULL));
        let x = pool.allocate(6 * MIB, a);
        assert_eq!(pool.try_allocate(6 * MIB, b), Err(Status::OutOfMemory));
        assert!(text().contains("6 MiB live, 6 MiB reserved, limit 8 MiB"), "{}", text());
        double.hold(Step::Copy, 1);
        devices.copy(x, from, MIB, a);
        pool.free(x, a);
        let releaser = spawn(release_copies);
        let y = pool.allocate(6 * MIB, b);
        releaser.join().expect("no panic");
        devices.fill(y, 7, 6 * MIB, b);
        assert_eq!(devices.read(y, 6 * MIB, b), vec![7; 6 * MIB]);
        let statistics = pool.statistics();
        assert_eq!((statistics.reserved_bytes, statistics.limit), (6 << 20, 8 << 20));
        assert!(statistics.reserved_peak <= statistics.limit, "also during the attempts");
        pool.free(y, b);
        other.free(from, NULL);
    }

    fn streams_of_the_caller_are_ordered_like_those_of_the_library() {
        let (devices, double, caller) = (Opened::cuda(), Double::new(), Caller::new());
        caller.bind();
        let pool = devices.pool(Memory::Device, 0);
        let b = devices.stream();
        // The second and third are the legacy default stream.
        for theirs in [caller.create(), NULL, std::ptr::without_provenance_mut(1)] {
            let (x, to) = (pool.allocate(MIB, theirs), pool.allocate(MIB, theirs));
            devices.fill(x, 9, MIB, b);
            devices.fill(to, 0, MIB, b);
            devices.synchronize(b);
            double.hold(Step::Copy, 1);
            caller.copy(to, x, MIB, theirs);
            pool.free(x, theirs);
            let y = pool.allocate(MIB, theirs);
            assert_eq!(y, x, "in the order of the stream");
            pool.record(y, b);
            pool.free(y, theirs);
            pool.record(to, theirs);
            assert_eq!(pool.trim(0), 0, "nothing is idle as a whole");
            double.hold(Step::Copy, 0);
            devices.synchronize(theirs);
            assert_eq!(devices.read(to, MIB, b), vec![9; MIB]);
            pool.free(to, if theirs.addr() == 1 { NULL } else { theirs });
            if theirs.addr() > 1 {
                // SAFETY: open devices, and a stream that no other call uses.
                succeeds(unsafe { ringmem_stream_forget(devices.0, 0, theirs) });
                caller.destroy(theirs);
            }
        }
    }

    fn a_forgotten_stream_may_be_destroyed_while_its_blocks_live() {
        let (devices, caller) = (Opened::cuda(), Caller::new());
        caller.bind();
        let pool = devices.pool(Memory::Device, 0);
        let (a, theirs) = (devices.stream(), caller.create());
        let (x, y) = (pool.allocate(3 * MIB, theirs), pool.allocate(3 * MIB, a));
        pool.record(y, theirs);
        // SAFETY: open devices, and a stream that no other call uses.
        succeeds(unsafe { ringmem_stream_forget(devices.0, 0, theirs) });
        caller.destroy(theirs);
        devices.fill(x, 1, 3 * MIB, a);
        pool.free(x, a);
        pool.free(y, a);
        assert_eq!((pool.statistics().live, pool.statistics().allocations), (0, 2), "also those of the forgotten stream");
        // SAFETY: open devices; a stream that was created here, and is used by no other call.
        succeeds(unsafe { ringmem_stream_destroy(devices.0, 0, a) });
        pool.trim(0);
        assert!(soon(|| pool.statistics().reserved_bytes == 0), "{:?}", pool.statistics());
    }

    fn pinned_and_managed_memory_is_reused_after_the_work_of_its_streams() {
        let (devices, double) = (Opened::cuda(), Double::new());
        for memory in [Memory::Pinned, Memory::Managed] {
            let pool = devices.pool(memory, 64 * MIB);
            let (a, device) = (devices.stream(), devices.pool(Memory::Device, 0));
            let to = device.allocate(MIB, a);
            let x = pool.allocate(MIB, a);
            // SAFETY: live memory of the host.
            unsafe { x.cast::<u8>().write_bytes(6, MIB) };
            if memory == Memory::Managed {
                pool.free(x, a);
                device.free(to, a);
                assert_eq!(pool.statistics().live, 0);
                continue;
            }
            double.hold(Step::Copy, 1);
            // SAFETY: live memory on both sides, which is used otherwise only after the copy.
            succeeds(unsafe { ringmem_capi::devices::ringmem_copy(devices.0, 0, to, x, MIB as u64, 0, a) });
            pool.free(x, a);
            let y = pool.allocate(MIB, a);
            assert_ne!(y, x, "the host would overwrite what the copy reads");
            // SAFETY: live memory of the host.
            unsafe { y.cast::<u8>().write_bytes(7, MIB) };
            double.hold(Step::Copy, 0);
            assert_eq!(devices.read(to, MIB, a), vec![6; MIB]);
            assert_eq!(pool.allocate(MIB, a), x, "the copy is complete");
            pool.free(x, a);
            pool.free(y, a);
            device.free(to, a);
            assert!(pool.trim(0) > 0 && pool.statistics().reserved_bytes == 0);
        }
    }

    fn work_that_a_caller_queues_on_a_stream_of_the_library_counts() {
        let (devices, double, caller) = (Opened::cuda(), Double::new(), Caller::new());
        caller.bind();
        let pool = devices.pool(Memory::Device, 0);
        let (a, b) = (devices.stream(), devices.stream());
        let (x, to, y) = (pool.allocate(MIB, a), pool.allocate(MIB, NULL), pool.allocate(8 * MIB, b));
        devices.fill(x, 1, MIB, a);
        devices.synchronize(a);
        double.hold(Step::Copy, 1);
        caller.copy(to, x, MIB, b);
        caller.copy(y, to, MIB, b);
        pool.record(x, b);
        pool.free(x, a);
        assert_ne!(pool.allocate(MIB, a), x, "the caller's copy reads it");
        let before = device_bytes();
        pool.free(y, b);
        pool.trim(0);
        assert_eq!((device_bytes(), double.executed(Step::Copy)), (before, 0), "the caller's copy writes it");
        double.hold(Step::Copy, 0);
        devices.synchronize(b);
        assert_eq!(double.executed(Step::Copy), 2, "the call has waited for both");
        std::mem::forget(pool);
    }

    fn a_new_stream_with_the_handle_of_a_destroyed_one_is_another_stream() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (a, from) = (devices.stream(), pool.allocate(4 * MIB, NULL));
        let blocks = [(); 2].map(|()| pool.allocate(4 * MIB, a));
        // SAFETY: open devices; a stream that was created here, and is used by no other call.
        succeeds(unsafe { ringmem_stream_destroy(devices.0, 0, a) });
        let b = devices.stream();
        assert_eq!(b, a, "the same handle");
        double.hold(Step::Copy, 1);
        blocks.iter().for_each(|block| devices.copy(*block, from, 4 * MIB, b));
        pool.free(blocks[0], b);
        pool.record(blocks[1], b);
        pool.free(blocks[1], NULL);
        pool.trim(0);
        let own = pool.allocate(4 * MIB, b);
        assert!(!blocks.contains(&own), "the copies are not executed");
        double.hold(Step::Copy, 0);
        devices.synchronize(b);
        pool.free(own, b);
        pool.free(from, b);
        assert_eq!(pool.statistics().live, 0);
    }

    fn a_stream_whose_work_may_not_be_complete_is_not_forgotten() {
        let (devices, double, caller) = (Opened::cuda(), Double::new(), Caller::new());
        caller.bind();
        let pool = devices.pool(Memory::Device, 0);
        let (theirs, a) = (caller.create(), devices.stream());
        let [x, to] = [(); 2].map(|()| pool.allocate(MIB, a));
        devices.synchronize(a);
        double.hold(Step::Copy, 1);
        caller.copy(to, x, MIB, theirs);
        pool.record(x, theirs);
        // As during another thread's capture of a graph: no error of the context.
        for symbol in ["cuEventQuery", "cuEventSynchronize", "cuStreamQuery"] {
            let calls = double.calls(symbol);
            (1..4_000).for_each(|number| double.fail(symbol, calls + number, 1));
        }
        // SAFETY: open devices, and a stream that no other call uses.
        assert_ne!(unsafe { ringmem_stream_forget(devices.0, 0, theirs) }, Status::Ok);
        double.reset();
        pool.free(x, a);
        assert_ne!(pool.allocate(MIB, a), x, "it is still recorded");
        double.hold(Step::Copy, 0);
        // SAFETY: open devices, and a stream that no other call uses.
        succeeds(unsafe { ringmem_stream_forget(devices.0, 0, theirs) });
        caller.destroy(theirs);
        std::mem::forget(pool);
    }

    fn a_free_while_a_stream_is_forgotten_uses_no_destroyed_stream() {
        let (devices, double, caller) = (Opened::cuda(), Double::new(), Caller::new());
        caller.bind();
        let pool = devices.pool(Memory::Device, 0);
        let (theirs, a) = (caller.create(), devices.stream());
        let [x, to] = [(); 2].map(|()| pool.allocate(MIB, a));
        pool.record(x, theirs);
        double.hold(Step::Copy, 1);
        caller.copy(to, x, MIB, theirs);
        std::thread::scope(|scope| {
            let raw = theirs.addr();
            let (devices, caller) = (&devices, &caller);
            let forgetting = scope.spawn(move || {
                // SAFETY: open devices, and a stream that no other call uses.
                succeeds(unsafe { ringmem_stream_forget(devices.0, 0, std::ptr::without_provenance_mut(raw)) });
                caller.bind();
                caller.destroy(std::ptr::without_provenance_mut(raw));
            });
            sleep(Duration::from_millis(20));
            pool.free(x, a);
            assert_ne!(pool.allocate(MIB, a), x, "the copy is not executed");
            double.hold(Step::Copy, 0);
            forgetting.join().expect("no panic");
        });
        for _ in 0..4 {
            pool.allocate(MIB, a);
            pool.trim(0);
        }
        std::mem::forget(pool);
    }

    fn the_idle_memory_of_a_forgotten_stream_is_not_lost() {
        let devices = Opened::cuda();
        let pool = devices.pool(Memory::Device, 64 * MIB);
        let (a, b) = (devices.stream(), devices.stream());
        let blocks: Vec<_> = (0..10).map(|_| pool.allocate(6 * MIB, a)).collect();
        // SAFETY: open devices; a stream that was created here, and is used by no other call.
        succeeds(unsafe { ringmem_stream_destroy(devices.0, 0, a) });
        blocks[1..].iter().for_each(|block| pool.free(*block, b));
        let statistics = pool.statistics();
        assert_eq!((statistics.live, statistics.idle_bytes), (1, 54 << 20));
        let large = pool.allocate(50 * MIB, b);
        assert_eq!(pool.statistics().allocations, 11);
        pool.free(large, b);
        assert_eq!(pool.trim(0), 50 << 20);
        pool.free(blocks[0], b);
        assert!(soon(|| pool.statistics().reserved_bytes == 0), "{:?}", pool.statistics());
        assert_eq!(pool.statistics().allocations, 11, "also of pools that have ended");
    }

    fn a_request_waits_for_blocks_that_only_wait_for_streams() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 8 * MIB);
        let (a, b, to) = (devices.stream(), devices.stream(), devices.pool(Memory::Device, 0));
        let (x, target) = (pool.allocate(6 * MIB, a), to.allocate(6 * MIB, a));
        double.hold(Step::Copy, 1);
        devices.copy(target, x, 6 * MIB, b);
        pool.record(x, b);
        pool.free(x, a);
        // Later than the end of a request that does not wait.
        let releaser = spawn(|| {
            sleep(Duration::from_secs(2));
            release_copies();
        });
        // Of another stream than both.
        let y = pool.allocate(6 * MIB, devices.stream());
        releaser.join().expect("no panic");
        pool.free(y, a);
        to.free(target, b);
    }

    fn slabs_that_are_freed_in_the_order_of_a_stream_are_waited_for() with("RINGMEM_DOUBLE_ATTRIBUTES" = "102=0") {
        let (devices, double) = (Opened::cuda(), Double::new());
        let (pool, other) = (devices.pool(Memory::Device, 40 * MIB), devices.pool(Memory::Device, 0));
        let (a, from) = (devices.stream(), other.allocate(MIB, NULL));
        let x = pool.allocate(20 * MIB, a);
        double.hold(Step::Copy, 1);
        devices.copy(x, from, MIB, a);
        pool.free(x, a);
        let releaser = spawn(release_copies);
        let y = pool.allocate(36 * MIB, a);
        releaser.join().expect("no panic");
        pool.free(y, a);
        other.free(from, NULL);
    }

    fn a_trim_during_work_asks_the_driver_a_few_times_for_each_handle() with("RINGMEM_DOUBLE_MEMORY" = 1_u64 << 30) {
        let (devices, double) = (Opened::cuda(), Double::new());
        let (pool, other) = (devices.pool(Memory::Device, 0), devices.pool(Memory::Device, 0));
        let (a, from) = (devices.stream(), other.allocate(MIB, NULL));
        let blocks: Vec<_> = (0..100).map(|_| pool.allocate(2 * MIB, a)).collect();
        double.hold(Step::Copy, 1);
        devices.copy(blocks[0], from, MIB, a);
        blocks.iter().for_each(|block| pool.free(*block, a));
        let before = double.calls("cuEventQuery");
        assert_eq!(pool.trim(0), 200 << 20);
        let queries = double.calls("cuEventQuery") - before;
        assert!(queries < 2_000, "{queries} queries for 100 handles");
        double.hold(Step::Copy, 0);
        devices.synchronize(a);
        other.free(from, NULL);
    }

    fn a_peer_accesses_the_memory_of_a_pool_once_that_is_enabled() with("RINGMEM_DOUBLE_DEVICES" = "2") {
        let (devices, caller) = (Opened::cuda(), Caller::new());
        let pool = devices.pool(Memory::Device, 0);
        let x = pool.allocate(MIB, NULL);
        // SAFETY: open devices.
        unsafe {
            succeeds(ringmem_devices_enable_peer(devices.0, 1, 0));
            assert_eq!(ringmem_devices_enable_peer(devices.0, 1, 7), Status::NoDevice);
        }
        let y = pool.allocate(3 * MIB, NULL);
        caller.bind();
        caller.copy(y, x, MIB, NULL);
        devices.synchronize(NULL);
        pool.free(x, NULL);
        pool.free(y, NULL);
    }
}
