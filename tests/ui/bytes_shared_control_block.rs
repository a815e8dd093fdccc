//! refused: is not plain bytes that a device may copy
//! differs from: accepted_bytes

use ringmem_layouts::{ControlBlock, DeviceBytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    id: u32,
}

fn copied<T: DeviceBytes>() -> usize {
    size_of::<T>()
}

fn main() {
    let numbers = copied::<u8>() + copied::<f64>() + copied::<[[i16; 4]; 3]>();
    let structs = copied::<Particle>() + copied::<ControlBlock<u64>>();
    let more = copied::<ringmem_layouts::control::Shared<ringmem_layouts::HostWord>>();
    println!("{}", numbers + structs + more);
}
