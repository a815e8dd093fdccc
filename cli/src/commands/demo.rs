//! `ringmem demo`.
//!
//! The round trip is last, when the scheduler has settled the threads on cores.

use std::io::Write;
use std::time::{Duration, Instant};

use ringmem::Image;
use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, Options, SendError};
use ringmem::ring::spsc::{PopError, PushError};
use ringmem::stream::Module;
use ringmem_kernels::echo::Echo;
use ringmem_kernels::histogram::splitmix64;
use serde_json::json;

use crate::progress::Bar;
use crate::selection::Selection;
use crate::{Failure, Outcome, counted, json_line, nanoseconds, number, percentile, percentiles, size};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem demo
  ringmem demo --messages 1000 --backend host --json";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of messages
    #[arg(long, default_value_t = 1_000_000, allow_negative_numbers = true, value_parser = number::whole::<u64>(1..=1_000_000_000_000))]
    messages: u64,
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const ALONE: u64 = 1000;
const STALL: Duration = Duration::from_secs(30);

struct Tally {
    sent: u64,
    expected: u64,
    lost: u64,
    doubled: u64,
    wrong: u64,
}

pub(super) fn run(arguments: &Arguments, image: &Image, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    let selected = arguments.selection.open(HostBackend::builder().device_memory(1 << 20), err)?;
    let module = Module::load(&selected.backend, image, &ringmem_kernels::ABI)?;
    // SAFETY: `echo` takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&selected.backend, 0, &module, &Options::new("echo"))? };

    let bar = Bar::new(!arguments.json, Some(arguments.messages), "{wide_bar} {pos} of {len} messages");
    let mut tally = Tally { sent: 0, expected: 0, lost: 0, doubled: 0, wrong: 0 };
    let mut round_trips = Vec::new();
    let begun = Instant::now();
    let together = arguments.messages - ALONE.min(arguments.messages.div_ceil(10));
    exchange(&mut channel, &mut tally, together, together, Some(&bar))?;
    while tally.sent < arguments.messages {
        bar.set(tally.sent);
        let sent = Instant::now();
        channel.try_send(message(tally.sent)).map_err(unsent)?;
        tally.sent += 1;
        let answered = tally.expected + 1;
        exchange(&mut channel, &mut tally, answered, answered, None)?;
        round_trips.push(nanoseconds(sent.elapsed()));
    }
    let elapsed = begun.elapsed();
    channel.drain()?;
    while let Ok(answer) = channel.try_recv() {
        tally.account(&answer);
    }
    channel.close()?;
    drop(bar);
    round_trips.sort_unstable();

    let elapsed_ns = nanoseconds(elapsed);
    let rate = arguments.messages as f64 / elapsed.as_secs_f64();
    let Tally { lost, doubled, wrong, .. } = tally;
    if arguments.json {
        let object = json!({
            "messages": arguments.messages, "elapsed_ns": elapsed_ns, "messages_per_s": rate,
            "round_trip_ns": percentiles(&round_trips), "lost": lost, "doubled": doubled, "wrong": wrong,
            "backend": selected.backend.name(), "why": selected.why,
        });
        writeln!(out, "{}", json_line(&object))?;
    } else {
        let each = size_of::<Echo>() as f64;
        writeln!(out, "{} of {each} bytes to the kernel and back", counted(arguments.messages, "message"))?;
        writeln!(out, "  {:.3} s, {:.2} M messages/s, {}/s each way", elapsed.as_secs_f64(), rate / 1e6, size::show((rate * each) as u64))?;
        if let (Some(p50), Some(p99)) = (percentile(&round_trips, 50, 100), percentile(&round_trips, 99, 100)) {
            writeln!(out, "  round trip of one: p50 {p50} ns, p99 {p99} ns")?;
        }
        writeln!(out, "  {lost} lost, {doubled} duplicated, {wrong} wrong")?;
        writeln!(out, "  backend {}", selected.words())?;
    }
    if lost + doubled + wrong > 0 {
        return Err(Failure::Fact(format!("{lost} messages lost, {doubled} duplicated, {wrong} wrong")));
    }
    Ok(())
}

fn message(id: u64) -> Echo {
    let mut words = [0; 8];
    for (place, word) in words.iter_mut().enumerate() {
        *word = if place == 0 { id } else { splitmix64(id ^ (place as u64) << 56) };
    }
    Echo { words }
}

/// Sends messages up to `send_to`, and receives until `answer_to` answers are accounted for.
fn exchange(channel: &mut Channel<Echo, Echo>, tally: &mut Tally, send_to: u64, answer_to: u64, bar: Option<&Bar>) -> Outcome {
    while tally.expected < answer_to {
        if let Some(bar) = bar {
            bar.set(tally.expected);
        }
        let mut has_moved = false;
        let mut sender = channel.send_batch(64);
        while tally.sent < send_to {
            match sender.push(message(tally.sent)) {
                Ok(()) => tally.sent += 1,
                Err(PushError::Full(_)) => break,
                Err(PushError::Corrupt(_, corrupt)) => return Err(Failure::Fact(format!("input {corrupt}"))),
            }
            has_moved = true;
        }
        drop(sender);
        channel.flush()?;
        let mut receiver = channel.recv_batch(64);
        loop {
            match receiver.pop() {
                Ok(answer) => tally.account(&answer),
                Err(PopError::Empty) => break,
                Err(PopError::Corrupt(corrupt)) => return Err(Failure::Fact(format!("output {corrupt}"))),
            }
            has_moved = true;
        }
        drop(receiver);
        if !has_moved {
            tally.account(&channel.recv_timeout(STALL)?);
        }
    }
    Ok(())
}

impl Tally {
    /// Answers arrive in order: a gap is a loss, a repeated id a duplicate.
    fn account(&mut self, answer: &Echo) {
        let id = answer.words[0];
        if id >= self.sent {
            self.wrong += 1;
            return;
        }
        if *answer != message(id) {
            self.wrong += 1;
        }
        if id < self.expected {
            self.doubled += 1;
        } else {
            self.lost += id - self.expected;
            self.expected = id + 1;
        }
    }
}

fn unsent(error: SendError<Echo>) -> Failure {
    match error {
        SendError::Flush { error, .. } => error.into(),
        error => Failure::Fact(error.to_string()),
    }
}
