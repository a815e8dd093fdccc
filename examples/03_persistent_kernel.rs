//! A persistent kernel on the host backend: launched once, told by messages, watched while it runs.
//!
//! `cargo run --release --features std --example 03_persistent_kernel`

use std::error::Error;

use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, Options};
use ringmem::control::Command;
use ringmem::stream::Module;
use ringmem_kernels::echo::Echo;

fn main() -> Result<(), Box<dyn Error>> {
    let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    // Refused here if the kernels were compiled with other layouts than this program.
    let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
    // SAFETY: `echo` takes no arguments of its own, so it uses nothing but the channel's memory.
    let mut channel = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &Options::new("echo"))? };
    println!("the kernel is {:?}", channel.state());

    for id in 0..1000 {
        channel.send(Echo { words: [id; 8] })?;
    }
    for id in 0..1000 {
        let answer = loop {
            match channel.receive() {
                Ok(answer) => break answer,
                Err(_) => channel.check()?, // empty: is the kernel still there?
            }
        };
        assert_eq!(answer.words, [id; 8]);
    }

    channel.command(Command::PAUSE)?;
    println!("told to pause, it is {:?}", channel.state());
    channel.command(Command::ACTIVATE)?;

    let closed = channel.close()?;
    let telemetry = closed.telemetry;
    println!(
        "{} messages, {} ns each from take to answer; heartbeat {}",
        telemetry.processed,
        telemetry.latency_mean().unwrap_or(0),
        closed.control.heartbeat
    );
    Ok(())
}
