#![no_std]

use ringmem_kernels::{SharedLayout, kernels};

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Particle {
    pub position: [f32; 3],
    pub velocity: [f32; 3],
}

kernels! {
    /// Moves a particle by one second.
    pub persistent fn step(now: &Particle, then: &mut Particle) {
        *then = *now;
        for axis in 0..3 {
            then.position[axis] += now.velocity[axis];
        }
    }

    /// Accelerates a particle downwards for a time, in seconds.
    pub grid fn fall(particle: &mut Particle, seconds: f32) {
        particle.velocity[2] -= 9.81 * seconds;
    }
}
