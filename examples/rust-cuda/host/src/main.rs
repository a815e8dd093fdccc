//! Sends eight numbers to a kernel that Rust-CUDA compiled, and prints the answer. Needs a GPU.

use ringmem::Image;
use ringmem::backend::cuda::CudaBackend;
use ringmem::channel::{Channel, Options};
use ringmem::stream::Module;
use ringmem_rust_cuda_example::{ABI, Numbers};

const KERNELS: Image = Image { ptx: include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx")), host: &[], abi: ABI };

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = CudaBackend::open()?;
    let module = Module::load(&backend, &KERNELS, &ABI)?;
    // SAFETY: `doubled` takes only the four arguments of every persistent kernel, and this program has no managed memory.
    let mut channel = unsafe { Channel::<Numbers, Numbers>::open_raw(&backend, 0, &module, &Options::new("doubled")) }?;
    channel.send(Numbers { values: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] })?;
    println!("{:?}", channel.recv()?.values);
    channel.close()?;
    Ok(())
}
