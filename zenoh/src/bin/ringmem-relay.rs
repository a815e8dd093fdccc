//! `ringmem-relay send|receive --ring PATH --key KEY`: relays a ring in a file to a ring in a file on another host.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ringmem_zenoh::{Metrics, Options, Relay, RingType, SharedSink, SharedSource, Sink, Source};
use zenoh::{Config, Session, Wait};

const USAGE: &str =
    "usage: ringmem-relay send|receive --ring PATH --key KEY [--mode peer|client] [--connect ENDPOINT]... [--listen ENDPOINT]... [--report]

Relays the messages of a shared ring in a file to a shared ring on another host. Start `send` on one host and `receive` on the other;
each may be killed and restarted. An endpoint is for example tcp/192.0.2.1:7447. Without endpoints, peers find each other by multicast.
--report prints the counters every second.";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Arguments {
    sends: bool,
    ring: String,
    key: String,
    mode: String,
    connect: Vec<String>,
    listen: Vec<String>,
    report: bool,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let sends = match arguments.next()?.as_str() {
            "send" => true,
            "receive" => false,
            _ => return None,
        };
        let (mut ring, mut key, mut mode) = (None, None, "peer".to_owned());
        let (mut connect, mut listen, mut report) = (Vec::new(), Vec::new(), false);
        while let Some(option) = arguments.next() {
            match option.as_str() {
                "--ring" => ring = Some(arguments.next()?),
                "--key" => key = Some(arguments.next()?),
                "--mode" => mode = arguments.next().filter(|mode| mode == "peer" || mode == "client")?,
                "--connect" => connect.push(arguments.next()?),
                "--listen" => listen.push(arguments.next()?),
                "--report" => report = true,
                _ => return None,
            }
        }
        Some(Self { sends, ring: ring?, key: key?, mode, connect, listen, report })
    }

    fn config(&self, ring: &RingType) -> Result<Config> {
        let mut config = Config::default();
        // zenoh assembles a message from its fragments before the relay sees it, by default up to 1 GiB: any peer could fill this memory.
        let longest = ring.size.saturating_add(2 * Options::default().window_bytes as u64).saturating_add(64 << 10);
        config.insert_json5("transport/link/rx/max_message_size", &longest.to_string())?;
        let list =
            |endpoints: &[String]| format!("[{}]", endpoints.iter().map(|endpoint| format!("{endpoint:?}")).collect::<Vec<_>>().join(","));
        config.insert_json5("mode", &format!("{:?}", self.mode))?;
        if !self.connect.is_empty() || !self.listen.is_empty() {
            config.insert_json5("connect/endpoints", &list(&self.connect))?;
            config.insert_json5("listen/endpoints", &list(&self.listen))?;
            config.insert_json5("scouting/multicast/enabled", "false")?;
            config.insert_json5("connect/timeout_ms", "-1")?;
            config.insert_json5("connect/exit_on_failure", "false")?;
            config.insert_json5("connect/retry", "{ period_init_ms: 100, period_max_ms: 1000, period_increase_factor: 2 }")?;
        }
        Ok(config)
    }
}

fn watch<E: Send + 'static>(relay: Relay<E>, report: bool) -> Result<()> {
    let mut last = Metrics::default();
    while !relay.is_finished() {
        thread::sleep(Duration::from_millis(if report { 1000 } else { 100 }));
        let now = relay.metrics();
        if report && now != last {
            // Without a reader or on a full disk, the relay goes on.
            let _ = writeln!(io::stdout(), "{now:?}");
        }
        last = now;
    }
    Ok(relay.join().1?)
}

fn run(arguments: &Arguments) -> Result<()> {
    // Without the ring there is no need to connect.
    if arguments.sends {
        let source = SharedSource::open(&arguments.ring)?;
        watch(Relay::sender(&session(arguments, source.ring())?, &arguments.key, source)?, arguments.report)
    } else {
        let sink = SharedSink::open(&arguments.ring)?;
        watch(Relay::receiver(&session(arguments, sink.ring())?, &arguments.key, sink)?, arguments.report)
    }
}

fn session(arguments: &Arguments, ring: &RingType) -> Result<Session> {
    zenoh::open(arguments.config(ring)?).wait()
}

fn main() -> ExitCode {
    let given: Option<Vec<String>> = std::env::args_os().skip(1).map(|argument| argument.into_string().ok()).collect();
    let Some(arguments) = given.and_then(|given| Arguments::parse(given.into_iter())) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("ringmem-relay: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
