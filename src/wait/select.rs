use core::pin::Pin;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;
use std::vec::Vec;

use super::waiting::Received;
use super::{Park, Waiting};
use crate::ring::Pop;

/// Waits until a receiver has a message, is disconnected or corrupt. Returns its index and the result of [`recv`](Waiting::recv); `None` at
/// the deadline, or without receivers.
///
/// Each call starts at another receiver, so none starves. Senders in other processes are polled in a loop. A call's time is in proportion to the
/// number of receivers, even if the first has a message.
///
/// ```
/// use ringmem::wait;
///
/// let (mut sender, first) = wait::bounded::<&str>(8);
/// let (_idle, second) = wait::bounded(8);
/// sender.send("hello")?;
/// let mut receivers = [second, first];
/// assert_eq!(wait::select(&mut receivers, None), Some((1, Ok("hello"))));
/// # Ok::<(), wait::SendError<&str>>(())
/// ```
pub fn select<E: Pop, P: Park<E::Word>>(receivers: &mut [Waiting<E, P>], deadline: Option<Instant>) -> Option<(usize, Received<E>)> {
    static TURN: AtomicUsize = AtomicUsize::new(0);

    let count = receivers.len();
    if count == 0 {
        return None;
    }
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    // Dropping a pending future loses no message.
    let mut waiting: Vec<_> = receivers.iter_mut().map(Waiting::recv_async).collect();
    let first = TURN.fetch_add(1, Relaxed) % count;
    loop {
        for index in (first..count).chain(0..first) {
            if let Poll::Ready(received) = Pin::new(&mut waiting[index]).poll(&mut context) {
                return Some((index, received));
            }
        }
        match deadline {
            None => thread::park(),
            Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => return None,
            },
        }
    }
}

/// `unpark` before `park` leaves a token.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
