//! [`Waiting`]: an end that waits: it polls, then sleeps until the other side wakes it.
//!
//! # The wait words
//!
//! A ring has a word for each side. Its low half counts that side's sleepers, threads and tasks; its high half counts wake-ups, and is the epoch of a sleep.
//!
//! | sleeper | waker |
//! |---|---|
//! | 1. adds itself to the low half; remembers the epoch | 1. publishes |
//! | 2. attempts once more | 2. reads the low half by a read-modify-write; ends here if it is 0 |
//! | 3. sleeps while the high half is that epoch | 3. adds 1 to the high half; wakes the threads, and the tasks in the list |
//! | 4. subtracts itself; a task in the list is subtracted by its waker, unless that wakes both sides | |
//!
//! The two read-modify-writes of one word have an order. If the sleeper's is first, the waker sees it in step 2. Otherwise the sleeper's step 2 sees what was
//! published. A wake-up between the sleeper's steps 1 and 3 has changed the epoch, so the sleep ends at once.
//!
//! # What wakes a task
//!
//! A thread needs the word alone, and so can be woken by another process. A task needs its waker, which is in a list ([`Wakers`]) of the pair that [`pair`] has
//! connected. If the other end is elsewhere, of another ring or at another address, or ends of two pairs were exchanged, no end finds the list (`is_alone`),
//! and the task wakes itself: it polls.
//!
//! # What failures leave
//!
//! A sleeper that panics is subtracted by [`Counted`]. A sleeper whose process dies stays counted until a successor clears the count: meanwhile each waker
//! makes a needless system call. A peer that writes false counts causes the same, or no wake-up, for which an end between processes sleeps at most
//! `LONGEST_SLEEP`. [`strike`] subtracts at most the count that is there, so that the epoch does not change.

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::vec::Vec;

use super::park::{Os, Park, WakerList};
use super::{RecvError, SendError, TryRecvError, TrySendError, WaitError};
use crate::RmwWord;
use crate::ring::{End, Pop, PopError, Push, PushError, WaitWords};

/// The wait strategy of both ends of a ring.
///
/// ```
/// use ringmem::ring::spsc::Ring;
/// use ringmem::wait::{WaitStrategy, pair};
///
/// let mut ring = Ring::<u32, 8>::new();
/// let (producer, consumer) = ring.split();
/// let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::SpinYield { polls: 1000 });
/// sender.send(1)?;
/// assert_eq!(receiver.recv(), Ok(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// Polls in a loop: for threads with a core each, or a GPU at the other end.
    Spin,
    /// Polls this often, then yields between polls.
    SpinYield {
        /// Number of polls.
        polls: u32,
    },
    /// Polls this often, then sleeps until the other side wakes it. With another strategy, a pending future wakes its own task at once.
    Sleep {
        /// Number of polls.
        polls: u32,
    },
}

/// Polls for a few microseconds, then sleeps.
impl Default for WaitStrategy {
    fn default() -> Self {
        Self::Sleep { polls: 100 }
    }
}

pub(super) struct Wakers<S> {
    pub(super) senders: S,
    pub(super) receivers: S,
    /// No end of this ring wakes the tasks in these lists: the other end is elsewhere, or ends were exchanged. The tasks poll. Never set back.
    is_alone: AtomicBool,
}

impl<S: Default> Wakers<S> {
    fn new(is_alone: bool) -> Arc<Self> {
        Arc::new(Self { senders: S::default(), receivers: S::default(), is_alone: AtomicBool::new(is_alone) })
    }
}

impl<S> Wakers<S> {
    pub(super) fn are_alone(&self) -> bool {
        // SYNC POINT: ends exchanged. Pairs with WakesOnDrop::drop.
        self.is_alone.load(Acquire)
    }

    pub(super) const fn of(&self, side: Side) -> &S {
        match side {
            Side::Sends => &self.senders,
            Side::Receives => &self.receivers,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Sends,
    Receives,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Sends => Self::Receives,
            Self::Receives => Self::Sends,
        }
    }
}

/// A wait of minutes exceeds 32 bits.
struct Polls {
    seen: u64,
    most: u64,
}

