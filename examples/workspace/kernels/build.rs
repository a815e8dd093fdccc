//! Compiles the kernels for a GPU and puts them where `host.rs` includes them; where there is no compiler for it, nothing, and a warning.

fn main() -> Result<(), ringmem_ptx_builder::Error> {
    ringmem_ptx_builder::embed("kernels.ptx")
}
