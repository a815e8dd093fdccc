//! A script of calls in which each call of the driver fails once.

use ringmem_capi::pool::Memory;
use ringmem_capi::status::Status;

use crate::rig::{Double, eventually, soon};
use crate::{Address, KIB, MIB, Opened, Opening, alone};

/// Allocates on two streams, records up to six, frees and trims; every call may fail. Afterwards no block is live.
fn script(devices: &Opened, pool: &Opening, streams: [Address; 6]) {
    let mut live: Vec<(Address, Address)> = Vec::new();
    for (number, bytes) in [100, 300 * KIB, 2 * MIB, 5 * MIB, KIB, 900 * KIB].into_iter().cycle().take(40).enumerate() {
        let stream = streams[number % 2];
        if let Ok(address) = pool.try_allocate(bytes, stream) {
            // SAFETY: open devices, and live memory; the free below names the stream.
            let _ = unsafe { ringmem_capi::devices::ringmem_fill(devices.0, 0, address, number as u8, bytes as u64, stream) };
            live.push((address, stream));
        }
        if number % 3 == 1
            && let Some((address, _)) = live.last()
        {
            // More streams than a block has positions for: then one waits for others.
            for stream in streams.iter().take(if number % 2 == 0 { 2 } else { 6 }) {
                // SAFETY: an open pool; a live block and a live stream.
                let _ = unsafe { ringmem_capi::pool::ringmem_pool_record_stream(pool.0, *address, *stream) };
            }
        }
        if live.len() > 4 {
            let (address, stream) = live.swap_remove(number % 4);
            // SAFETY: an open pool; a block whose work is queued on its stream.
            if unsafe { ringmem_capi::pool::ringmem_pool_free(pool.0, address, stream) } != Status::Ok {
                live.push((address, stream));
            }
        }
        if number % 11 == 10 {
            pool.trim(4 * MIB);
        }
    }
    assert_eq!(pool.statistics().live, live.len() as u64);
    for (address, stream) in live {
        let mut tries = 0;
        // SAFETY: an open pool; a block whose work is queued on its stream.
        while unsafe { ringmem_capi::pool::ringmem_pool_free(pool.0, address, stream) } != Status::Ok {
            tries += 1;
            assert!(tries < 10, "{}", crate::text());
        }
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.live_bytes), (0, 0));
}

alone! {
    fn a_failure_of_any_driver_call_is_a_status_and_loses_no_block() with("RINGMEM_DOUBLE_MEMORY" = 64 << 20) {
        let (devices, double) = (Opened::cuda(), Double::new());
        let streams = [(); 6].map(|()| devices.stream());
        for symbol in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuEventRecord", "cuEventQuery",
            "cuStreamWaitEvent", "cuStreamQuery", "cuMemGetInfo_v2"]
        {
            // Returns the calls of the symbol.
            let run = |number: u64, code| {
                // The counts begin anew.
                double.reset();
                if number > 0 {
                    double.fail(symbol, number, code);
                }
                let pool = devices.pool(Memory::Device, 24 * MIB);
                script(&devices, &pool, streams);
                // Once the streams are complete, all memory is free, but for what a failure has lost.
                let is_freed = || {
                    pool.trim(0);
                    pool.statistics().reserved_bytes == 0
                };
                if number == 0 {
                    eventually("all memory is free", is_freed);
                } else {
                    soon(is_freed);
                }
                pool.close();
                double.calls(symbol)
            };
            let calls = run(0, 0);
            assert!(calls > 0, "{symbol}");
            for number in (1..=calls).step_by(1 + calls as usize / 6) {
                // OUT_OF_MEMORY, and an error that is not final.
                for code in [2, 1] {
                    run(number, code);
                }
            }
        }
    }

    fn threads_share_a_pool() {
        let devices = Opened::cuda();
        let pool = devices.pool(Memory::Device, 0);
        let streams: Vec<usize> = (0..4).map(|_| devices.stream().addr()).chain([0]).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (pool, devices, streams) = (&pool, &devices, &streams);
                scope.spawn(move || {
                    let stream = |number: usize| -> Address { std::ptr::without_provenance_mut(streams[number % streams.len()]) };
                    let mut live = Vec::new();
                    for number in 0..400 {
                        let bytes = [500, 70 * KIB, 3 * MIB][(number + thread) % 3];
                        let own = stream(number % 4 + thread);
                        let address = pool.allocate(bytes, own);
                        if !own.is_null() {
                            devices.fill(address, thread as u8, bytes, own);
                        }
                        if number % 5 == 0 {
                            pool.record(address, stream(number));
                        }
                        live.push((address, own));
                        if live.len() > 6 {
                            let (address, own) = live.swap_remove(number % 6);
                            pool.free(address, own);
                        }
                        if number % 97 == 0 {
                            pool.trim(MIB);
                        }
                    }
                    live.into_iter().for_each(|(address, own)| pool.free(address, own));
                });
            }
        });
        let statistics = pool.statistics();
        assert_eq!((statistics.live, statistics.live_bytes, statistics.allocations), (0, 0, 1600));
    }
}