impl Polls {
    const fn new(how: WaitStrategy) -> Self {
        let most = match how {
            WaitStrategy::Spin => u64::MAX,
            WaitStrategy::SpinYield { polls } | WaitStrategy::Sleep { polls } => polls as u64,
        };
        Self { seen: 0, most }
    }

    const fn count(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.seen == self.most.wrapping_add(1)
    }

    const fn are_over(&self) -> bool {
        self.seen > self.most
    }

    const fn is_time(&self) -> bool {
        self.are_over() || self.seen.is_multiple_of(64)
    }
}

/// An end of a ring that waits.
///
/// Every operation wakes the other side if it sleeps. Dropping an owned end disconnects and wakes it; dropping a borrowed one does neither.
///
/// Move an end to its thread; threads cannot share one by `Arc`. To send from several threads, clone the sender of
/// [`bounded_mpsc`](super::bounded_mpsc) or [`bounded_mpmc`](super::bounded_mpmc).
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::wait::{self, SendError};
///
/// let (mut sender, receiver) = wait::bounded::<u32>(2);
/// sender.send(1)?;
/// sender.send(2)?;
/// assert!(matches!(sender.send_timeout(3, Duration::from_millis(1)), Err(SendError::Timeout(3))));
/// drop(receiver);
/// assert!(matches!(sender.send(4), Err(SendError::Disconnected(4))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Waiting<E: End, P: Park<E::Word> = Os> {
    end: ManuallyDrop<E>,
    pub(crate) how: WaitStrategy,
    pub(super) side: Side,
    park: Arc<P>,
    pub(super) wakers: Arc<Wakers<P::WakerList>>,
    /// When [`select`](super::select) last returned this receiver, in calls over the receivers that it was among; 0 for never.
    pub(super) last_selected: u64,
}

/// Connects both ends of a ring. The futures of ends of two rings, or of a ring at two addresses, poll.
pub fn pair<F: End, D: End<Word = F::Word>>(producer: F, consumer: D, how: WaitStrategy) -> (Waiting<F>, Waiting<D>)
where
    Os: Park<F::Word>,
{
    Waiting::pair(producer, consumer, how)
}

impl<E: End> Waiting<E>
where
    Os: Park<E::Word>,
{
    /// Wraps a producer whose consumer is elsewhere, such as in another process; its futures poll. If the consumer sleeps, `how` must be
    /// [`Sleep`](WaitStrategy::Sleep): with another strategy, an end does not look for sleepers.
    #[must_use]
    pub fn sender(producer: E, how: WaitStrategy) -> Self {
        Self::with(producer, how, Side::Sends, Arc::default(), Wakers::new(true))
    }

    /// As [`sender`](Self::sender), for a consumer.
    #[must_use]
    pub fn receiver(consumer: E, how: WaitStrategy) -> Self {
        Self::with(consumer, how, Side::Receives, Arc::default(), Wakers::new(true))
    }
}

impl<E: End, P: Park<E::Word>> Waiting<E, P> {
    /// As the function `pair`, with a custom [`Park`].
    pub fn pair<D: End<Word = E::Word>>(producer: E, consumer: D, how: WaitStrategy) -> (Self, Waiting<D, P>) {
        let are_of_one_ring = std::ptr::eq(producer.wait_words().theirs, consumer.wait_words().ours);
        let (park, wakers) = (Arc::new(P::default()), Wakers::new(!are_of_one_ring));
        let sender = Self::with(producer, how, Side::Sends, Arc::clone(&park), Arc::clone(&wakers));
        (sender, Waiting::with(consumer, how, Side::Receives, park, wakers))
    }

    fn with(end: E, how: WaitStrategy, side: Side, park: Arc<P>, wakers: Arc<Wakers<P::WakerList>>) -> Self {
        Self { end: ManuallyDrop::new(end), how, side, park, wakers, last_selected: 0 }
    }

    /// Returns the end.
    #[must_use]
    pub fn end(&self) -> &E {
        &self.end
    }

    /// Returns whether the other side was dropped. Its messages can still be received.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }

    /// Runs `act` on the end, then wakes both sides' sleepers, also after a panic: an abandoned grant frees slots for this side's other
    /// handles.
    ///
    /// If `act` puts an end of another ring there, as by `std::mem::swap` in a nested call, the tasks of this pair poll from then on: the ends that
    /// wake them are in another pair. Threads are woken as before, if both pairs have the same strategy and the parker [`Os`]. An end that is dropped
    /// outside a `Waiting`, as by an assignment in `act`, wakes no sleeper at the other end.
    pub fn with_end<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        let guard = WakesOnDrop::new(self);
        act(&mut guard.waiting.end)
    }

    /// Waits until `attempt` returns a value, such as a grant or a frame. An attempt that returns `None` must have taken nothing; none may
    /// exchange the end for another. Wakes as [`with_end`](Self::with_end).
    ///
    /// ```
    /// use ringmem::ring::framed::{PopError, Ring};
    /// use ringmem::wait::{WaitStrategy, pair};
    /// let mut ring = Ring::<64>::new();
    /// let (producer, consumer) = ring.split();
    /// let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::default());
    /// sender.send_bytes(b"in place")?;
    /// let len = receiver.wait(None, |end| match end.peek() {
    ///     Ok(frame) => {
    ///         let len = frame.len();
    ///         frame.release();
    ///         Some(Ok(len))
    ///     }
    ///     Err(PopError::Empty) => None,
    ///     Err(corrupt) => Some(Err(corrupt)),
    /// });
    /// assert_eq!(len, Ok(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WaitError`]: the deadline passed, the other side was dropped and `attempt` returns nothing, or its error.
    pub fn wait<T, R>(
        &mut self,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut E) -> Option<Result<T, R>>,
    ) -> Result<T, WaitError<R>> {
        let guard = WakesOnDrop::new(self);
        guard.waiting.outcome_until(deadline, |end| attempt(end).map(|done| done.map_err(WaitError::Refused)))
    }

    pub(super) fn outcome_until<T, R>(
        &mut self,
        deadline: Option<Instant>,
        attempt: impl FnMut(&mut E) -> Option<Result<T, WaitError<R>>>,
    ) -> Result<T, WaitError<R>> {
        self.until(deadline, attempt).unwrap_or_else(|gone| {
            Err(match gone {
                Gone::Late => WaitError::Timeout,
                Gone::Disconnected => WaitError::Disconnected,
            })
        })
    }

    /// If `attempt` panics, no end is woken here; [`WakesOnDrop`] does so for callers with foreign code.
    #[inline]
    pub(super) fn attempt<R>(&mut self, attempt: impl FnOnce(&mut E) -> R) -> R {
        let result = attempt(&mut self.end);
        self.wake_peer();
        result
    }

    pub(super) fn until<R>(&mut self, deadline: Option<Instant>, mut attempt: impl FnMut(&mut E) -> Option<R>) -> Result<R, Gone> {
        let mut looks = Polls::new(self.how);
        loop {
            if let Some(result) = attempt(&mut self.end) {
                self.wake_peer();
                return Ok(result);
            }
            if self.end.is_disconnected() {
                // All work of the other side is visible now. A successor may already sleep.
                let last = attempt(&mut self.end).ok_or(Gone::Disconnected);
                self.wake_peer();
                return last;
            }
            let is_first_over = looks.count();
            if looks.is_time() && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.wake_peer();
                return Err(Gone::Late);
            }
            match self.how {
                _ if !looks.are_over() => std::hint::spin_loop(),
                WaitStrategy::Spin | WaitStrategy::SpinYield { .. } => std::thread::yield_now(),
                WaitStrategy::Sleep { .. } => {
                    // An unsuccessful attempt may have published a forgotten batch. Only once: otherwise, idle sides would wake each other forever.
                    if is_first_over {
                        self.wake_peer();
                    }
                    if let Some(done) = self.sleep(deadline, &mut attempt) {
                        self.wake_peer();
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Returns early if `attempt` succeeds after this end counts as asleep.
    fn sleep<R>(&mut self, deadline: Option<Instant>, attempt: &mut impl FnMut(&mut E) -> Option<R>) -> Option<R> {
        // SYNC POINT: asleep. Pairs with Waiting::wake_at.
        let epoch = (self.end.wait_words().ours.fetch_add(ONE_SLEEPER) >> 32) as u32;
        let Counted(this) = &mut Counted(self);
        let done = attempt(&mut this.end);
        if done.is_none() && !this.end.is_disconnected() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let most = left.into_iter().chain(E::LONGEST_SLEEP).min();
            this.park.wait(this.end.wait_words().ours, epoch, most);
        }
        done
    }

    #[inline]
    pub(super) fn wake_peer(&self) {
        self.wake_at(self.end.wait_words().theirs, self.side.other());
        if E::NEEDS_DROP && self.side == Side::Sends {
            self.discard_if_abandoned();
        }
    }

    /// A value that was pushed while the last receiver left would stay, because nothing pops it: this end drops it.
    #[inline]
    fn discard_if_abandoned(&self) {
        // SYNC POINT: value published, consumer closed. Pairs with the fence in ringmem_layouts' `ValuesOf::discard`. With `Sleep`, `wake_at` has just modified
        // the sleepers' word, which is as good as the fence.
        if !matches!(self.how, WaitStrategy::Sleep { .. }) {
            fence(SeqCst);
        }
        if self.end.is_disconnected() {
            self.end.discard_if_abandoned();
        }
    }

    #[inline]
    fn wake_at(&self, word: &E::Word, side: Side) {
        if !matches!(self.how, WaitStrategy::Sleep { .. }) {
            return;
        }
        // SYNC POINT: asleep. Pairs with Waiting::sleep and the futures' enlist. A read-modify-write: either the sleeper's comes first and is seen
        // here, or the sleeper sees what was published.
        if word.fetch_add(0) as u32 != 0 {
            self.wake(word, side);
        }
    }

    #[cold]
    fn wake(&self, word: &E::Word, side: Side) {
        word.fetch_add(ONE_WAKE);
        self.park.wake(word);
        // Tasks that poll remove themselves. After an exchange of ends, those in the list do not sleep at this word.
        if self.wakers.are_alone() {
            return;
        }
        let woken = self.wakers.of(side).with(|wakers| {
            strike(word, wakers.len());
            std::mem::take(wakers)
        });
        wake_all(woken.into_iter().map(|(_, waker)| waker));
    }

    /// The addresses of the words at which this end's ring sleeps.
    fn words(&self) -> [usize; 2] {
        let WaitWords { theirs, ours } = self.end.wait_words();
        [theirs, ours].map(|word| std::ptr::from_ref(word).addr())
    }

    /// Wakes the tasks of both sides, which stay counted until they remove themselves.
    #[cold]
    fn wake_both_sides(&self) {
        let woken = [&self.wakers.senders, &self.wakers.receivers].map(|list| {
            list.with(|wakers| wakers.iter_mut().map(|(_, waker)| std::mem::replace(waker, Waker::noop().clone())).collect::<Vec<_>>())
        });
        wake_all(woken.into_iter().flatten());
    }

    pub(super) fn end_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

/// When it is dropped, wakes both sides' sleepers.
pub(super) struct WakesOnDrop<'w, E: End, P: Park<E::Word>> {
    pub waiting: &'w mut Waiting<E, P>,
    /// Before the end was lent.
    words: [usize; 2],
}

impl<'w, E: End, P: Park<E::Word>> WakesOnDrop<'w, E, P> {
    pub fn new(waiting: &'w mut Waiting<E, P>) -> Self {
        let words = waiting.words();
        Self { waiting, words }
    }
}

impl<E: End, P: Park<E::Word>> Drop for WakesOnDrop<'_, E, P> {
    fn drop(&mut self) {
        struct Ours<'w, E: End, P: Park<E::Word>>(&'w Waiting<E, P>);
        impl<E: End, P: Park<E::Word>> Drop for Ours<'_, E, P> {
            fn drop(&mut self) {
                self.0.wake_at(self.0.end.wait_words().ours, self.0.side);
            }
        }
        let Ours(this) = &Ours(self.waiting);
        // Exchanged for an end of another ring. The tasks of both rings wait in the lists of their own pairs, but each pair now has an end of the other
        // ring, which does not know that list.
        let was_exchanged = this.words() != self.words;
        if was_exchanged {
            // SYNC POINT: ends exchanged. Before the lists' locks are taken below: a task enters its list and then checks this.
            this.wakers.is_alone.store(true, Release);
        }
        this.wake_peer();
        if was_exchanged {
            this.wake_both_sides();
        }
    }
}

