//! A pool over an address range of the driver.

use ringmem::Error;
use ringmem::config::Config;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::pool::{Pool, Pools};
use ringmem::stream::Stream;

use crate::busy_stream::Held;
use crate::rig::{self, Double, alone};

const MIB: usize = 1 << 20;

type Bytes = ringmem::memory::Buffer<u8, Pool<Device>>;

alone! {
    fn a_pool_maps_and_moves_its_memory() {
        let (backend, double) = (rig::open(), Double::new());
        let pool = Pool::builder(Device::new(&backend, 0)).limit(32 * MIB as u64).build().expect("a pool");
        let before = double.calls("cuMemAllocFromPoolAsync");
        let mut blocks: Vec<_> = (0..8).map(|_| Some(Bytes::new(pool.clone(), 4 * MIB).expect("room"))).collect();
        assert_eq!((double.calls("cuMemAddressReserve"), double.calls("cuMemCreate"), double.calls("cuMemAllocFromPoolAsync")), (1, 16, before));
        for (number, block) in blocks.iter_mut().flatten().enumerate() {
            block.fill(number as u8).expect("live");
        }
        blocks.iter_mut().step_by(2).for_each(|block| *block = None);
        let mut large = Bytes::new(pool.clone(), 16 * MIB).expect("four holes");
        assert_eq!((double.calls("cuMemUnmap"), double.calls("cuMemCreate")), (8, 16));
        large.fill(9).expect("mapped as a whole");
        assert!(large.to_vec().expect("live").iter().all(|&byte| byte == 9));
        for (number, block) in blocks.iter().enumerate().filter_map(|(number, block)| Some((number, block.as_ref()?))) {
            assert!(block.to_vec().expect("live").iter().all(|&byte| byte == number as u8), "block {number}");
        }
        drop((blocks, large));
        assert_eq!((pool.trim_to(0), double.calls("cuMemRelease")), (32 * MIB as u64, 16));
        drop(pool);
        assert_eq!((backend.waiting(), double.calls("cuMemAddressFree")), (0, 1), "at the next call");
    }

    fn under_a_kernel_a_pool_grows_by_slabs() {
        let (backend, double) = (rig::open(), Double::new());
        let pool = Pool::builder(Device::new(&backend, 0)).limit(64 * MIB as u64).build().expect("a pool");
        let first = Bytes::new(pool.clone(), 3 * MIB).expect("room");
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let mapped = double.calls("cuMemMap");
        let mut second = Bytes::new(pool.clone(), 3 * MIB).expect("room");
        second.fill(5).expect("live");
        assert_eq!((double.calls("cuMemMap"), pool.statistics().reserved_bytes), (mapped, 36 * MIB as u64), "two granules twice, and a slab");
        drop(first);
        assert_eq!(pool.trim_to(0), 0, "the driver might wait for the kernel");
        drop(held);
        stream.synchronize().expect("the kernel has ended");
        assert_eq!(pool.trim_to(0), 4 * MIB as u64);
        assert!(second.to_vec().expect("live").iter().all(|&byte| byte == 5));
        drop(second);
        assert_eq!(pool.trim_to(0), 32 * MIB as u64);
    }

    fn batch_bytes_can_be_allocated_under_a_kernel() {
        let backend = rig::open();
        let pools = Pools::new(&backend, 0, &Config::host()).expect("a configuration");
        let first = pools.buffer::<u8>(3 * MIB).expect("room");
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        drop(pools.buffer::<u8>(3 * MIB).expect("a slab"));
        // Of the limit of 64 MiB the first buffer has two granules. The slab can be freed for a longer one.
        let hint = pools.batch_bytes(u64::MAX).expect("known");
        assert_eq!(hint, 60 * MIB as u64 / 5 * 4);
        drop(pools.buffer::<u8>(hint as usize).expect("as much as was said"));
        drop((first, held));
    }

    fn a_device_without_mapping_has_slabs() with("RINGMEM_DOUBLE_ATTRIBUTES" = "102=0") {
        let (backend, double) = (rig::open(), Double::new());
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        drop(Bytes::new(pool.clone(), 100).expect("room"));
        assert_eq!((double.calls("cuMemAddressReserve"), pool.statistics().reserved_bytes), (0, 32 * MIB as u64));
    }

    fn each_failing_call_of_a_pool_s_growth_loses_nothing() {
        let (backend, double) = (rig::open(), Double::new());
        for (call, code) in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"].into_iter().flat_map(|call| [(call, 2), (call, 999)]) {
            for nth in 1..6 {
                let pool = Pool::builder(Device::new(&backend, 0)).limit(16 * MIB as u64).build().expect("a pool");
                double.reset();
                double.fail(call, nth, code);
                let mut live: Vec<Bytes> = Vec::new();
                for round in 0..12 {
                    match Bytes::new(pool.clone(), (2 + round % 5) * MIB) {
                        Ok(block) => live.push(block),
                        Err(Error::OutOfMemory { .. } | Error::Driver { .. }) => {}
                        Err(error) => panic!("{call} {nth}: {error}"),
                    }
                    if live.len() > 2 {
                        live.remove(round % 2);
                    }
                }
                double.reset();
                drop(live);
                pool.trim_to(0);
                let whole = Bytes::new(pool.clone(), 14 * MIB).unwrap_or_else(|error| panic!("{call} {nth}: {error}"));
                drop(whole);
            }
        }
        drop(GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room"));
    }
}
