//! `ringmem stream`: compares the answer with the same function on the host.

mod copy;
mod count;
mod input;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem::channel::Options;
use ringmem::streaming::{Source, Streamer};
use ringmem::{DeviceBytes, Image};
use ringmem_kernels::histogram::{self, LONGEST, Work};
use ringmem_kernels::transform::Operation;

use crate::selection::{Selected, Selection};
use crate::{Failure, Outcome, absurd, number, size};
use input::{Input, Reference};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem stream data.bin
  ringmem stream data.bin --backend host --json
  ringmem stream data.bin --out data.xor --transform xor:255
  tar c src | ringmem stream -";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A regular file of any length, or - for standard input
    file: PathBuf,
    /// Maximum chunk size, rounded up to 4 KiB; reduced so that two chunks fit in the device memory
    #[arg(long, default_value = "4MiB", allow_hyphen_values = true, value_parser = size::parse)]
    chunk_size: u64,
    /// Number of pinned staging buffers
    #[arg(long, default_value_t = 2, allow_negative_numbers = true, value_parser = number::whole::<u64>(1..=64))]
    staging: u64,
    /// Slots of each ring, a power of two
    #[arg(long, default_value_t = 1024, allow_negative_numbers = true, value_parser = capacity)]
    ring_capacity: u64,
    /// Device memory to use; the host backend has exactly this much
    #[arg(long, default_value = "256MiB", allow_hyphen_values = true, value_parser = size::parse)]
    device_memory: u64,
    /// Write the result to this file instead of counting; the file appears only when it is complete
    #[arg(long)]
    out: Option<PathBuf>,
    /// Operation of the kernel on each byte, with --out: add:N or xor:N
    #[arg(long, requires = "out", value_parser = operation)]
    transform: Option<Operation>,
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const PAGE: u64 = 4096;
const LARGEST_DEVICE: u64 = 1 << 40;

struct Shape {
    chunk: u64,
    staging: u64,
    slots: u64,
}

impl Arguments {
    fn shape(&self, length: Option<u64>) -> Result<Shape, Failure> {
        let length = length.unwrap_or(1 << 60);
        let work = size_of::<Work>() as u64;
        let least = work.next_multiple_of(PAGE) + 2 * PAGE;
        if self.device_memory < least {
            return Err(Failure::Usage(format!(
                "--device-memory {} is too small: {} hold the kernel's counters and two chunks",
                size::show(self.device_memory),
                size::show(least)
            )));
        }
        if self.device_memory > LARGEST_DEVICE {
            return Err(Failure::Usage(format!(
                "--device-memory {} is more than {}",
                size::show(self.device_memory),
                size::show(LARGEST_DEVICE)
            )));
        }
        if self.chunk_size > LONGEST {
            return Err(Failure::Usage(format!("--chunk-size {} is more than {}", size::show(self.chunk_size), size::show(LONGEST))));
        }
        let room = self.device_memory - work.next_multiple_of(PAGE);
        let fitting = room / 2 / PAGE * PAGE;
        let chunk = self.chunk_size.next_multiple_of(PAGE).min(fitting).min(length.next_multiple_of(PAGE).max(PAGE));
        let chunks = length.div_ceil(chunk).max(1);
        let staging = self.staging.min(chunks);
        // Two more than staging keep the kernel busy; more would occupy cache.
        let slots = (room / chunk).min(staging + 2).min(chunks).min(self.ring_capacity);
        Ok(Shape { chunk, staging, slots })
    }

    fn select(&self, err: &mut dyn Write) -> Result<Selected, Failure> {
        let host = HostBackend::builder().device_memory(self.device_memory);
        self.selection.open(host, err).map_err(|error| absurd("--device-memory", error))
    }

    fn channel<'a>(&self, kernel: &'a str, arguments: &'a [u64]) -> Options<'a> {
        Options { arguments, input_capacity: self.ring_capacity, output_capacity: self.ring_capacity, ..Options::new(kernel) }
    }
}

impl Shape {
    fn streamer(&self, backend: &Arc<dyn Backend>, staging: u64) -> ringmem::Result<Streamer> {
        let few = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Streamer::builder(backend, 0).chunk(self.chunk).depth(few(self.slots)).staging(few(staging)).build()
    }
}

