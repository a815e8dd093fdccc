use core::alloc::Layout;
use std::time::Instant;

use ringmem::backend::Uses;
use ringmem::memory::{Device, Memory};
use ringmem::pool::Pool;

use super::{Rig, Subject, Workload};
use crate::report::Failure;

pub fn warm(rig: &Rig, name: &'static str) -> Result<(), Failure> {
    let bytes = match name {
        "pool-64K" => 64 << 10,
        "pool-1M" => 1 << 20,
        "pool-1G" => 1 << 30,
        _ => 100 << 20,
    };
    let layout = Layout::from_size_align(bytes, 1)?;
    let device = Device::new(&rig.backend, 0);
    let pool = Pool::builder(device.clone()).build()?;
    let stream = rig.gpu.stream()?;
    let subjects = vec![
        Subject { name: "ringmem Pool", turn: Box::new(move || each(&pool, layout, 10_000)) },
        Subject { name: "backend", turn: Box::new(move || each(&device, layout, 10)) },
        Subject { name: "cuMemAllocAsync", turn: Box::new(|| timed(100, || rig.gpu.ordered_block(bytes, &stream))) },
        Subject { name: "cuMemAlloc", turn: Box::new(|| timed(10, || rig.gpu.free(rig.gpu.alloc(bytes)?))) },
    ];
    rig.measure(Workload { name, unit: "ns/block", aim: 0.05, subjects })
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
