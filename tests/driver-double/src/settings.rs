//! The variables of the environment, as `lib.rs` lists them.

use std::env;
use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::peers::Peers;
use crate::{NAME, log};

const MOST_DEVICES: u64 = 64;

/// An invalid variable aborts the process: a test would pass without it.
pub struct Settings {
    pub log: Option<OsString>,
    pub fail: String,
    pub leaks: bool,
    pub deadline: Duration,
    pub delay: Duration,
    pub eager: bool,
    pub blocks_launches: bool,
    pub version: i32,
    pub devices: u32,
    pub memory: u64,
    pub tables: u64,
    pub peers: Peers,
    pub attributes: Attributes,
    pub waits: Vec<Waits>,
    pub queues: u64,
    pub executes_ptx: bool,
    pub local: Vec<(String, u32)>,
    pub threads: Vec<(String, u32)>,
    pub seed: u64,
}

impl Settings {
    pub fn read() -> Self {
        let text = |name: &str| env::var(name).unwrap_or_default();
        let number = |name: &str, otherwise: u64| match text(name).as_str() {
            "" => otherwise,
            number => number.parse().unwrap_or_else(|_| log::give_up(&format!("{name}={number} is no number"))),
        };
        let devices = number("RINGMEM_DOUBLE_DEVICES", 1);
        if devices > MOST_DEVICES {
            log::give_up(&format!("RINGMEM_DOUBLE_DEVICES={devices} is not 0 to {MOST_DEVICES}"));
        }
        let devices = devices as u32;
        let version = number("RINGMEM_DOUBLE_VERSION", 12_080);
        let peers = text("RINGMEM_DOUBLE_PEERS");
        let attributes = text("RINGMEM_DOUBLE_ATTRIBUTES");
        let kernels = text("RINGMEM_DOUBLE_KERNELS");
        if !["", "host", "ptx"].contains(&kernels.as_str()) {
            log::give_up(&format!("RINGMEM_DOUBLE_KERNELS={kernels} is neither `host` nor `ptx`"));
        }
        Self {
            waits: text("RINGMEM_DOUBLE_WAITS").split(',').filter(|symbol| !symbol.is_empty()).map(known).collect(),
            queues: number("RINGMEM_DOUBLE_QUEUES", 0),
            executes_ptx: kernels == "ptx",
            local: of_kernels("RINGMEM_DOUBLE_LOCAL", &text("RINGMEM_DOUBLE_LOCAL")),
            threads: of_kernels("RINGMEM_DOUBLE_THREADS", &text("RINGMEM_DOUBLE_THREADS")),
            seed: number("RINGMEM_DOUBLE_SEED", 1),
            log: env::var_os("RINGMEM_DOUBLE_LOG").filter(|file| !file.is_empty()),
            fail: text("RINGMEM_DOUBLE_FAIL"),
            leaks: text("RINGMEM_DOUBLE_LEAKS") == "1",
            deadline: Duration::from_millis(number("RINGMEM_DOUBLE_DEADLINE_MS", 10_000)),
            delay: Duration::from_micros(number("RINGMEM_DOUBLE_DELAY_US", 0)),
            eager: text("CUDA_MODULE_LOADING") == "EAGER",
            blocks_launches: !["", "0"].contains(&text("CUDA_LAUNCH_BLOCKING").as_str()),
            version: i32::try_from(version).unwrap_or_else(|_| log::give_up(&format!("RINGMEM_DOUBLE_VERSION={version} is no version"))),
            devices,
            memory: number("RINGMEM_DOUBLE_MEMORY", 2 << 30),
            tables: number("RINGMEM_DOUBLE_TABLES", 0),
            peers: Peers::parse(&peers, devices).unwrap_or_else(|why| log::give_up(&format!("RINGMEM_DOUBLE_PEERS={peers}: {why}"))),
            attributes: Attributes::parse(&attributes)
                .unwrap_or_else(|why| log::give_up(&format!("RINGMEM_DOUBLE_ATTRIBUTES={attributes}: {why}"))),
        }
    }

    /// A kernel may run longer than other calls.
    pub fn patience(&self) -> Duration {
        self.deadline * 12
    }
}

pub struct Waits {
    pub symbol: String,
    is_due: AtomicBool,
    is_lazy: bool,
}

impl Waits {
    pub fn now(&self, symbol: &str) -> bool {
        self.symbol == symbol && if self.is_lazy { self.is_due.swap(false, Relaxed) } else { true }
    }
}

fn known(entry: &str) -> Waits {
    let (symbol, is_lazy) = entry.strip_suffix(":1").map_or((entry, false), |symbol| (symbol, true));
    if !crate::symbols().any(|known| known == symbol) {
        log::give_up(&format!("RINGMEM_DOUBLE_WAITS: {symbol} is not a function of the driver"));
    }
    Waits { symbol: symbol.to_owned(), is_due: AtomicBool::new(true), is_lazy }
}

/// `KERNEL=NUMBER,...`
fn of_kernels(name: &str, text: &str) -> Vec<(String, u32)> {
    let parsed = |entry: &str| {
        let parsed = entry.split_once('=').and_then(|(kernel, number)| Some((kernel.to_owned(), number.parse().ok()?)));
        parsed.unwrap_or_else(|| log::give_up(&format!("{name}: {entry} is not KERNEL=NUMBER")))
    };
    text.split(',').filter(|entry| !entry.is_empty()).map(parsed).collect()
}

pub fn announce() {
    eprintln!("{NAME}: a test double answers for the CUDA driver; no figure from here is a GPU's");
}
