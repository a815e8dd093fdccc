use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use super::park::{Os, Park, WakerList};
use super::waiting::{WaitStrategy, Waiting, WakesOnDrop, enlist, pop, push, strike};
use super::{RecvError, SendError, WaitError};
use crate::attach::Corruption;
use crate::ring::{End, Pop, Push};

/// A task's entry in its side's wakers after an unsuccessful poll.
pub(super) struct WakerEntry {
    key: Option<u64>,
    has_woken_peer: bool,
}

impl WakerEntry {
    pub(super) const fn new() -> Self {
        Self { key: None, has_woken_peer: false }
    }

    pub(super) fn poll<E: End, P: Park<E::Word>, R>(
        &mut self,
        waiting: &mut Waiting<E, P>,
        cx: &Context<'_>,
        mut attempt: impl FnMut(&mut E) -> Option<R>,
    ) -> Poll<Option<R>> {
        let mut try_once = |waiting: &mut Waiting<E, P>| {
            if let Some(result) = attempt(waiting.end_mut()) {
                return Some(Some(result));
            }
            // All work of the other side is visible now.
            waiting.end().is_disconnected().then(|| attempt(waiting.end_mut()))
        };
        let mut done = try_once(waiting);
        if done.is_none() && !mem::replace(&mut self.has_woken_peer, true) {
            waiting.wake_peer();
        }
        if done.is_none() && (waiting.wakers.are_alone() || !matches!(waiting.how, WaitStrategy::Sleep { .. })) {
            // No other end will wake this task.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if done.is_none() {
            self.enter(waiting, cx);
            done = try_once(waiting);
        }
        let Some(done) = done else {
            // An end was exchanged since the check above. That wakes the tasks that it finds in the list, perhaps before this one was there.
            if waiting.wakers.are_alone() {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        self.leave(waiting);
        self.has_woken_peer = false;
        if done.is_some() {
            waiting.wake_peer();
        }
        Poll::Ready(done)
    }

    fn enter<E: End, P: Park<E::Word>>(&mut self, waiting: &mut Waiting<E, P>, cx: &Context<'_>) {
        let key = *self.key.get_or_insert_with(|| {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            NEXT.fetch_add(1, Relaxed)
        });
        let word = waiting.end().wait_words().ours;
        // Outside the lock: a waker is foreign code.
        let mut waker = Some(cx.waker().clone());
        waiting.wakers().with(|wakers| match (wakers.iter_mut().find(|(other, _)| *other == key), waker.take()) {
            (Some((_, old)), Some(new)) => waker = Some(mem::replace(old, new)),
            (None, Some(new)) => {
                wakers.push((key, new));
                enlist(word);
            }
            (_, None) => {}
        });
        drop(waker);
    }

    pub(super) fn leave<E: End, P: Park<E::Word>>(&mut self, waiting: &Waiting<E, P>) {
        let Some(key) = self.key.take() else { return };
        // In a fork, the list of wakers may be locked by a thread that is not there.
        if !waiting.end().is_here() {
            return;
        }
        let word = waiting.end().wait_words().ours;
        let waker = waiting.wakers().with(|wakers| {
            // Otherwise, its waker's end removed it.
            let place = wakers.iter().position(|(other, _)| *other == key)?;
            strike(word, 1);
            Some(wakers.swap_remove(place))
        });
        drop(waker);
    }
}

impl<E: End, P: Park<E::Word>> Waiting<E, P> {
    fn wakers(&self) -> &P::WakerList {
        self.wakers.of(self.side)
    }

    /// As [`wait`](Self::wait); a future dropped earlier took nothing.
    pub fn wait_async<T, R>(
        &mut self,
        mut attempt: impl FnMut(&mut E) -> Option<Result<T, R>>,
    ) -> impl Future<Output = Result<T, WaitError<R>>> {
        self.outcome_async(move |end| attempt(end).map(|done| done.map_err(WaitError::Refused)))
    }

    pub(super) fn outcome_async<T, R, F>(&mut self, attempt: F) -> Until<'_, E, P, F>
    where
        F: FnMut(&mut E) -> Option<Result<T, WaitError<R>>>,
    {
        Until { waiting: self, place: WakerEntry::new(), attempt }
    }
}

impl<E: Pop, P: Park<E::Word>> Waiting<E, P> {
    /// Pops a value; waits for one; a future dropped earlier pops nothing.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), without a timeout.
    pub fn recv_async(&mut self) -> RecvFuture<'_, E, P> {
        RecvFuture { waiting: self, place: WakerEntry::new() }
    }
}

impl<E: Push, P: Park<E::Word>> Waiting<E, P> {
    /// Pushes a value; waits for room. A dropped future drops the value; [`SendFuture::cancel`] returns it.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), without a timeout.
    pub fn send_async(&mut self, value: E::Item) -> SendFuture<'_, E, P> {
        SendFuture { waiting: self, place: WakerEntry::new(), value: Some(value) }
    }
}

