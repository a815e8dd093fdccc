use ringmem_layouts::{ControlBlock, DeviceBytes, SharedLayout};

#[derive(Clone, Copy, SharedLayout)]
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
    let more = copied::<u64>();
    println!("{}", numbers + structs + more);
}
