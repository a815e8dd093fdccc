//! NVIDIA's cuda-core and cuda-async 0.5.

use std::alloc::Layout;
use std::error::Error;
use std::mem::forget;
use std::sync::Arc;

use cuda_async::device_operation::{DeviceOp, with_context};
use cuda_core::{Context, DeviceBuffer, Stream};
use ringmem::backend::{Backend, DeviceAddress, Uses};
use ringmem::memory::{Device, GpuBuffer};
use ringmem_interop::{ELEMENTS, increment, open, queue_fill};

type Tested = Result<(), Box<dyn Error>>;

#[test]
fn the_primary_context_is_shared() -> Tested {
    let backend = open()?;
    assert_eq!(backend.raw_context(0)?.addr(), Context::new(0)?.cu_ctx().addr());
    Ok(())
}

#[test]
fn an_adopted_stream_orders_fill_and_read_back() -> Tested {
    let backend = open()?;
    let stream = Context::new(0)?.new_stream()?;
    // SAFETY: the second argument owns the stream.
    let id = unsafe { backend.adopt_raw_stream(0, stream.cu_stream().cast(), Box::new(Arc::clone(&stream))) }?;
    let theirs = DeviceBuffer::<u32>::zeroed(&stream, ELEMENTS)?;
    let address = theirs.cu_deviceptr();
    // SAFETY: the buffer outlives the test; its stream orders accesses.
    let block = unsafe { backend.adopt(0, DeviceAddress::new(address), Layout::new::<[u32; ELEMENTS]>(), Box::new(())) }?;
    queue_fill(&backend, id, address, 7)?;
    assert_eq!(theirs.to_host_vec(&stream)?, [7; ELEMENTS]);
    // SAFETY: a live block, unused since the copy.
    unsafe { backend.free(&block, &Uses::NONE) }?;
    backend.close_stream(id);
    backend.memory_info(0)?;
    assert_eq!(Arc::strong_count(&stream), 1, "closing the stream drops its owner");
    Ok(())
}

#[test]
fn memory_is_shared_in_both_directions() -> Tested {
    let backend = open()?;
    let context = Context::new(0)?;
    let stream = context.new_stream()?;
    let theirs = Arc::new(DeviceBuffer::from_host(&stream, &[41_u32; ELEMENTS])?);
    assert_eq!(increment(&backend, theirs.cu_deviceptr(), Box::new(Arc::clone(&theirs)))?, [42; ELEMENTS]);
    assert_eq!(Arc::strong_count(&theirs), 1, "freeing the block drops its owner");

    let ours = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[5; ELEMENTS])?;
    let address = ours.device_address().ok_or("device memory has an address")?.get();
    // SAFETY: `ELEMENTS` words of the primary context; forgotten below, so freed once.
    let view = unsafe { DeviceBuffer::<u32>::from_raw_parts(address, ELEMENTS, context) };
    let words = view.to_host_vec(&stream);
    forget(view);
    assert_eq!(words?, [5; ELEMENTS]);
    Ok(())
}

#[test]
fn cuda_async_operations_run_on_ringmem_streams() -> Tested {
    let backend = open()?;
    let context = Context::new(0)?;
    let id = backend.open_stream(0)?;
    // SAFETY: the stream outlives it.
    let stream = unsafe { Stream::borrow_raw(backend.raw_stream(id)?.cast(), &context) };
    let ours = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[3; ELEMENTS])?;
    let address = ours.device_address().ok_or("device memory has an address")?.get();
    let bytes = size_of::<[u32; ELEMENTS]>();
    let cleared = with_context(move |now| {
        // SAFETY: the buffer is live until the wait, otherwise unused.
        cuda_async::device_operation::value(unsafe {
            cuda_core::memory::memset_d8_async(address, 1, bytes, now.get_cuda_stream().cu_stream())
        })
    });
    cleared.sync_on(&stream)??;
    assert_eq!(ours.to_vec()?, [0x0101_0101; ELEMENTS]);
    drop(stream);
    backend.close_stream(id);
    Ok(())
}
