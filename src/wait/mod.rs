//! Waiting at a ring: until there is room, until there is a message, until the other side has left.
//!
//! 1. The [rings](crate::ring) return at once. [`Waiting`] is an end of one that waits, in the way that [`How`] says, with a
//!    deadline if there is one.
//! 2. No wake-up is lost: a sleeper counts itself, looks once more, and sleeps; whoever publishes looks at the count afterwards. Both go
//!    through one word by read-modify-write, so one of them comes first and the other sees it.
//! 3. A future takes a message only in the poll that returns it: cancelling it loses none. One that is forgotten costs a slower wake-up, once.
//! 4. When the other side has left, what it published comes first, then [`RecvError::Disconnected`].
//!
//! Both ends of a ring wait in the same way: an end that polls wakes nobody. A GPU wakes nobody either, so a host that waits for one polls
//! ([`How::Spin`], [`How::SpinYield`]). Between processes threads wake each other. Tasks are woken by their own process only, by the end that
//! [`pair`] joined with theirs; one whose peer is elsewhere asks to be polled again instead.
//!
//! [`Waiting`] takes an end that is owned or one that is borrowed (`&mut E`): what it owns goes along to any thread or task. An end that is
//! dropped outside of its [`Waiting`], because that had only borrowed it, wakes nobody: rule 4 is for ends that are owned, and for waits with
//! a deadline.
//!
//! Values are [sent](Waiting::send) and [received](Waiting::recv), messages of bytes by [`send_bytes`](Waiting::send_bytes) and
//! [`recv_bytes`](Waiting::recv_bytes); for anything else that an end does there is [`wait`](Waiting::wait). Rings whose readers write nothing have
//! a bell [beside](broadcast) them.
//!
//! ```
//! use ringmem::wait;
//!
//! let (mut sender, receiver) = wait::bounded(8);
//! std::thread::scope(|scope| {
//!     scope.spawn(move || (0..100).for_each(|number| sender.send(number).unwrap()));
//!     let numbers: Vec<u64> = receiver.into_iter().collect();
//!     assert_eq!(numbers, (0..100).collect::<Vec<_>>());
//! });
//! ```

mod beside;
mod bounded;
mod bytes;
mod error;
mod future;
#[cfg(feature = "futures")]
mod futures;
mod iter;
mod park;
mod select;
mod waiting;

pub use beside::{Follower, Publisher, beside, broadcast, follow};
pub use bounded::{Receiver, Sender, bounded, bounded_mpmc, bounded_mpsc};
pub use error::{RecvError, SendError, WaitError};
pub use future::{Receive, Transmit};
#[cfg(feature = "futures")]
pub use futures::{ByteMessages, ByteOutbox, Messages, Outbox};
pub use iter::IntoIter;
pub(crate) use park::wake_sleepers;
pub use park::{Os, Park, Shelf};
pub use select::select;
pub use waiting::{How, Waiting, pair};
