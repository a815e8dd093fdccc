use core::alloc::Layout;
use std::time::Instant;

use ringmem::backend::Uses;
use ringmem::memory::{Device, Memory};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use super::{Failure, Outcome, Rig, Subject, Workload};

pub(super) fn warm(rig: &Rig, name: &'static str, run: impl FnOnce(Workload<'_>) -> Outcome) -> Outcome {
    let bytes = match name {
        "pool-64K" => 64 << 10,
        "pool-1M" => 1 << 20,
        "pool-1G" => 1 << 30,
        _ => 100 << 20,
    };
    let layout = Layout::from_size_align(bytes, 1).map_err(Failure::fact)?;
    let device = Device::new(&rig.backend, rig.device);
    let pool = Pool::builder(device.clone()).build()?;
    let stream = Stream::new(&rig.backend, rig.device)?;
    // The host backend zeroes blocks: half a second for the largest.
    let few = if bytes > 1 << 20 { 1 } else { 10 };
    let mut subjects = vec![
        Subject { name: "ringmem Pool", turn: Box::new(move || each(&pool, layout, 10_000)) },
        Subject { name: "backend", turn: Box::new(move || each(&device, layout, few)) },
    ];
    if let Some(driver) = &rig.driver {
        let ordered = || timed(100, || driver.ordered_block(bytes, stream.id()));
        subjects.push(Subject { name: "cuMemAllocAsync", turn: Box::new(ordered) });
        subjects.push(Subject { name: "cuMemAlloc", turn: Box::new(|| timed(few, || driver.block(bytes))) });
    }
    run(Workload { name, unit: "ns/block", aim: Some(0.05), subjects })
}

fn each<M: Memory>(memory: &M, layout: Layout, times: u32) -> Result<f64, Failure> {
    timed(times, || {
        let block = memory.alloc(layout, None)?;
        if let Some(ready) = block.ready {
            memory.backend().wait(ready, None)?;
        }
        // SAFETY: freed once, unused.
        unsafe { memory.free(&block, &Uses::NONE) }
    })
}

fn timed(times: u32, mut run: impl FnMut() -> ringmem::Result<()>) -> Result<f64, Failure> {
    let begun = Instant::now();
    for _ in 0..times {
        run()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(times))
}