/// Calls all, even after a panic, outside any lock: a waker may run its task at once.
fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panicked = None;
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            // Later payloads are leaked: their drop may panic too.
            panicked.get_or_insert(ManuallyDrop::new(panic));
        }
    }
    // A second panic would abort.
    if let Some(panic) = panicked.filter(|_| !std::thread::panicking()) {
        resume_unwind(ManuallyDrop::into_inner(panic));
    }
}

/// Counted as asleep until dropped, even by a panic.
struct Counted<'w, E: End, P: Park<E::Word>>(&'w mut Waiting<E, P>);

impl<E: End, P: Park<E::Word>> Drop for Counted<'_, E, P> {
    fn drop(&mut self) {
        strike(self.0.end.wait_words().ours, 1);
    }
}

// A wait word: sleepers in the low half, wake-ups in the high half, which are the epoch of a sleep.
const ONE_SLEEPER: u64 = 1;
const ONE_WAKE: u64 = 1 << 32;

pub(super) fn enlist<W: RmwWord>(word: &W) {
    // SYNC POINT: asleep. Pairs with Waiting::wake_at.
    word.fetch_add(ONE_SLEEPER);
}

/// Counts sleepers as awake; tasks under their waker list's lock. Subtracts at most the current count, which a successor or lying peer may
/// have cleared: more would borrow from the wake-ups above.
pub(super) fn strike<W: RmwWord>(word: &W, awake: usize) {
    let mut seen = word.load();
    loop {
        let counted = u64::from(seen as u32).min(awake as u64);
        if counted == 0 {
            return;
        }
        match word.compare_exchange(seen, seen - counted) {
            Ok(_) => return,
            Err(found) => seen = found,
        }
    }
}

