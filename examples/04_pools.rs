//! A device's pools, configured once, and their memory: used, available and total.
//!
//! `cargo run --release --features std --example 04_pools`

use std::error::Error;

use ringmem::backend::host::HostBackend;
use ringmem::config::Config;
use ringmem::pool::{Pools, configure};

const MIB: f64 = (1 << 20) as f64;

fn show(when: &str, pools: &Pools) -> Result<(), Box<dyn Error>> {
    let info = pools.backend().memory_info(pools.ordinal())?.ok_or("nobody knows how much memory the device has")?;
    let [used, available, total] = [info.used(), info.free, info.total].map(|bytes| bytes as f64 / MIB);
    let pool = pools.device().statistics();
    let [live, kept] = [pool.held_bytes, pool.reserved_bytes - pool.held_bytes].map(|bytes| bytes as f64 / MIB);
    println!(
        "{when:<22} used {used:6.1} MiB  available {available:6.1} MiB  total {total:6.1} MiB  (pool: {live:.1} live, {kept:.1} kept)"
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let backend = HostBackend::builder().device_memory(256 << 20).build()?;
    // Once per program; `pool::global()` returns the same pools.
    let pools = configure(&backend, 0, &Config::host().with_pool_bytes(128 << 20))?;
    show("at first", pools)?;

    // At most four fifths: the rest is a reserve for unaccounted allocations.
    println!("a batch of 1 GiB becomes {:.1} MiB", pools.batch_bytes(1 << 30)? as f64 / MIB);

    let weights = pools.buffer::<f32>(10 << 20)?;
    show("with 40 MiB of weights", pools)?;

    let before = pools.device().statistics().memory_allocations;
    let elements = vec![1.5; 1 << 20];
    for _ in 0..100 {
        pools.buffer::<f32>(elements.len())?.copy_from(&elements)?;
    }
    println!("100 batches: {} allocations", pools.device().statistics().memory_allocations - before);
    show("after 100 batches", pools)?;

    drop(weights);
    show("without the weights", pools)?;
    println!("trimmed: {:.1} MiB", pools.device().trim_to(0) as f64 / MIB);
    show("after trimming", pools)
}
