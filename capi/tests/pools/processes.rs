//! Forks, exits and programs in other languages.

use crate::rig::Alone;
use crate::{KIB, MIB, NULL, Opened, alone, holds_in_a_forked_child, text};
use ringmem_capi::devices::{Direction, ringmem_copy, ringmem_fill};
use ringmem_capi::pool::{Memory, ringmem_pool_close, ringmem_pool_free};
use ringmem_capi::status::Status;

alone! {
    fn a_forked_child_allocates_nothing_and_frees_nothing() {
        let devices = Opened::cuda();
        let pool = devices.pool(Memory::Device, 0);
        let (stream, other) = (devices.stream(), devices.pool(Memory::Pinned, 0));
        let (x, y) = (pool.allocate(MIB, stream), other.allocate(KIB, stream));
        holds_in_a_forked_child(|| {
            // SAFETY: live blocks of open pools.
            let freed = unsafe { [ringmem_pool_free(pool.0, x, stream), ringmem_pool_free(other.0, y, stream)] };
            let refused = [pool.try_allocate(KIB, stream), other.try_allocate(KIB, NULL)];
            let is_right = freed == [Status::Ok; 2] && refused == [Err(Status::Unsupported); 2] && text().contains("parent process");
            // SAFETY: open devices, and two parts of a live block that nothing else uses.
            let queued = unsafe {
                let end = x.wrapping_byte_add(KIB);
                let copied = ringmem_copy(devices.0, 0, x, end, KIB as u64, Direction::OnDevice as i32, stream);
                [(copied, text()), (ringmem_fill(devices.0, 0, x, 1, KIB as u64, stream), text())]
            };
            let is_right = is_right && queued.iter().all(|(status, text)| *status == Status::Unsupported && text.contains("parent process"));
            let is_empty = pool.trim(0) == 0 && pool.statistics().live == 0;
            // SAFETY: open, and not used in this process afterwards.
            let closed = unsafe { [ringmem_pool_close(pool.0), ringmem_pool_close(other.0)] };
            is_right && is_empty && closed == [Status::Ok; 2]
        });
        assert_eq!((pool.statistics().live, other.statistics().live), (1, 1));
        pool.free(x, stream);
        other.free(y, stream);
    }
}

#[test]
fn a_process_may_exit_with_live_blocks() {
    let alone = Alone::new(concat!(module_path!(), "::a_process_may_exit_with_live_blocks"));
    if alone.is_here() {
        let devices = Opened::cuda();
        let pool = devices.pool(Memory::Device, 0);
        let stream = devices.stream();
        let block = pool.allocate(MIB, stream);
        devices.fill(block, 1, MIB, stream);
        std::mem::forget(pool);
        std::process::exit(0);
    }
    let said = alone.run();
    assert!(!said.contains("violation"), "{said}");
}
