use super::{Owned, own_bytes};
use crate::Local;
use crate::ring::framed::{Boxed, Consumer, Producer, RingIn};
use crate::ring::{BareSlot, Storage};

/// A producer that shares ownership of its ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{OwnedProducer, bounded};
///
/// struct Log {
///     lines: OwnedProducer,
/// }
///
/// let (lines, mut consumer) = bounded(256);
/// let mut log = Log { lines };
/// log.lines.push(b"started")?;
/// assert_eq!(consumer.pop(&mut [0; 16]), Ok(7));
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub type OwnedProducer = Owned<Producer<'static, Local>>;

/// A consumer that shares ownership of its ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{OwnedConsumer, bounded};
///
/// fn bytes(mut consumer: OwnedConsumer) -> usize {
///     std::iter::from_fn(|| consumer.pop(&mut [0; 32]).ok()).sum()
/// }
///
/// let (mut producer, consumer) = bounded(256);
/// producer.push(b"two")?;
/// producer.push(b"messages")?;
/// assert_eq!(std::thread::spawn(|| bytes(consumer)).join().unwrap(), 11);
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub type OwnedConsumer = Owned<Consumer<'static, Local>>;

/// Allocates a ring of at least `bytes` bytes (the next power of two, at least 16); its ends share ownership.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// let (mut producer, mut consumer) = ringmem::ring::framed::bounded(1000);
/// producer.push(b"hello").unwrap();
/// let mut message = [0; 16];
/// assert_eq!((consumer.pop(&mut message), &message[..5]), (Ok(5), &b"hello"[..]));
/// ```
///
/// # Panics
///
/// If that exceeds `isize::MAX`.
#[must_use]
pub fn bounded(bytes: usize) -> (OwnedProducer, OwnedConsumer) {
    Boxed::with_capacity(bytes).into_ends()
}

impl<S: Storage<BareSlot<u64>>> RingIn<S> {
    /// Like [`split`](Self::split), with shared ownership.
    #[must_use]
    pub fn into_ends(self) -> (OwnedProducer, OwnedConsumer)
    where
        S: Send + 'static,
    {
        own_bytes(self, Self::split)
    }
}
