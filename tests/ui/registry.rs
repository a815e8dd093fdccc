use ringmem::backend::host::HostBackend;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::registry::{BufferId, Lease, Registry};
use ringmem::stream::Stream;

fn main() -> ringmem::Result<()> {
    let backend = HostBackend::builder().build()?;
    let stream = Stream::new(&backend, 0)?;
    let registry = Registry::new();
    let id: BufferId<f32> = registry.register(GpuBuffer::<f32>::new(Device::new(&backend, 0), 8)?)?;
    let other = registry.register(GpuBuffer::<f32>::new(Device::new(&backend, 0), 8)?)?;
    let lease: Lease<'_, f32, _> = registry.lease(id)?;
    let alone = registry.lease_mut(other)?;
    let (from, to) = (lease.into_owned(), alone.into_owned());
    let (from, to) = stream.copy(from, to)?.wait()?;
    println!("{:?} {:?}", from.view().to_vec()?, to.view().to_vec()?);
    Ok(())
}
