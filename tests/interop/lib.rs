//! Shared by both libraries' tests. `.ci/run interop` runs them on the driver double.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use ringmem::Result;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Address, Backend, Copy, DeviceAddress, Fill, StreamId, Uses};

pub const ELEMENTS: usize = 16;

pub fn open() -> Result<Arc<CudaBackend>> {
    CudaBackend::open()
}

/// Queues a fill of `ELEMENTS` words; the stream's owner waits.
pub fn queue_fill(backend: &CudaBackend, stream: StreamId, address: u64, value: u32) -> Result<()> {
    let fill = Fill::of(Address::Device(DeviceAddress::new(address)), value, ELEMENTS as u64);
    // SAFETY: the caller's memory, otherwise unused until the caller waited.
    unsafe { backend.fill(&fill, stream) }.map(drop)
}

/// Adopts another library's `ELEMENTS` words, adds one to each, and frees the block, which drops `keeps`.
pub fn increment(backend: &CudaBackend, address: u64, keeps: Box<dyn Send + Sync>) -> Result<Vec<u32>> {
    let mut words = vec![0_u32; ELEMENTS];
    let host = Address::Host(NonNull::from(words.as_mut_slice()).cast());
    let device = Address::Device(DeviceAddress::new(address));
    let bytes = size_of_val(words.as_slice()) as u64;
    // SAFETY: `keeps` owns the otherwise unused memory.
    let block = unsafe { backend.adopt(0, DeviceAddress::new(address), Layout::for_value(words.as_slice()), keeps) }?;
    // SAFETY: both are live; a blocking copy.
    unsafe { backend.copy_now(&Copy { to: host, from: device, bytes }) }?;
    for word in &mut words {
        *word += 1;
    }
    // SAFETY: both are live; a blocking copy.
    unsafe { backend.copy_now(&Copy { to: device, from: host, bytes }) }?;
    // SAFETY: a live, unused block.
    unsafe { backend.free(&block, &Uses::NONE) }?;
    Ok(words)
}