pub(super) enum Gone {
    Late,
    Disconnected,
}

impl<E: Push, P: Park<E::Word>> Waiting<E, P> {
    /// Pushes a value without waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError`] with the value.
    #[inline]
    pub fn try_send(&mut self, value: E::Item) -> Result<(), TrySendError<E::Item, E::Corrupt>> {
        self.attempt(|end| {
            if end.is_disconnected() {
                return Err(TrySendError::Disconnected(value));
            }
            end.push(value).map_err(|error| match error {
                PushError::Full(value) => TrySendError::Full(value),
                PushError::Corrupt(value, corrupt) => TrySendError::Corrupt(value, corrupt),
            })
        })
    }

    /// Pushes a value; waits for room.
    ///
    /// # Errors
    ///
    /// [`SendError`] with the value.
    pub fn send(&mut self, value: E::Item) -> Result<(), SendError<E::Item, E::Corrupt>> {
        self.send_until(value, None)
    }

    /// As [`send`](Self::send), with a timeout.
    pub fn send_timeout(&mut self, value: E::Item, most: Duration) -> Result<(), SendError<E::Item, E::Corrupt>> {
        self.send_until(value, Instant::now().checked_add(most))
    }

    /// As [`send`](Self::send), with a deadline.
    pub fn send_deadline(&mut self, value: E::Item, deadline: Instant) -> Result<(), SendError<E::Item, E::Corrupt>> {
        self.send_until(value, Some(deadline))
    }

    fn send_until(&mut self, value: E::Item, deadline: Option<Instant>) -> Sent<E> {
        let mut value = Some(value);
        let outcome = self.until(deadline, |end| push(end, &mut value));
        match (outcome, value) {
            (Ok(sent), _) => sent,
            (Err(Gone::Late), Some(value)) => Err(SendError::Timeout(value)),
            (Err(Gone::Disconnected), Some(value)) => Err(SendError::Disconnected(value)),
            (Err(_), None) => unreachable!("an attempt that gives nothing puts the value back"),
        }
    }
}

