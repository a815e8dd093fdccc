use particles::{FALL, Particle, STEP};
use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::Stream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let particle = Particle { position: [0.0, 1.0, 2.0], velocity: [0.5, 0.0, -2.0] };
    // A kernel over a buffer: once for each of its elements.
    let mut particles = GpuBuffer::from_slice(Device::new(&backend, 0), &[particle; 1000])?;
    Stream::new(&backend, 0)?.run(FALL, (&mut particles, 2.0))?;
    println!("{:?}", particles.to_vec()?[999]);
    // A kernel that keeps running, and answers messages.
    let mut channel = Channel::open(&backend, 0, STEP)?;
    channel.send(particle)?;
    println!("{:?}", channel.recv()?);
    Ok(())
}
