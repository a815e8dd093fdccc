use core::pin::Pin;
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
/// Of the receivers that are ready, a call returns the one that was returned longest ago. So none starves, whatever other calls run between: a
/// receiver that stays ready is returned by one of the next `receivers.len()` calls over the same receivers. A receiver remembers this when it
/// moves to another slice.
///
/// Senders in other processes are polled in a loop. A call's time is in proportion to the number of receivers, even if the first has a message.
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
    if receivers.is_empty() {
        return None;
    }
    // A start that rotates would not do: callers that alternate over several slices may see the same start each time.
    let call = receivers.iter().map(|receiver| receiver.last_selected).max().unwrap_or(0) + 1;
    let mut order: Vec<usize> = (0..receivers.len()).collect();
    order.sort_by_key(|&index| receivers[index].last_selected);
    let (index, received) = first_ready(receivers, &order, deadline)?;
    receivers[index].last_selected = call;
    Some((index, received))
}

fn first_ready<E: Pop, P: Park<E::Word>>(
    receivers: &mut [Waiting<E, P>],
    order: &[usize],
    deadline: Option<Instant>,
) -> Option<(usize, Received<E>)> {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    // Dropping a pending future loses no message.
    let mut waiting: Vec<_> = receivers.iter_mut().map(Waiting::recv_async).collect();
    loop {
        for &index in order {
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
