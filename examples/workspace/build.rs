fn main() -> Result<(), ringmem_ptx_builder::Error> {
    ringmem_ptx_builder::embed("kernels.ptx") // for the GPU; without a compiler for it, a warning
}
