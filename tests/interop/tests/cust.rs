//! cust 0.3, Rust-CUDA's driver library.

use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::memory::{AsyncCopyDestination, CopyDestination, DeviceBuffer, DevicePointer};
use cust::stream::{Stream, StreamFlags};
use ringmem::backend::Backend;
use ringmem::memory::GpuBuffer;
use ringmem_interop::{ELEMENTS, increment, open, queue_fill};

struct Sendable<T>(T);

// SAFETY: the driver's handles belong to no thread.
unsafe impl<T> Send for Sendable<T> {}
// SAFETY: the driver locks its handles.
unsafe impl<T> Sync for Sendable<T> {}

type Tested = Result<(), Box<dyn Error>>;

fn context() -> Result<Context, Box<dyn Error>> {
    cust::init(cust::CudaFlags::empty())?;
    let context = Context::new(Device::get_device(0)?)?;
    CurrentContext::set_current(&context)?;
    Ok(context)
}

#[test]
fn the_primary_context_is_shared() -> Tested {
    let backend = open()?;
    let context = context()?;
    assert_eq!(backend.raw_context(0)?.addr(), context.as_raw().addr());
    Ok(())
}

#[test]
fn an_adopted_stream_orders_cust_and_ringmem_operations() -> Tested {
    let _context = context()?;
    let backend = open()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let raw = stream.as_inner();
    let keeps = Arc::new(Sendable(stream));
    // SAFETY: `keeps` owns the stream.
    let id = unsafe { backend.adopt_raw_stream(0, raw.cast(), Box::new(Arc::clone(&keeps))) }?;
    let mut ours = GpuBuffer::<u32>::new(ringmem::memory::Device::new(&backend, 0), ELEMENTS)?;
    let address = ours.device_address().ok_or("device memory has an address")?.get();
    // SAFETY: `ELEMENTS` words of the primary context; cust's copy waits for the stream.
    let view = ManuallyDrop::new(unsafe { DeviceBuffer::<u32>::from_raw_parts(DevicePointer::from_raw(address), ELEMENTS) });
    queue_fill(&backend, id, address, 7)?;
    let mut words = [0; ELEMENTS];
    // SAFETY: `words` outlives the wait for the stream.
    unsafe { view.async_copy_to(&mut words, &keeps.0) }?;
    keeps.0.synchronize()?;
    assert_eq!(words, [7; ELEMENTS]);
    ours.fill(0)?;
    backend.close_stream(id);
    backend.memory_info(0)?;
    assert_eq!(Arc::strong_count(&keeps), 1, "closing the stream drops its owner");
    Ok(())
}

#[test]
fn memory_is_shared_in_both_directions() -> Tested {
    let _context = context()?;
    let backend = open()?;
    let theirs = DeviceBuffer::from_slice(&[41_u32; ELEMENTS])?;
    let address = theirs.as_device_ptr().as_raw();
    let keeps = Arc::new(Sendable(theirs));
    assert_eq!(increment(&backend, address, Box::new(Arc::clone(&keeps)))?, [42; ELEMENTS]);
    assert_eq!(Arc::strong_count(&keeps), 1, "freeing the block drops its owner");

    let ours = GpuBuffer::<u32>::from_slice(ringmem::memory::Device::new(&backend, 0), &[5; ELEMENTS])?;
    let address = ours.device_address().ok_or("device memory has an address")?.get();
    // SAFETY: `ELEMENTS` words of the primary context, not freed by cust.
    let view = ManuallyDrop::new(unsafe { DeviceBuffer::<u32>::from_raw_parts(DevicePointer::from_raw(address), ELEMENTS) });
    let mut words = [0; ELEMENTS];
    view.copy_to(&mut words)?;
    assert_eq!(words, [5; ELEMENTS]);
    Ok(())
}
