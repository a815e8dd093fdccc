//! Waiting at a ring: until there is room, until there is a message, until the other side is dropped.
//!
//! Use it for threads and tasks that have nothing else to do. Use the [rings](crate::ring) directly to poll, and in `no_std`.
//!
//! 1. [`Waiting`] is an end that waits, by the strategy [`WaitStrategy`], with an optional deadline.
//! 2. No wake-up is lost: a sleeper counts itself, checks once more, and sleeps; a publisher reads the count afterwards. Both use a
//!    read-modify-write of one word, so one of them comes first and the other sees it.
//! 3. A future takes a message only in the poll that returns it: cancelling it loses none. Forgetting it costs one slower wake-up.
//! 4. Messages that the other side published before it was dropped are received first, then [`RecvError::Disconnected`].
//!
//! Both ends of a ring wait by the same strategy, because an end that polls wakes nobody. A GPU wakes nobody, so a host that waits for one polls
//! ([`WaitStrategy::Spin`], [`WaitStrategy::SpinYield`]). Threads of different processes wake each other. Tasks are woken by an end in their own process that
//! [`pair`] connected; otherwise they poll repeatedly.
//!
//! [`Waiting`] owns its end or borrows it (`&mut E`). A borrowed end that is dropped after its [`Waiting`] wakes nobody: rule 4 then needs a
//! deadline.
//!
//! [`send`](Waiting::send) and [`recv`](Waiting::recv) move values, [`send_bytes`](Waiting::send_bytes) and [`recv_bytes`](Waiting::recv_bytes)
//! messages of bytes; [`wait`](Waiting::wait) serves every other operation. For rings whose readers write nothing, [`broadcast`] keeps the wait
//! word outside the ring.
//!
//! It does not allocate on the path of a message, and does not choose between polling and sleeping by itself.
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
mod waiting;

pub use bounded::{Receiver, Sender, bounded, bounded_mpmc, bounded_mpsc};
pub use broadcast::{Follower, Publisher, broadcast, connect, follow};
pub use error::{RecvError, SendError, WaitError};
pub use future::{RecvFuture, SendFuture};
#[cfg(feature = "futures")]
pub use futures::{ByteSink, ByteStream, MessageSink, MessageStream};
pub use iter::IntoIter;
pub(crate) use park::wake_sleepers;
pub use park::{Os, Park, WakerList};
pub use select::select;
pub use waiting::{WaitStrategy, Waiting, pair};
