//! Rings, bytes and limits of hosts whose GPUs all send to each other. Rates are from the link model or an assumption below.
//!
//! `cargo run --release --features std --example 09_scale`

use ringmem::backend::host::{HostBackend, Link};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::ring::{RingHeader, RingLayout};
use ringmem::stream::Stream;
use ringmem::{ControlBlock, Result, TelemetryBuffer};

const HOSTS: u64 = 1000;
const GPUS: u64 = 8;
const CAPACITY: u64 = 1024;
/// Each host's NIC of 100 Gbit/s, in bytes per ns.
const NIC: f64 = 12.5;

/// Returns the rate in bytes per ns of successive copies of `bytes` from a device to its host.
fn rate(link: &Link, bytes: usize) -> Result<f64> {
    const COPIES: u64 = 4;
    let backend = HostBackend::builder().link(link.clone()).build()?;
    let stream = Stream::new(&backend, 0)?;
    let mut buffers = (GpuBuffer::<u8>::new(Device::new(&backend, 0), bytes)?, PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), bytes)?);
    for _ in 0..COPIES {
        buffers = stream.copy(buffers.0, buffers.1)?.wait()?;
    }
    let taken = backend.model_now().unwrap_or_default();
    Ok((COPIES * bytes as u64) as f64 / taken as f64)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let link = Link::default();
    println!("assumed: {HOSTS} hosts of {GPUS} GPUs, rings of {CAPACITY} messages of 64 bytes, a NIC of {NIC} GB/s per host and direction");
    println!("link model: {} us per copy, {} GB/s per GPU and direction", link.latency_ns / 1000, link.pinned);

    let ring = RingLayout::of::<[u64; 8]>(CAPACITY)?.size();
    let header = size_of::<RingHeader>() as u64;
    let channel = 2 * header + size_of::<ControlBlock>() as u64 + size_of::<TelemetryBuffer>() as u64;
    println!("\nheaders of a ring {header} bytes, of a channel {channel} bytes; a ring with its slots {ring} bytes");

    let others = HOSTS - 1;
    let pairs_of_gpus = GPUS * GPUS * others;
    println!("\n{:<26}{:>12}{:>16}{:>14}{:>12}", "between hosts", "rings/host", "headers/host", "bytes/host", "senders");
    for (what, pairs) in [("a ring per pair of GPUs", pairs_of_gpus), ("a ring per pair of hosts", others)] {
        let rings = 2 * pairs;
        let [headers, bytes] = [header, ring].map(|each| (rings * each) as f64 / 1e6);
        println!("{what:<26}{rings:>12}{headers:>13.1} MB{bytes:>11.1} MB{:>12}", HOSTS * pairs);
    }

    println!("\n{:>14}{:>14}{:>14}{:>14}   first limit", "bytes a copy", "GB/s a GPU", "GB/s of all", "GB/s of NIC");
    for bytes in [64, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 1 << 20] {
        let one = rate(&link, bytes)?;
        let all = one * GPUS as f64;
        println!("{bytes:>14}{one:>14.3}{all:>14.3}{NIC:>14.1}   {}", if all < NIC { "PCIe link" } else { "NIC" });
    }
    Ok(())
}
