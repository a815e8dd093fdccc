use ringmem_kernels::{Batch, Handler, Lanes, SharedLayout, kernels};
use ringmem_layouts::Machine;

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

struct Silent;

impl<M: Machine, L: Lanes> Handler<M, L> for Silent {
    type Input = Particle;
    type Output = Particle;

    unsafe fn answer(&mut self, _: &L, _: &mut Batch<'_, '_, Particle, Particle, M>) -> u64 {
        0
    }
}

#[allow(dead_code)]
unsafe fn unsafe_handler() -> Silent {
    Silent
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