fn capacity(text: &str) -> Result<u64, String> {
    const MOST: u64 = 1 << 20;
    match text.parse::<u64>() {
        Ok(capacity) if capacity.is_power_of_two() && capacity <= MOST => Ok(capacity),
        Ok(capacity) => Err(format!("a ring's capacity is a power of two from 1 to {MOST}, not {capacity}")),
        Err(_) => Err(format!("a ring's capacity is a power of two from 1 to {MOST}")),
    }
}

fn operation(text: &str) -> Result<Operation, String> {
    let wrong = || format!("unknown transformation `{text}`: use add:N or xor:N, with N from 0 to 255");
    let (name, operand) = text.split_once(':').ok_or_else(wrong)?;
    let operand = operand.parse::<u8>().map_err(|_| wrong())?;
    match name {
        "add" => Ok(Operation::Add(operand)),
        "xor" => Ok(Operation::Xor(operand)),
        _ => Err(wrong()),
    }
}

#[derive(PartialEq, Eq)]
struct Answer {
    histogram: [u64; 256],
    checksum: u64,
}

pub(super) fn run(arguments: &Arguments, image: &Image, columns: Option<usize>, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    if let Some(path) = &arguments.out {
        return copy::run(arguments, path, image, out, err);
    }
    let mut source = Input::open(&arguments.file, HostCount::new())?;
    let shape = arguments.shape(source.length())?;
    let selected = arguments.select(err)?;
    let mut progress = report::Progress::new(source.length(), arguments);
    let run = count::run(&mut source, arguments, &shape, &selected.backend, image, &mut progress, out)?;
    source.compare()?;
    progress.finish();

    let name = source.name().to_owned();
    let (reference, length, reference_time) = source.reference.finish();
    let verified = run.answer == reference && run.bytes == length;
    let report =
        report::Report { name: &name, arguments, columns, selected: &selected, shape: &shape, run: &run, reference_time, verified, length };
    report.print(out)?;
    if verified {
        return Ok(());
    }
    Err(Failure::Fact(format!(
        "the kernel's result is wrong: {} bytes with checksum {:016x}, the host computed {} with {:016x}",
        run.bytes, run.answer.checksum, length, reference.checksum
    )))
}

struct HostCount {
    words: Vec<u64>,
    filled: usize,
    work: Box<Work>,
    checksum: u64,
    counted: u64,
    spent: Duration,
}

impl HostCount {
    fn new() -> Self {
        let work = Box::new(Work::zeroed());
        Self { words: vec![0; 1 << 18], filled: 0, work, checksum: 0, counted: 0, spent: Duration::ZERO }
    }

    fn count(&mut self) {
        let begun = Instant::now();
        let sum = histogram::reference(&self.words, self.filled, self.counted / 8, &mut self.work);
        self.spent += begun.elapsed();
        self.checksum = self.checksum.wrapping_add(sum);
        self.counted += self.filled as u64;
        self.filled = 0;
    }

    fn finish(mut self) -> (Answer, u64, Duration) {
        self.count();
        (Answer { histogram: self.work.totals, checksum: self.checksum }, self.counted, self.spent)
    }
}

impl Reference for HostCount {
    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = &mut u64::slice_as_bytes_mut(&mut self.words)[self.filled..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == size_of_val(self.words.as_slice()) {
                self.count();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        stream: Arguments,
    }

    fn shape(line: &str, length: u64) -> Result<Shape, Failure> {
        Line::try_parse_from(["ringmem"].into_iter().chain(line.split_whitespace())).unwrap().stream.shape(Some(length))
    }

    #[test]
    fn chunks_shrink_to_fit_device_memory_and_file() {
        let small = shape("f --device-memory 1MiB", 5_000_000).unwrap();
        assert!(small.chunk * 2 + 36 * 1024 <= 1 << 20 && small.chunk.is_multiple_of(4096) && small.slots >= 2);
        let empty = shape("f", 0).unwrap();
        assert_eq!((empty.chunk, empty.staging, empty.slots), (4096, 1, 1));
        let usual = shape("f", 1 << 30).unwrap();
        assert_eq!((usual.chunk, usual.staging, usual.slots), (4 << 20, 2, 4));
        assert_eq!(shape("f --ring-capacity 1", 1 << 30).unwrap().slots, 1);
    }

    #[test]
    fn extreme_sizes_are_usage_errors() {
        for line in ["f --device-memory 1KiB", "f --device-memory 2TiB", "f --chunk-size 2GiB"] {
            assert!(matches!(shape(line, 1), Err(Failure::Usage(_))), "{line}");
        }
    }
}
