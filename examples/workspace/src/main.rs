use particles::{Particle, STEP};
use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let mut channel = Channel::open(&backend, 0, STEP)?;
    channel.send(Particle { position: [0.0, 1.0, 2.0], velocity: [0.5, 0.0, -2.0] })?;
    println!("{:?}", channel.recv()?);
    Ok(())
}
