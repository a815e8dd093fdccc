use ringmem::backend::host::HostBackend;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::Stream;
use ringmem_kernels::{Index, kernels};

kernels! {
    pub grid fn scale(at: Index, x: &[f32], y: &mut f32, a: f32) {
        *y = a * x[at.get()];
    }
}

fn main() {
    let backend = HostBackend::builder().build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let x = GpuBuffer::<f32>::new(Device::new(&backend, 0), 4).unwrap();
    let mut y = GpuBuffer::<f32>::new(Device::new(&backend, 0), 4).unwrap();
    stream.run(SCALE, (&x, &mut y, 2.0)).unwrap();
    let _ = stream.submit(SCALE, (x, y, 2.0)).unwrap();
}
