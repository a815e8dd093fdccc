use ringmem::backend::host::HostBackend;
use ringmem::memory::{Device, GpuBuffer, Host, Pinned, PinnedBuffer};
use ringmem::stream::Stream;

fn main() -> ringmem::Result<()> {
    let backend = HostBackend::builder().build()?;
    let stream = Stream::new(&backend, 0)?;
    let mut device = GpuBuffer::<f32>::new(Device::new(&backend, 0), 8)?;
    let mut pinned = PinnedBuffer::<f32>::new(Pinned::new(&backend, 0), 8)?;
    let pageable = ringmem::memory::Buffer::<f32, _>::new(Host::new(&backend, 0), 8)?;
    device.copy_from(&[1.0_f32; 8])?;
    let mut low = device.slice_mut(..4)?;
    low.fill(2.0)?;
    drop(device.slice_mut(4..)?);
    let mut view = pinned.as_view_mut();
    view.fill(1.0)?;
    let host = pinned.as_slice()?;
    assert_eq!(host[0], 1.0);
    let elements = pinned.as_slice()?[0];
    let (pinned, device) = stream.copy(pinned, device)?.wait()?;
    println!("{elements} {:?} {:?}", device.to_vec()?, (pinned.device_address(), pageable.as_slice()?));
    Ok(())
}
