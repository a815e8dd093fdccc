//! `cargo bench -p ringmem-benches --bench messages -- [--json] [--quick] [NAME]...`: what a message carries besides its payload, and the words
//! beside the rings.
//!
//! | workload | what |
//! |---|---|
//! | `hlc-tick-1` | one thread stamps; the time moves on every 200 stamps, at every stamp, or not at all |
//! | `hlc-tick-2` | two threads stamp from one clock |
//! | `header-new` | a header is made, with everything but a checksum |
//! | `header-validate` | a header is looked at, 64 of them in turn |
//! | `header-check-1k` | a header and a payload of 1 KiB are compared with their checksum |
//! | `telemetry-record` | a message is counted; `published` writes the record each time, `read` takes a snapshot |
//! | `control-poll` | a kernel's look at its command; the host's at the state |
//!
//! Nothing of this is a device's figure.

mod clock;
mod header;
mod words;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [clock::workloads(), header::workloads(), words::workloads()];
    run("messages", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}

/// One turn of one thread: nanoseconds for each call of `work` with its number.
fn each(messages: u64, mut work: impl FnMut(u64)) -> f64 {
    let begun = std::time::Instant::now();
    for number in 0..messages {
        work(number);
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}
