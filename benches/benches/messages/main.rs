//! `cargo bench -p ringmem-benches --bench messages -- [--json] [--quick] [NAME]...`: message headers, stamps, telemetry and control words.
//!
//! | workload | subject |
//! |---|---|
//! | `hlc-tick-1` | one thread stamps; the time advances every 200 stamps, at every stamp, or not at all |
//! | `hlc-tick-2` | two threads stamp from one clock |
//! | `header-new` | a header is created, with everything but a checksum |
//! | `header-validate` | a header is validated, 64 of them in turn |
//! | `header-check-1k` | a header and a payload of 1 KiB are verified against their checksum |
//! | `telemetry-record` | a message is counted; `published` writes the record each time, `read` takes a snapshot |
//! | `control-poll` | a kernel's poll of its command; the host's of the state |
//!
//! No figure is a device's.

mod clock;
mod header;
mod words;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [clock::workloads(), header::workloads(), words::workloads()];
    run("messages", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}

fn each(messages: u64, mut work: impl FnMut(u64)) -> f64 {
    let begun = std::time::Instant::now();
    for number in 0..messages {
        work(number);
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}
