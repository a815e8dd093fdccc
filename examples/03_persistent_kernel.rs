//! A persistent kernel on the host backend, which is launched once and told everything else by messages.
//!
//! `cargo run --release --features std --example 03_persistent_kernel`

use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, Options};
use ringmem::stream::Module;
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    // Refused here if the kernels were compiled with other layouts than this program.
    let module = Module::load(&backend, &IMAGE, &ABI)?;
    // SAFETY: `echo` takes no arguments of its own, so it uses nothing but the channel's memory.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("echo")) }?;
    for id in 0..1000 {
        channel.send(Echo { words: [id; 8] })?;
    }
    for id in 0..1000 {
        assert_eq!(channel.recv_timeout(Duration::from_secs(10))?.words, [id; 8]);
    }
    println!("{}", channel.dump()?);
    let telemetry = channel.close()?.telemetry;
    println!("{} messages, {} ns each, from look to answer", telemetry.processed, telemetry.latency_mean().unwrap_or(0));
    Ok(())
}
