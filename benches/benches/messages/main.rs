//! `cargo bench -p ringmem-benches --bench messages -- [--json] [--quick] [NAME]...`: telemetry and control words on the host.

mod words;

use ringmem_benches::{Wanted, run};

fn main() {
    run("messages", &Wanted::from_args(), &words::workloads());
}

fn each(messages: u64, mut work: impl FnMut(u64)) -> f64 {
    let begun = std::time::Instant::now();
    for number in 0..messages {
        work(number);
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}
