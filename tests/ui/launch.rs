use ringmem::backend::host::HostBackend;
use ringmem::kernel::{DevicePointer, Epoch, Kernel};
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Image, LAYOUTS};

const SCALE: Kernel<(DevicePointer<f32>, Epoch, u64)> = Kernel::new("scale");

fn main() -> ringmem::Result<()> {
    let backend = HostBackend::builder().build()?;
    let abi = Abi::of(LAYOUTS);
    let module = Module::load(&backend, &Image { ptx: b"", host: &[], abi }, &abi)?;
    let stream = Stream::new(&backend, 0)?;
    let factors = GpuBuffer::<f32>::new(Device::new(&backend, 0), 8)?;
    let first = factors.device_pointer().expect("it has bytes");
    // SAFETY: never run.
    let launched = unsafe { stream.start(&module, &SCALE, (first, Epoch::new(1), 8), 1) };
    println!("{launched:?}");
    Ok(())
}
