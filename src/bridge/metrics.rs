use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Counters of one direction of a bridge.
///
/// A strategy with shared rings ([`Unified`](super::TransferStrategy::Unified), [`Flagged`](super::TransferStrategy::Flagged)) copies nothing: only
/// `messages` and `fences` count there.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let Opened { mut sender, mut bridge, .. } =
///     RingBufferBridge::<Echo, Echo>::open(&backend, 0, &Options::new(TransferStrategy::Sync))?;
/// (0..10).for_each(|id| sender.push(Echo { words: [id; 8] }).expect("room"));
/// bridge.flush_to_device()?;
/// let [to_device, _to_host] = bridge.metrics();
/// assert_eq!((to_device.messages, to_device.copies), (10, 1));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Messages arrived, slots released; in a shared ring, messages published.
    pub messages: u64,
    /// Flushes that began to move messages.
    pub flushes: u64,
    /// Copies of messages.
    pub copies: u64,
    /// Bytes of messages in copies.
    pub bytes: u64,
    /// Index words stored in the kernel's ring.
    pub publications: u64,
    /// Polls of the kernel's index.
    pub polls: u64,
    /// Flushes that found messages but no free slots.
    pub full: u64,
    /// Fences, where a shared ring needs no copies.
    pub fences: u64,
    /// Failed flushes, repeated by the next.
    pub failures: u64,
}

macro_rules! counts {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub $name: Count),* }

        impl Counts {
            pub fn read(&self) -> Metrics {
                Metrics { $($name: self.$name.0.load(Relaxed)),* }
            }
        }
    };
}
counts!(messages, flushes, copies, bytes, publications, polls, full, fences, failures);

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.set(self.0.load(Relaxed).wrapping_add(more));
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
}
