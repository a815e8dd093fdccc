//! `ringmem top`: published channels and shared rings, live or once.
//!
//! 1. Only regions of this user alone are mapped, read-only. Words are untrusted: impossible figures are marked.
//! 2. A rate needs two readings, so the first output follows a short wait.
//! 3. Without a terminal the output is that of `--once`, or a JSON object for each reading.

mod keys;
mod reading;
mod report;
mod screen;

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Failure, Outcome, Terminal, json_line, number};
use reading::Region;
pub(crate) use screen::restore;

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem top
  ringmem top --pid 4711
  ringmem top /dev/shm/prices.ring --once
  ringmem top --json > figures.jsonl";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A file of a published channel or of a shared ring; by default all published channels of this user
    path: Option<PathBuf>,
    /// Only the channels of this process
    #[arg(long, conflicts_with = "path", allow_negative_numbers = true, value_parser = number::whole::<u32>(1..=i32::MAX.into()))]
    pid: Option<u32>,
    /// Print the figures once, as text
    #[arg(long)]
    once: bool,
    /// Print one JSON object for each reading, two a second
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(super) fn prints_text(&self) -> bool {
        self.once && !self.json
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
const FIRST: Duration = Duration::from_millis(200);

struct Watched<'a> {
    arguments: &'a Arguments,
    regions: Vec<Region>,
}

impl Watched<'_> {
    fn read(&mut self) -> Outcome {
        if self.arguments.path.is_none() {
            let wanted = |pid: u32| self.arguments.pid.is_none_or(|wanted| wanted == pid);
            let listed: Vec<_> = ringmem::monitor::list()?.into_iter().filter(|one| wanted(one.pid)).collect();
            self.regions.retain(|region| listed.iter().any(|one| one.path == region.path));
            for one in listed {
                if !self.regions.iter().any(|region| region.path == one.path) {
                    self.regions.push(Region::listed(one));
                }
            }
            self.regions.sort_by(|a, b| a.path.cmp(&b.path));
        }
        self.regions.iter_mut().for_each(Region::read);
        Ok(())
    }
}

pub(super) fn run(arguments: &Arguments, terminal: Option<Terminal>, out: &mut dyn Write) -> Outcome {
    let named = arguments.path.as_deref().map(Region::named).transpose()?;
    let mut watched = Watched { arguments, regions: named.into_iter().collect() };
    watched.read()?;
    if let (Some(pid), true) = (arguments.pid, watched.regions.is_empty()) {
        return Err(none_of(pid));
    }
    if !watched.regions.is_empty() {
        thread::sleep(FIRST);
        watched.read()?;
    }
    match terminal {
        Some(terminal) if !arguments.once && !arguments.json => return screen::show(&mut watched, terminal, out),
        _ if !arguments.json => return print(&watched, out),
        _ => {}
    }
    loop {
        let regions: Vec<Value> = watched.regions.iter().map(report::json).collect();
        writeln!(out, "{}", json_line(&json!({ "regions": regions })))?;
        // A reader sees each line when it is complete.
        out.flush()?;
        if arguments.once {
            return Ok(());
        }
        thread::sleep(INTERVAL);
        watched.read()?;
    }
}

fn print(watched: &Watched<'_>, out: &mut dyn Write) -> Outcome {
    if watched.regions.is_empty() {
        writeln!(out, "no channel is published")?;
    }
    for region in &watched.regions {
        report::lines(region).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(())
}

fn none_of(pid: u32) -> Failure {
    let fact = match std::path::Path::new("/proc").join(pid.to_string()).exists() {
        true => "publishes no channel: open it with Builder::publish",
        false => "does not exist",
    };
    Failure::Fact(format!("process {pid} {fact}; without --pid, this command shows all published channels"))
}

fn no_region(path: &std::path::Path, error: &ringmem::Error) -> Failure {
    Failure::Fact(format!("{} is not a ringmem region: {}", path.display(), crate::chain(error)))
}