pub(super) type Sent<E> = Result<(), SendError<<E as Push>::Item, <E as End>::Corrupt>>;
pub(super) type Received<E> = Result<<E as Pop>::Item, RecvError<<E as End>::Corrupt>>;

pub(super) fn push<E: Push>(end: &mut E, value: &mut Option<E::Item>) -> Option<Sent<E>> {
    if end.is_disconnected() {
        return value.take().map(|value| Err(SendError::Disconnected(value)));
    }
    match end.push(value.take()?) {
        Ok(()) => Some(Ok(())),
        Err(PushError::Corrupt(value, corrupt)) => Some(Err(SendError::Corrupt(value, corrupt))),
        Err(PushError::Full(back)) => {
            *value = Some(back);
            None
        }
    }
}

impl<E: Pop, P: Park<E::Word>> Waiting<E, P> {
    /// Pops a value without waiting.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`].
    #[inline]
    pub fn try_recv(&mut self) -> Result<E::Item, TryRecvError<E::Corrupt>> {
        let outcome = |popped: Result<_, _>, empty| {
            popped.map_err(|error| match error {
                PopError::Empty => empty,
                PopError::Corrupt(corrupt) => TryRecvError::Corrupt(corrupt),
            })
        };
        self.attempt(|end| match end.pop() {
            // All messages of the other side are visible now.
            Err(PopError::Empty) if end.is_disconnected() => outcome(end.pop(), TryRecvError::Disconnected),
            popped => outcome(popped, TryRecvError::Empty),
        })
    }

    /// Pops a value; waits for one.
    ///
    /// # Errors
    ///
    /// [`RecvError::Disconnected`] if the ring is empty and the sender was dropped, or [`RecvError::Corrupt`].
    pub fn recv(&mut self) -> Result<E::Item, RecvError<E::Corrupt>> {
        self.recv_until(None)
    }

    /// As [`recv`](Self::recv), with a timeout.
    pub fn recv_timeout(&mut self, most: Duration) -> Result<E::Item, RecvError<E::Corrupt>> {
        self.recv_until(Instant::now().checked_add(most))
    }

    /// As [`recv`](Self::recv), with a deadline.
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<E::Item, RecvError<E::Corrupt>> {
        self.recv_until(Some(deadline))
    }

    fn recv_until(&mut self, deadline: Option<Instant>) -> Received<E> {
        match self.until(deadline, pop) {
            Ok(received) => received,
            Err(Gone::Late) => Err(RecvError::Timeout),
            Err(Gone::Disconnected) => Err(RecvError::Disconnected),
        }
    }
}

pub(super) fn pop<E: Pop>(end: &mut E) -> Option<Received<E>> {
    match end.pop() {
        Ok(value) => Some(Ok(value)),
        Err(PopError::Empty) => None,
        Err(PopError::Corrupt(corrupt)) => Some(Err(RecvError::Corrupt(corrupt))),
    }
}

impl<E: End + Clone, P: Park<E::Word>> Clone for Waiting<E, P> {
    fn clone(&self) -> Self {
        Self::with(E::clone(&self.end), self.how, self.side, Arc::clone(&self.park), Arc::clone(&self.wakers))
    }
}

impl<E: End, P: Park<E::Word>> Drop for Waiting<E, P> {
    fn drop(&mut self) {
        // SAFETY: only here; the end is not used afterwards.
        let end = unsafe { ManuallyDrop::take(&mut self.end) };
        if !end.is_here() {
            return;
        }
        end.leave(|word| {
            self.wake_at(word, self.side.other());
        });
    }
}

impl<E: End + fmt::Debug, P: Park<E::Word>> fmt::Debug for Waiting<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_checked_in_arbitrarily_long_waits() {
        for how in [WaitStrategy::Spin, WaitStrategy::SpinYield { polls: u32::MAX }, WaitStrategy::Sleep { polls: u32::MAX }] {
            let mut looks = Polls { seen: u64::from(u32::MAX) - 100, ..Polls::new(how) };
            for _ in 0..100 {
                let times = (0..64).filter(|_| {
                    looks.count();
                    looks.is_time()
                });
                assert!(times.count() > 0, "{how:?} at {}", looks.seen);
            }
        }
    }
}
