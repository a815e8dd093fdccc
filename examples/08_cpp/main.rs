//! Two rings in files between a Rust process and a C++ process.
//!
//! ```sh
//! cargo run --example 08_cpp --features std -- header > target/layouts.h
//! cargo build --release -p ringmem-capi
//! g++ -std=c++17 -O2 -I target -I capi/include examples/08_cpp/peer.cpp -o target/peer target/release/libringmem_capi.a
//! cargo run --example 08_cpp --features std -- target/peer
//! ```
//!
//! The header `layouts.h` is that of `ringmem layout --format c`, with this example's messages.

mod messages;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::{env, fs, process};

    let argument = env::args_os().nth(1).ok_or("usage: 08_cpp header | 08_cpp PEER")?;
    if argument == "header" {
        print!("{}", ringmem::describe::c(&messages::ABI));
        return Ok(());
    }
    let folder = env::temp_dir().join(format!("ringmem-08-cpp-{}", process::id()));
    fs::create_dir(&folder)?;
    let exchanged = exchange(&argument, &folder);
    fs::remove_dir_all(&folder)?;
    exchanged
}

/// Sends orders and receives their fills.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn exchange(peer: &std::ffi::OsStr, folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use messages::{Fill, Order};
    use ringmem::shared::{Memory, Side};
    use ringmem::wait::WaitStrategy;

    const ORDERS: u64 = 10_000;
    const LIMIT: Duration = Duration::from_secs(60);

    let paths = [folder.join("orders"), folder.join("fills")];
    let orders = Memory::create_at::<Order>(&paths[0], 64)?;
    let fills = Memory::create_at::<Fill>(&paths[1], 64)?;
    let mut sender = orders.producer::<Order>()?.into_waiting(WaitStrategy::default());
    let mut receiver = fills.consumer::<Fill>()?.into_waiting(WaitStrategy::default());
    let mut peer = Command::new(peer).args(&paths).spawn()?;

    let sending = thread::spawn(move || {
        // The peer ends when this end is dropped and the ring empty.
        (0..ORDERS).try_for_each(|id| sender.send_timeout(Order { id, price: 0.5, quantity: id % 10 }, LIMIT))
    });
    let mut total = 0.0;
    for id in 0..ORDERS {
        let fill = receiver.recv_timeout(LIMIT)?;
        assert_eq!(fill.id, id);
        total += fill.cost;
        if id == 0 {
            println!("a second consumer: {}", orders.consumer::<Order>().map(drop).unwrap_err());
        }
    }
    sending.join().expect("it does not panic")?;
    if !peer.wait()?.success() {
        return Err("the peer failed".into());
    }
    println!("{ORDERS} orders filled for {total:.2}; the C++ process: {:?}", fills.state(Side::Producer));
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn main() {
    let _ = messages::ABI;
    eprintln!("rings between processes need Linux");
}
