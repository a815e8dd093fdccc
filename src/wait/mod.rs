//! Waiting at a ring for room, a message, or the other side's drop.
//!
//! It is for threads and tasks with nothing else to do. To poll, and in `no_std`, use the [rings](crate::ring) directly.
//!
//! 1. [`Waiting`] is an end that waits by a [`WaitStrategy`], with an optional deadline.
//! 2. No wake-up is lost: a sleeper counts itself, then checks again; a publisher reads the count afterwards, by a read-modify-write of the
//!    same word.
//! 3. A future takes a message only in the poll that returns it: cancelling it loses none. Forgetting it costs one slower wake-up.
//! 4. The other side's published messages are received first, then [`RecvError::Disconnected`].
//! 5. While a ring is ready, a future is ready at once: it takes no part in an executor's cooperative budget, such as tokio's. A loop that awaits it
//!    must yield by itself, or other tasks of its thread wait.
//!
//! Both ends use the same strategy: an end that polls does not wake its peer. Nor does a GPU: the host's end polls ([`WaitStrategy::Spin`],
//! [`WaitStrategy::SpinYield`]). Threads of different processes wake each other. Tasks are woken by an end of the same [`pair`]; otherwise
//! they poll.
//!
//! A borrowed end that is dropped after its [`Waiting`] does not wake its peer: to notice rule 4, the peer then needs a deadline.
//!
//! [`send`](Waiting::send) and [`recv`](Waiting::recv) move values, [`send_bytes`](Waiting::send_bytes) and
//! [`recv_bytes`](Waiting::recv_bytes) bytes; [`wait`](Waiting::wait) is for other operations, [`broadcast`] for rings whose readers
//! write nothing. No message allocates.
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

mod bounded;
mod broadcast;
mod bytes;
mod error;
mod future;
#[cfg(feature = "futures")]
mod futures;
mod iter;
mod park;
mod select;
mod stream;
mod waiting;

pub use bounded::{Receiver, Sender, bounded, bounded_mpmc, bounded_mpsc};
pub use broadcast::{Follower, Publisher, broadcast, connect, follow};
pub use error::{RecvError, SendError, TryRecvError, TrySendError, WaitError};
pub use future::{RecvFuture, SendFuture};
#[cfg(feature = "futures")]
pub use futures::{ByteSink, ByteStream, MessageSink, MessageStream};
pub use iter::IntoIter;
pub(crate) use park::wake_sleepers;
pub use park::{Os, Park, WakerList};
pub use select::select;
pub use waiting::{WaitStrategy, Waiting, pair};
