//! An all-reduce over one buffer per device: cudarc's NCCL on adopted streams, at the addresses of ringmem's buffers.
//!
//! The backend and NCCL queue on the same streams, so the reduction follows the fill and precedes the copy without an event. It needs NCCL 2.18 or
//! later. CI compiles this program; it has not run on GPUs.

use std::error::Error;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, ReduceOp, group_end, group_start};
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Address, Backend, Copy, Fill, StreamId};
use ringmem::memory::{Device, GpuBuffer};

const ELEMENTS: usize = 1 << 20;

struct Rank {
    stream: StreamId,
    values: GpuBuffer<f32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let backend = CudaBackend::open()?;
    let devices = 0..backend.devices();
    let streams: Vec<Arc<CudaStream>> =
        devices.clone().map(|device| Ok(backend.context(device)?.new_stream()?)).collect::<Result<_, Box<dyn Error>>>()?;
    // Before the first kernel: NCCL synchronises the devices here.
    let communicators = Comm::from_devices(streams.clone()).map_err(|error| format!("ncclCommInitAll: {:?}", error.0))?;

    let mut ranks = Vec::new();
    for (device, stream) in devices.zip(&streams) {
        let values = GpuBuffer::<f32>::new(Device::new(&backend, device), ELEMENTS)?;
        let rank = Rank { stream: backend.adopt_stream(stream)?, values };
        let fill = Fill::of(Address::Device(rank.address()?), (device + 1) as f32, ELEMENTS as u64);
        // SAFETY: `fill` covers the rank's buffer, which lives and is used by this stream alone until `close_stream` below.
        unsafe { backend.fill(&fill, rank.stream) }?;
        ranks.push(rank);
    }

    // One thread queues for all ranks: NCCL starts them together at the end of the group.
    group_start().map_err(|error| format!("ncclGroupStart: {:?}", error.0))?;
    for ((rank, communicator), stream) in ranks.iter().zip(&communicators).zip(&streams) {
        // SAFETY: the address of `ELEMENTS` initialised floats in this device's memory; `leak` keeps cudarc from freeing them.
        let mut slice = unsafe { stream.upgrade_device_ptr::<f32>(rank.address()?.get(), ELEMENTS) };
        let reduced = communicator.all_reduce_in_place(&mut slice, &ReduceOp::Sum);
        slice.leak();
        reduced.map_err(|error| format!("ncclAllReduce: {:?}", error.0))?;
    }
    group_end().map_err(|error| format!("ncclGroupEnd: {:?}", error.0))?;

    let expected = (1..=ranks.len()).sum::<usize>() as f32;
    for (device, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
        let mut sums = vec![0.0_f32; ELEMENTS];
        let to = Address::Host(NonNull::from(sums.as_mut_slice()).cast());
        let copy = Copy { to, from: Address::Device(rank.address()?), bytes: size_of_val(sums.as_slice()) as u64 };
        stream.synchronize()?;
        // SAFETY: both ranges live, have `bytes` bytes, and no queued operation uses them after `synchronize`.
        unsafe { backend.copy_now(&copy) }?;
        assert!(sums.iter().all(|&sum| sum == expected), "device {device}: the sum is not {expected}");
        backend.close_stream(rank.stream);
    }
    println!("{} devices, each sum {expected}", ranks.len());
    Ok(())
}

impl Rank {
    fn address(&self) -> Result<ringmem::backend::DeviceAddress, &'static str> {
        self.values.device_address().ok_or("device memory has an address")
    }
}
