//! A kernel of one's own: a message, a handler, and the same channel as to any other. For a GPU too, the first half is a crate of its own: see
//! `examples/workspace`.
//!
//! `cargo run --release --features std --example 07_own_kernel`

use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, Options};
use ringmem::image::{Entry, KernelHost};
use ringmem::stream::Module;
use ringmem::{Abi, Image, LAYOUTS, Machine, SharedLayout, layout_set};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Simulated, Single, persistent};

/// An order, and the same when it has been filled.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(size = 24, message = 7, writer = "the trader")]
struct Order {
    id: u64,
    quantity: u32,
    price: f32,
    #[layout(writer = "the kernel")]
    total: f64,
}

/// Multiplies, and remembers how much it has sold: state that stays on the device for as long as the kernel runs.
struct Fill {
    sold: u64,
}

impl<M: Machine, L: Lanes> Handler<M, L> for Fill {
    type Input = Order;
    type Output = Order;
    const ABI: u64 = ABI.hash;

    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Order, Order, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            let fill = |order: &Order, filled: &mut Order| {
                *filled = Order { total: f64::from(order.quantity) * f64::from(order.price), ..*order };
                u64::from(order.quantity)
            };
            // SAFETY: below the length; the lanes take turns, so no other is here.
            self.sold += unsafe { batch.exchange(index, fill) };
            index += u64::from(L::WIDTH);
        }
        // Refused messages: none.
        0
    }
}

/// The kernel on a thread of the host.
unsafe fn fill(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, split: None };
    let mut handler = Fill { sold: 0 };
    // SAFETY: the promise of `Entry::run`'s caller, which is the channel's.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut handler) }
    println!("{} pieces sold", handler.sold);
}

/// ringmem's layouts and ours: a kernel that was compiled with others is refused.
const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order));
const IMAGE: Image = Image { ptx: b"", host: &[Entry { name: "fill", arguments: 4, run: fill }], abi: ABI };

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let module = Module::load(&backend, &IMAGE, &ABI)?;
    // SAFETY: `fill` takes no arguments of its own, so it uses nothing but the channel's memory.
    let mut channel = unsafe { Channel::<Order, Order>::open(&backend, 0, &module, &Options::new("fill")) }?;
    for id in 0..100 {
        channel.send(Order { id, quantity: 1 + id as u32, price: 2.5, total: 0.0 })?;
    }
    let mut turnover = 0.0;
    for _ in 0..100 {
        turnover += channel.receive_timeout(Duration::from_secs(10))?.total;
    }
    println!("{} orders filled for {turnover:.2}", channel.close()?.telemetry.processed);
    Ok(())
}
