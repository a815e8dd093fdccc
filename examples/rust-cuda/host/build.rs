//! Compiles the kernel to PTX with Rust-CUDA's compiler.

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ptx = PathBuf::from(env::var("OUT_DIR")?).join("kernels.ptx");
    cuda_builder::CudaBuilder::new("..").arch(cuda_builder::NvvmArch::Compute75).copy_to(ptx).build()?;
    Ok(())
}
