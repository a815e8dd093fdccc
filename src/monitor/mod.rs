//! Figures of running channels for other processes of the same user, as in `ringmem top`.
//!
//! Inside the program, [`Channel::dump`](crate::channel::Channel::dump) and [`Channel::telemetry`](crate::channel::Channel::telemetry) show
//! more.
//!
//! 1. A [named](crate::channel::Builder::publish) channel's calls write its figures to a [`Page`] in a file. No thread writes it: while the
//!    channel makes no calls, the page is unchanged: [`Figures::idle_for_ns`] tells for how long.
//! 2. Each call stores the counts. At most every 10 ms, and with each [`watch`](crate::channel::Channel::watch), `dump` and `command`, it
//!    stores all figures. High-water marks are the largest values of these samples. Messages of a batch are counted by the next call.
//! 3. The round trip, from a send to the receipt of its answer, is measured for one message at a time. The kernel must answer each message
//!    once, in order.
//! 4. The file is private to its user; [`View`] maps it read-only and trusts no word in it.
//! 5. The channel opens even if its figures cannot be published: [`Channel::unpublished`](crate::channel::Channel::unpublished) returns the
//!    reason.
//! 6. Dropping the channel removes the file; after a kill, the user's next publication does.
//!
//! A channel that is not published reads no clock, and has only one more branch per call.
//!
//! Linux only.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::channel::Channel;
//! use ringmem::monitor;
//! use ringmem_kernels::echo::{ECHO, Echo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = HostBackend::builder().build()?;
//! let mut channel = Channel::builder(ECHO).publish("prices").open(&backend, 0)?;
//! channel.send(Echo { words: [7; 8] })?;
//! channel.recv()?;
//! // Here, or in another process:
//! let published = monitor::list()?;
//! let published = published.iter().find(|one| one.name == "prices" && one.pid == std::process::id()).expect("it was published");
//! let figures = monitor::View::open(&published.path)?.read()?;
//! assert_eq!((figures.kernel.as_str(), figures.sent, figures.received), ("echo", 1, 1));
//! # Ok(())
//! # }
//! ```

mod folder;
mod publisher;
mod round_trips;
mod view;

use ringmem_layouts::SharedLayout;

use crate::HostWord;

pub use folder::{Published, list};
pub(crate) use publisher::Publisher;
pub use round_trips::RoundTrips;
pub use view::{Figures, PoolUse, View};

/// The first word of a page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rm.page\0");
/// The version of the format.
pub const VERSION: u64 = 1;

/// A published channel's file: words that only the channel writes; any bytes are valid.
///
/// ```
/// use ringmem::Layout;
/// use ringmem::monitor::{MAGIC, Page};
///
/// /// Messages sent, from the bytes of a page: for programs without this library.
/// fn sent(page: &[u8]) -> Option<u64> {
///     let word = |at: usize| Some(u64::from_le_bytes(*page.get(at..)?.first_chunk()?));
///     (word(0)? == MAGIC).then(|| word(std::mem::offset_of!(Page, sent)))?
/// }
///
/// let mut page = vec![0; Page::DESCRIPTOR.size];
/// assert_eq!(sent(&page), None);
/// page[..8].copy_from_slice(&MAGIC.to_le_bytes());
/// assert_eq!(sent(&page), Some(0));
/// ```
#[derive(SharedLayout)]
#[repr(C, align(64))]
pub struct Page {
    /// [`MAGIC`]. Stored last.
    pub magic: HostWord,
    /// [`VERSION`].
    pub version: HostWord,
    /// Size of the page in bytes.
    pub size: HostWord,
    /// Process id.
    pub pid: HostWord,
    /// Time of the publication. All times: nanoseconds of `CLOCK_MONOTONIC`.
    pub created_ns: HostWord,
    /// How long the heartbeat may stand still, nanoseconds.
    pub stuck_after_ns: HostWord,
    /// Messages sent, counted from the start index. Stored by each call.
    pub sent: HostWord,
    /// Answers received, counted likewise.
    pub received: HostWord,
    /// Name of the kernel: UTF-8, filled with zeros.
    pub kernel: [HostWord; 8],
    /// Odd while the figures up to `pool` are being written: a seqlock.
    pub sequence: HostWord,
    /// Time of these figures.
    pub sampled_ns: HostWord,
    /// Time when the heartbeat was first seen at its value.
    pub heartbeat_ns: HostWord,
    /// 1 if `pool` has a pool's figures.
    pub has_pool: HostWord,
    /// High-water marks of input and output ring, in messages.
    pub high_water: [HostWord; 2],
    /// Zero.
    pub _reserved: [HostWord; 2],
    /// The words of the `ControlBlock`.
    pub control: [HostWord; 16],
    /// The words of the last complete `TelemetryBuffer`.
    pub telemetry: [HostWord; 8],
    /// Head, tail and capacity of the host's input ring, then of its output ring.
    pub rings: [HostWord; 6],
    /// Of a pool: bytes reserved, their peak, live blocks' bytes, live blocks, hits, misses.
    pub pool: [HostWord; 6],
    /// Zero.
    pub _reserved_too: [HostWord; 4],
    /// Round trips by duration: see [`RoundTrips`].
    pub round_trips: [HostWord; RoundTrips::BUCKETS],
}

const BYTES: usize = size_of::<Page>();

const _: () = assert!(BYTES <= 4096, "a page of the system");

fn now() -> u64 {
    time_of(rustix::time::ClockId::Monotonic)
}

fn time_of(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
