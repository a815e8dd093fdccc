#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::future::{Future, IntoFuture};
use core::mem::swap;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;

use super::{Pending, Queued};
use crate::Rejected;
use crate::backend::watch::watch;
use crate::backend::{Backend, Ticket};

/// A [`Pending`]'s future, for any executor.
///
/// 1. Completion wakes the last task that polled, once.
/// 2. Unpolled or dropped, the operation is still executed, then its operands dropped. For `select!`, poll by reference.
/// 3. Forgotten, the operands are never freed.
/// 4. After ready, it stays pending.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
///
/// # fn main() -> ringmem::Result<()> {
/// # futures::executor::block_on(async {
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let pinned = PinnedBuffer::<u8>::from_slice(Pinned::new(&backend, 0), &[7; 64])?;
/// let device = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64)?;
/// let (pinned, device) = stream.copy(pinned, device)?.await?; // or the error, with both
/// # assert_eq!(device.to_vec()?, [7; 64]);
/// # drop(pinned);
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "dropping it drops the buffers of the operation"]
pub struct Completion<T: Queued> {
    pending: Option<Pending<T>>,
    listener: Listener,
}

impl<T: Queued> Unpin for Completion<T> {}

impl<T: Queued> Future for Completion<T> {
    type Output = Result<T, Rejected<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { pending, listener } = &mut *self;
        let Some(queued) = pending else { return Poll::Pending };
        if let Some(ticket) = queued.ticket() {
            ready!(listener.poll(queued.backend(), ticket, cx));
        }
        match pending.take().map(Pending::try_take) {
            Some(Ok(outcome)) => Poll::Ready(outcome),
            not_done => {
                *pending = not_done.and_then(Result::err);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl<T: Queued> IntoFuture for Pending<T> {
    type Output = Result<T, Rejected<T>>;
    type IntoFuture = Completion<T>;

    fn into_future(self) -> Completion<T> {
        Completion { pending: Some(self), listener: Listener::default() }
    }
}

impl<T: Queued> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("pending", &self.pending).finish()
    }
}

#[derive(Default)]
pub(super) struct Listener {
    /// The backend owns it, from the first poll until completion.
    bell: Weak<Bell>,
}

/// Wakes on drop. Held last by the backend or a concurrent poll.
struct Bell {
    waker: Mutex<Option<Waker>>,
}

impl Listener {
    pub fn poll(&mut self, backend: &Arc<dyn Backend>, ticket: Ticket, cx: &Context<'_>) -> Poll<()> {
        if backend.is_complete(ticket) {
            return Poll::Ready(());
        }
        // A waker is foreign code: no lock is held.
        let mut waker = Some(cx.waker().clone());
        match self.bell.upgrade() {
            Some(bell) => swap(&mut *bell.waker(), &mut waker),
            None => {
                let bell = Arc::new(Bell { waker: Mutex::new(waker) });
                self.bell = Arc::downgrade(&bell);
                if let Err(waker) = backend.notify(ticket, Waker::from(bell)) {
                    watch(Arc::clone(backend), ticket, waker);
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(bell) = self.bell.upgrade() {
            let waker = bell.waker().take();
            drop(waker);
        }
    }
}

impl Bell {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Dropped here, or by a concurrent poll.
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
