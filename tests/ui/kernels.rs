use ringmem_kernels::{SharedLayout, kernels};

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Particle {
    position: f32,
    velocity: f32,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
pub struct Other {
    word: u64,
}

kernels! {
    pub persistent fn step(now: &Particle, then: &mut Particle) {
        then.position = now.position + now.velocity;
    }
}

fn main() {
    let backend = ringmem::backend::host::HostBackend::builder().build().unwrap();
    let mut channel = ringmem::channel::Channel::open(&backend, 0, STEP).unwrap();
    let _ = channel.send(Particle { position: 0.0, velocity: 1.0 });
}
