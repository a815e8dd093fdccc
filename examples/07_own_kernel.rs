//! A user-defined kernel: a message type, a function and a channel. For a GPU it is a package of its own: see `examples/workspace`.
//!
//! `cargo run --release --features std --example 07_own_kernel`

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem_kernels::{SharedLayout, kernels};

/// Answered with its total.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 7)]
pub struct Order {
    id: u64,
    quantity: u32,
    price: f32,
    total: f64,
}

kernels! {
    /// Computes the total.
    pub persistent fn fill(order: &Order, filled: &mut Order) {
        *filled = Order { total: f64::from(order.quantity) * f64::from(order.price), ..*order };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let mut channel = Channel::open(&backend, 0, FILL)?;
    for id in 0..100 {
        channel.send(Order { id, quantity: 1 + id as u32, price: 2.5, total: 0.0 })?;
    }
    let turnover: f64 = channel.iter().take(100).map(|order| order.total).sum();
    println!("{} orders filled for {turnover:.2}", channel.close()?.telemetry.processed);
    Ok(())
}
