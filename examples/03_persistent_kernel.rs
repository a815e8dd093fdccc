//! A persistent kernel on the host backend answers messages until the channel is closed.
//!
//! `cargo run --release --features std --example 03_persistent_kernel`

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem_kernels::echo::{ECHO, Echo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let mut channel = Channel::open(&backend, 0, ECHO)?;
    for id in 0..1000 {
        channel.send(Echo { words: [id; 8] })?;
    }
    for (id, answer) in (0..1000).zip(channel.iter()) {
        assert_eq!(answer.words, [id; 8]);
    }
    println!("{}", channel.dump()?);
    let telemetry = channel.close()?.telemetry;
    println!("{} messages, {} ns each, from look to answer", telemetry.processed, telemetry.latency_mean().unwrap_or(0));
    Ok(())
}