/// The future of [`Waiting::recv_async`].
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let (mut sender, mut receiver) = ringmem::wait::bounded::<u32>(16);
/// sender.send(7).unwrap();
/// drop(receiver.recv_async()); // cancelled: takes nothing
/// let mut cx = Context::from_waker(Waker::noop()); // any executor
/// # use std::future::Future;
/// assert_eq!(pin!(receiver.recv_async()).poll(&mut cx), Poll::Ready(Ok(7)));
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct RecvFuture<'w, E: Pop, P: Park<E::Word> = Os> {
    waiting: &'w mut Waiting<E, P>,
    place: WakerEntry,
}

impl<E: Pop, P: Park<E::Word>> Future for RecvFuture<'_, E, P> {
    type Output = Result<E::Item, RecvError<E::Corrupt>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waiting, place } = &mut *self;
        place.poll(waiting, cx, pop).map(|received| received.unwrap_or(Err(RecvError::Disconnected)))
    }
}

impl<E: Pop, P: Park<E::Word>> Drop for RecvFuture<'_, E, P> {
    fn drop(&mut self) {
        self.place.leave(self.waiting);
    }
}

/// The future of [`Waiting::send_async`].
///
/// ```
/// let (mut sender, mut receiver) = ringmem::wait::bounded::<u32>(2);
/// let future = sender.send_async(7);
/// assert_eq!(future.cancel(), Some(7)); // not sent
/// assert!(receiver.try_recv().is_err());
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct SendFuture<'w, E: Push, P: Park<E::Word> = Os> {
    waiting: &'w mut Waiting<E, P>,
    place: WakerEntry,
    value: Option<E::Item>,
}

impl<E: Push, P: Park<E::Word>> Unpin for SendFuture<'_, E, P> {}

impl<E: Push, P: Park<E::Word>> SendFuture<'_, E, P> {
    /// Cancels the send; returns an unsent value.
    pub fn cancel(mut self) -> Option<E::Item> {
        self.value.take()
    }
}

impl<E: Push, P: Park<E::Word>> Future for SendFuture<'_, E, P> {
    type Output = Result<(), SendError<E::Item, E::Corrupt>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waiting, place, value } = &mut *self;
        if value.is_none() {
            return Poll::Ready(Ok(()));
        }
        place.poll(waiting, cx, |end| push(end, value)).map(|sent| outcome(sent, value))
    }
}

impl<E: Push, P: Park<E::Word>> Drop for SendFuture<'_, E, P> {
    fn drop(&mut self) {
        self.place.leave(self.waiting);
    }
}

pub(super) struct Until<'w, E: End, P: Park<E::Word>, F> {
    waiting: &'w mut Waiting<E, P>,
    place: WakerEntry,
    attempt: F,
}

impl<E: End, P: Park<E::Word>, F> Unpin for Until<'_, E, P, F> {}

impl<T, R, E: End, P: Park<E::Word>, F> Future for Until<'_, E, P, F>
where
    F: FnMut(&mut E) -> Option<Result<T, WaitError<R>>>,
{
    type Output = Result<T, WaitError<R>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waiting, place, attempt } = &mut *self;
        let guard = WakesOnDrop::new(waiting);
        let polled = place.poll(guard.waiting, cx, attempt);
        if polled.is_pending() {
            // Otherwise, idle sides would wake each other forever.
            mem::forget(guard);
        }
        polled.map(|done| done.unwrap_or(Err(WaitError::Disconnected)))
    }
}

impl<E: End, P: Park<E::Word>, F> Drop for Until<'_, E, P, F> {
    fn drop(&mut self) {
        self.place.leave(self.waiting);
    }
}

pub(super) fn outcome<T, C: Corruption>(sent: Option<Result<(), SendError<T, C>>>, value: &mut Option<T>) -> Result<(), SendError<T, C>> {
    sent.unwrap_or_else(|| value.take().map_or(Ok(()), |value| Err(SendError::Disconnected(value))))
}

impl<E: Pop + fmt::Debug, P: Park<E::Word>> fmt::Debug for RecvFuture<'_, E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvFuture").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<E: Push + fmt::Debug, P: Park<E::Word>> fmt::Debug for SendFuture<'_, E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}
