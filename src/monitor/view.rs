use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::string::String;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use ringmem_layouts::attach::AttachError;
use zerocopy::transmute;

use super::{BYTES, MAGIC, Page, RoundTrips, VERSION, folder, now};
use crate::control::State;
use crate::dump::{Conclusion, Dump, Indices, Twins};
use crate::shared::mapping::Mapping;
use crate::shared::private_file;
use crate::telemetry::TRIES;
use crate::watchdog::Verdict;
use crate::{ControlBlock, Error, HostWord, Result, TelemetryBuffer};

/// A channel in use calls more often; a loop that waits polls at least every millisecond.
const IDLE_AFTER_NS: u64 = 1_000_000_000;

/// A published page, mapped read-only.
///
/// A process of the same user that truncates the file meanwhile ends this one by `SIGBUS`.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::monitor::{self, View};
/// use ringmem_kernels::echo::ECHO;
///
/// let backend = HostBackend::builder().build()?;
/// let channel = Channel::builder(ECHO).publish("view").open(&backend, 0)?;
/// let published = monitor::list()?.into_iter().find(|one| one.pid == std::process::id()).expect("it was published");
/// let view = View::open(&published.path)?;
/// assert!(view.is_live());
/// drop(channel);
/// assert!(!view.is_live());
/// assert_eq!(view.read()?.sent, 0); // still mapped
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct View {
    file: OwnedFd,
    mapping: Mapping,
}

/// A page's figures, unchecked: any values are possible.
///
/// ```
/// # use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::monitor::{self, View};
/// use ringmem::watchdog::Verdict;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// # let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::builder(ECHO).publish("figures").open(&backend, 0)?;
/// channel.send(Echo { words: [7; 8] })?;
/// channel.recv()?;
/// let published = monitor::list()?.into_iter().find(|one| one.pid == std::process::id()).expect("it was published");
/// let figures = View::open(&published.path)?.read()?;
/// if let Verdict::Stuck { for_ns } = figures.verdict() {
///     println!("{} is stuck for {for_ns} ns: {}", figures.kernel, figures.conclusion());
/// }
/// assert_eq!((figures.received, figures.round_trips.count()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// Process id.
    pub pid: u64,
    /// Name of the kernel; unprintable characters are replaced.
    pub kernel: String,
    /// Time since the publication. `None` for this and other times in the future.
    pub open_for_ns: Option<u64>,
    /// Time since the last sample; see [`idle_for_ns`](Self::idle_for_ns).
    pub age_ns: Option<u64>,
    /// Time from the heartbeat's change to the last sample.
    pub quiet_for_ns: Option<u64>,
    /// How long the heartbeat may stand still.
    pub stuck_after_ns: u64,
    /// Messages sent.
    pub sent: u64,
    /// Answers received.
    pub received: u64,
    /// The control block at the last sample.
    pub control: ControlBlock<u64>,
    /// The telemetry at the last sample.
    pub telemetry: TelemetryBuffer<u64>,
    /// The host's rings at the last sample: to and from the kernel.
    pub rings: [Indices; 2],
    /// Most messages found in each ring.
    pub high_water: [u64; 2],
    /// Measured round trips.
    pub round_trips: RoundTrips,
    /// The channel's pool, if shown.
    pub pool: Option<PoolUse>,
}

/// A part of a pool's [`Statistics`](crate::pool::Statistics).
///
/// ```
/// # use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::monitor::{self, View};
/// use ringmem::pool::Pool;
/// use ringmem_kernels::echo::ECHO;
///
/// # let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let _live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
/// let mut channel = Channel::builder(ECHO).publish("pool").open(&backend, 0)?;
/// channel.publish_pool(&pool);
/// let published = monitor::list()?.into_iter().find(|one| one.pid == std::process::id()).expect("it was published");
/// let shown = View::open(&published.path)?.read()?.pool.expect("a pool is published");
/// assert_eq!((shown.live, shown.misses, shown.reserved_bytes), (1, 1, 2 << 20));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUse {
    /// Bytes of slabs and blocks outside slabs.
    pub reserved_bytes: u64,
    /// High-water mark of `reserved_bytes`.
    pub reserved_peak: u64,
    /// Allocated bytes of the live blocks.
    pub held_bytes: u64,
    /// Live blocks.
    pub live: u64,
    /// As [`Statistics::hits`](crate::pool::Statistics::hits).
    pub hits: u64,
    /// All other requests.
    pub misses: u64,
}

