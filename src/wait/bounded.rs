use super::{WaitStrategy, Waiting, pair};
use crate::ring::{mpmc, mpsc, spsc};

/// The sender of [`bounded`].
///
/// ```
/// let (mut sender, receiver) = ringmem::wait::bounded::<String>(16);
/// let thread = std::thread::spawn(move || receiver.into_iter().collect::<Vec<_>>());
/// sender.send("hello".to_owned()).unwrap();
/// drop(sender); // ends the iteration
/// assert_eq!(thread.join().unwrap(), ["hello"]);
/// ```
pub type Sender<T> = Waiting<spsc::OwnedProducer<T>>;
/// The receiver of [`bounded`].
///
/// ```
/// use std::time::Duration;
///
/// let (mut sender, mut receiver) = ringmem::wait::bounded::<u32>(16);
/// assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
/// sender.send(7).unwrap();
/// assert_eq!(receiver.recv(), Ok(7));
/// ```
pub type Receiver<T> = Waiting<spsc::OwnedConsumer<T>>;

/// Allocates an SPSC ring of at least `capacity` slots (the next power of two, at least 1) with waiting ends.
///
/// ```
/// use ringmem::wait;
///
/// let (mut sender, receiver) = wait::bounded(8);
/// let producer = std::thread::spawn(move || (0..100).for_each(|number| sender.send(number).unwrap()));
/// assert_eq!(receiver.into_iter().sum::<u64>(), 4950);
/// producer.join().unwrap();
/// ```
///
/// # Panics
///
/// If the slots exceed `isize::MAX` bytes.
#[must_use]
pub fn bounded<T: Send + 'static>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = spsc::bounded(capacity);
    pair(producer, consumer, WaitStrategy::default())
}

/// As [`bounded`], for many senders: clone the sender.
#[must_use]
pub fn bounded_mpsc<T: Send + 'static>(capacity: usize) -> (Waiting<mpsc::OwnedProducer<T>>, Waiting<mpsc::OwnedConsumer<T>>) {
    let (producer, consumer) = mpsc::bounded(capacity);
    pair(producer, consumer, WaitStrategy::default())
}

/// As [`bounded`], for many senders and receivers: clone them.
#[must_use]
pub fn bounded_mpmc<T: Send + 'static>(capacity: usize) -> (Waiting<mpmc::OwnedProducer<T>>, Waiting<mpmc::OwnedConsumer<T>>) {
    let (producer, consumer) = mpmc::bounded(capacity);
    pair(producer, consumer, WaitStrategy::default())
}
