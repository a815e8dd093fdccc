//! Sends a thousand particles to a kernel and checks what comes back.

use std::error::Error;
use std::process::ExitCode;

use particles_kernels::IMAGE;
use particles_shared::{ABI, Particle, Vector};
use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, Options, ReceiveError};
use ringmem::stream::Module;

const PARTICLES: u64 = 1000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    // Refused here, with both tables, if the kernels were compiled with other layouts than this program.
    let module = Module::load(&backend, &IMAGE, &ABI)?;
    // SAFETY: `step` takes no arguments of its own, so it uses nothing but the channel's memory.
    let mut channel = unsafe { Channel::<Particle, Particle>::open(&backend, 0, &module, &Options::new("step"))? };

    for id in 0..PARTICLES {
        channel.send(particle(id)).map_err(|error| error.to_string())?;
    }
    for id in 0..PARTICLES {
        let answer = loop {
            match channel.receive() {
                Ok(answer) => break answer,
                Err(ReceiveError::Empty) => channel.check()?, // is the kernel still there?
                Err(error) => return Err(error.into()),
            }
        };
        let sent = particle(id);
        let position = Vector { x: 1.5, y: id as f32, z: -2.0 };
        let expected = Particle { position, seconds_left: sent.seconds_left - 1, ..sent };
        if answer != expected {
            return Err(format!("expected {expected:?}, got {answer:?}").into());
        }
    }
    let closed = channel.close()?;
    println!("{} particles moved by one second", closed.telemetry.processed);
    Ok(())
}

fn particle(id: u64) -> Particle {
    let (position, velocity) = (Vector { x: 1.0, y: id as f32, z: 0.0 }, Vector { x: 0.5, y: 0.0, z: -2.0 });
    Particle { id, mass: 0.25, seconds_left: 10, position, velocity }
}