impl View {
    /// Maps a page, without following symbolic links.
    ///
    /// # Errors
    ///
    /// As [`shared::View::open`](crate::shared::View::open).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (file, _) = private_file::open(path.as_ref())?;
        let mapping = Mapping::read_only(file.as_fd(), BYTES as u64)?;
        let view = Self { file, mapping };
        view.page()?;
        Ok(view)
    }

    fn page(&self) -> Result<&Page> {
        let (needed, got) = (BYTES as u64, private_file::len(&self.file));
        if got < needed {
            return Err(AttachError::TooSmall { needed, got }.into());
        }
        // SAFETY: mapped with this length, at a page's start, as long as `self`. A page consists of words, valid for any bytes.
        let page: &Page = unsafe { self.mapping.place().cast().as_ref() };
        let magic = page.magic.load(Relaxed);
        // SYNC POINT: page seen. Pairs with Publisher::create.
        fence(Acquire);
        let [version, size] = [page.version.load(Relaxed), page.size.load(Relaxed)];
        if magic != MAGIC {
            return Err(AttachError::Magic { expected: MAGIC, got: magic }.into());
        }
        if version != VERSION {
            return Err(AttachError::Version { expected: VERSION, got: version }.into());
        }
        if size != needed {
            return Err(AttachError::TooSmall { needed, got: size }.into());
        }
        Ok(page)
    }

    /// Returns whether the channel exists, in a live process.
    #[must_use]
    pub fn is_live(&self) -> bool {
        folder::is_locked(&self.file)
    }

    /// Reads the figures.
    ///
    /// # Errors
    ///
    /// [`Error::Attach`] for another file, [`Error::Busy`] if each attempt met a write.
    pub fn read(&self) -> Result<Figures> {
        let page = self.page()?;
        for _ in 0..TRIES {
            let sequence = page.sequence.load(Relaxed);
            fence(Acquire);
            let figures = figures(page);
            // SYNC POINT: figures read. Pairs with Publisher::sample.
            fence(Acquire);
            if sequence & 1 == 0 && page.sequence.load(Relaxed) == sequence {
                return Ok(figures);
            }
            core::hint::spin_loop();
        }
        Err(Error::Busy { what: "the page is being written, or its writer stopped in the middle" })
    }
}

fn load<const N: usize>(words: &[HostWord; N]) -> [u64; N] {
    core::array::from_fn(|at| words[at].load(Relaxed))
}

fn figures(page: &Page) -> Figures {
    let time = now();
    let since = |at: u64, to: u64| to.checked_sub(at).filter(|_| at != 0);
    let sampled = page.sampled_ns.load(Relaxed);
    let text = load(&page.kernel).map(u64::to_le_bytes).concat();
    let [head, tail, capacity, output_head, output_tail, output_capacity] = load(&page.rings);
    let [reserved_bytes, reserved_peak, held_bytes, live, hits, misses] = load(&page.pool);
    let pool = PoolUse { reserved_bytes, reserved_peak, held_bytes, live, hits, misses };
    Figures {
        pid: page.pid.load(Relaxed),
        kernel: printable(&text),
        open_for_ns: since(page.created_ns.load(Relaxed), time),
        age_ns: since(sampled, time),
        quiet_for_ns: since(page.heartbeat_ns.load(Relaxed), sampled),
        stuck_after_ns: page.stuck_after_ns.load(Relaxed),
        sent: page.sent.load(Relaxed),
        received: page.received.load(Relaxed),
        control: transmute!(load(&page.control)),
        telemetry: transmute!(load(&page.telemetry)),
        rings: [Indices { head, tail, capacity }, Indices { head: output_head, tail: output_tail, capacity: output_capacity }],
        high_water: load(&page.high_water),
        round_trips: RoundTrips(load(&page.round_trips)),
        pool: (page.has_pool.load(Relaxed) == 1).then_some(pool),
    }
}

fn printable(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let shown = |c: char| if c.is_alphanumeric() || c.is_ascii_graphic() { c } else { '?' };
    String::from_utf8_lossy(text).chars().map(shown).collect()
}

impl Figures {
    /// Returns the kernel's state and heartbeat at the last sample.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let quiet = self.quiet_for_ns.unwrap_or(0);
        match self.control.kernel_state() {
            _ if u64::from(self.control.kernel_epoch()) != self.control.epoch => Verdict::OtherEpoch,
            Some(state @ (State::Terminated | State::Faulted)) => Verdict::Ended(state),
            _ if quiet > self.stuck_after_ns => Verdict::Stuck { for_ns: quiet },
            _ if quiet > 0 => Verdict::Quiet { for_ns: quiet },
            _ => Verdict::Alive,
        }
    }

    /// Returns the time since the channel's last call, if that was over a second ago; at most 10 ms more than that. Only calls write samples, so
    /// all figures but [`sent`](Self::sent) and [`received`](Self::received) describe that time: the kernel may have answered since.
    #[must_use]
    pub fn idle_for_ns(&self) -> Option<u64> {
        self.age_ns.filter(|&age| age > IDLE_AFTER_NS)
    }

    /// Returns the kernel's condition at the last sample, by the host's rings.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let [input, output] = self.rings;
        Dump { control: self.control, telemetry: Ok(self.telemetry), input, output, twins: Twins::Unseen, verdict: self.verdict() }
            .conclusion()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("file", &self.file).finish_non_exhaustive()
    }
}
