use ringmem::backend::host::HostBackend;
use ringmem::manager::{BufferId, Lease, MemoryManager};
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::Stream;

fn main() -> ringmem::Result<()> {
    let backend = HostBackend::builder().build()?;
    let stream = Stream::new(&backend, 0)?;
    let memory = Device::new(&backend, 0);
    let manager = MemoryManager::new(memory.clone());
    let id: BufferId<f32> = manager.register(GpuBuffer::<f32>::new(memory.clone(), 8)?)?;
    let other = manager.register(GpuBuffer::<f32>::new(memory.clone(), 8)?)?;
    let lease: Lease<'_, f32, _> = manager.lease(id)?;
    let alone = manager.lease_mut(other)?;
    let (from, to) = (lease.into_owned(), alone.into_owned());
    let (from, to) = stream.copy(from, to)?.wait()?;
    println!("{:?} {:?}", from.view().to_vec()?, to.view().to_vec()?);
    Ok(())
}
