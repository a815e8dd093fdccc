//! [`Receiver`]: pushes messages into a sink in zenoh's callback; a thread acknowledges them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zenoh::bytes::{Encoding, ZBytes};
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::query::{Query, Queryable};
use zenoh::{Session, Wait};

use crate::envelope::{Ack, Data, HEADER, Hello, Reply, Welcome, short, split_frame};
use crate::error::of;
use crate::metrics::{Common, add};
use crate::options::Options;
use crate::pace::Pace;
use crate::sender::MOST_BATCHES;
use crate::streams::Streams;
use crate::{Error, Sink, keys, random};

/// The thread's sleep while nothing arrives.
const NAP: Duration = Duration::from_millis(20);
/// The longest delay of an acknowledgement: each costs both hosts a packet and a wake-up.
const BETWEEN_ACKS: Duration = Duration::from_micros(500);
/// Between two reports of one gap.
const BETWEEN_GAPS: Duration = Duration::from_millis(20);
/// Hellos that wait for an answer, and offers that wait for data. More are forged; a source repeats its hello.
const MOST_HELLOS: usize = 64;

struct Batch {
    bytes: ZBytes,
    /// Bytes pushed, and the header.
    done: usize,
}

/// Where a source may continue, by its last hello and the messages pushed here.
///
/// Any peer can send a hello, so a hello changes neither the current source nor the stored state: the source's batch at exactly this number does.
struct Offer {
    stream: u64,
    next: u64,
}

/// Shared by the thread and zenoh's callbacks.
struct State<S> {
    sink: S,
    streams: Streams,
    offers: VecDeque<Offer>,
    /// The number after the last message received in order.
    received: u64,
    batches: VecDeque<Batch>,
    held: usize,
    hellos: Vec<(Query, Hello)>,
    acknowledged: u64,
    unacknowledged: usize,
    /// More are acknowledged at once. An eighth of the bytes that the sender may have in flight.
    max_unacknowledged: usize,
    /// The thread sleeps until the alarm, not for the next acknowledgement.
    is_asleep: bool,
    gap: bool,
    reported: Option<(u64, Instant)>,
    failed: Option<Error>,
}

struct Shared<S> {
    id: u64,
    window: usize,
    common: Arc<Common>,
    state: Mutex<Option<State<S>>>,
    alarm: Condvar,
}

pub struct Receiver<S> {
    session: Session,
    shared: Arc<Shared<S>>,
    publisher: Publisher<'static>,
    _data: Subscriber<()>,
    _hello: Queryable<()>,
}

impl<S: Sink> Receiver<S> {
    pub fn new(session: &Session, key: &str, sink: S, options: Options, common: Arc<Common>) -> Result<Self, Error> {
        let [data, ack, hello] = keys(key)?;
        let streams = match sink.load()? {
            Some(state) => Streams::decode(&state).ok_or(Error::InvalidState { bytes: state.len() })?,
            None => Streams::default(),
        };
        let received = streams.pushed(sink.tail());
        let publisher = session.declare_publisher(ack).congestion_control(CongestionControl::Drop).express(true);
        let publisher = publisher.wait().map_err(of("declare_publisher"))?;
        let state = State {
            sink,
            streams,
            offers: VecDeque::new(),
            received,
            batches: VecDeque::new(),
            held: 0,
            hellos: Vec::new(),
            acknowledged: received,
            unacknowledged: 0,
            max_unacknowledged: 0,
            is_asleep: false,
            gap: false,
            reported: None,
            failed: None,
        };
        let window = options.window_bytes;
        let shared = Arc::new(Shared { id: random(), window, common, state: Mutex::new(Some(state)), alarm: Condvar::new() });
        let arrives = Arc::clone(&shared);
        let data = session.declare_subscriber(data).callback(move |sample| arrives.take(sample.payload())).wait();
        let data = data.map_err(of("declare_subscriber"))?;
        // Last: a sender that gets an answer sends data.
        let greeted = Arc::clone(&shared);
        let hello = session.declare_queryable(hello).callback(move |query| greeted.greet(query)).wait().map_err(of("declare_queryable"))?;
        Ok(Self { session: session.clone(), shared, publisher, _data: data, _hello: hello })
    }

    pub fn run(self) -> (S, Result<(), Error>) {
        let outcome = self.relay();
        match self.shared.lock().take() {
            Some(state) => (state.sink, outcome),
            None => unreachable!("only this function takes the state, and it takes the receiver"),
        }
    }

    fn relay(&self) -> Result<(), Error> {
        let (shared, mut pace, mut acknowledged) = (&self.shared, Pace::default(), None::<Instant>);
        while !shared.common.is_stopped() && !self.session.is_closed() {
            let mut guard = shared.lock();
            let Some(state) = guard.as_mut() else { return Ok(()) };
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if state.push(&shared.common)? {
                pace.reset();
            }
            let early = acknowledged.map_or(Duration::ZERO, |at| BETWEEN_ACKS.saturating_sub(at.elapsed()));
            let is_due = early.is_zero() || state.is_urgent();
            let ack = if is_due { state.acknowledgement(shared.id) } else { None };
            let mut answers = Vec::new();
            for (query, hello) in std::mem::take(&mut state.hellos) {
                answers.push((query, state.answer(&hello, shared)));
            }
            if ack.is_none() && answers.is_empty() {
                // Poll a full sink; otherwise sleep until the next acknowledgement or, if none is due, until a message arrives.
                state.is_asleep = state.batches.is_empty() && early.is_zero();
                let most = if !state.batches.is_empty() {
                    pace.next()
                } else if state.is_asleep {
                    NAP
                } else {
                    early
                };
                if most.is_zero() {
                    drop(guard);
                    std::thread::yield_now();
                } else {
                    drop(shared.alarm.wait_timeout(guard, most));
                }
                continue;
            }
            // zenoh's callbacks need the lock, and publications may wait for them.
            drop(guard);
            if let Some(ack) = ack {
                acknowledged = Some(Instant::now());
                // If it is lost, a later acknowledgement or handshake replaces it.
                let _ = self.publisher.put(ack.encode()).wait();
            }
            for (query, reply) in answers {
                // If it is lost, the sender asks again.
                let _ = query.reply(query.key_expr().clone(), reply.encode()).wait();
            }
        }
        Ok(())
    }
}

impl<S: Sink> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, Option<State<S>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, payload: &ZBytes) {
        let rejected = || add(&self.common.counters.rejected, 1);
        let mut guard = self.lock();
        let Some(state) = guard.as_mut().filter(|state| state.failed.is_none()) else { return };
        let longest = usize::try_from(state.sink.ring().size).unwrap_or(usize::MAX).saturating_add(2 * self.window + HEADER);
        if payload.len() > longest {
            return rejected();
        }
        let contents = payload.to_bytes();
        let header = Data::decode(&contents).filter(|header| header.receiver == self.id && state.knows(header.stream));
        let Some(header) = header.filter(|header| state.is_whole(header.count, &contents[HEADER..])) else {
            return rejected();
        };
        match state.follow(header, &self.common) {
            Ok(true) => {}
            Ok(false) => return rejected(),
            Err(error) => {
                state.failed = Some(error);
                return self.alarm.notify_one();
            }
        }
        if let Some(done) = state.append(header, &contents, 2 * self.window, &self.common) {
            let bytes = match contents {
                Cow::Owned(copied) => ZBytes::from(copied),
                Cow::Borrowed(_) => payload.clone(),
            };
            state.held += bytes.len();
            state.batches.push_back(Batch { bytes, done });
            if let Err(error) = state.push(&self.common) {
                state.failed = Some(error);
            }
        }
        let wakes = state.is_asleep || state.is_urgent() || state.failed.is_some() || !state.batches.is_empty();
        state.is_asleep = false;
        drop(guard);
        if wakes {
            self.alarm.notify_one();
        }
    }

    fn greet(&self, mut query: Query) {
        let hello = query.payload().and_then(short).and_then(|bytes| Hello::decode(&bytes));
        // The query waits for its answer. Each part of it that may be long is absent or dropped before.
        let is_plain = query.attachment().is_none()
            && query.parameters().is_empty()
            && query.encoding().is_none_or(|encoding| *encoding == Encoding::default());
        query.payload_mut().map(std::mem::take);
        let mut guard = self.lock();
        let Some(state) = guard.as_mut() else { return };
        match hello.filter(|_| is_plain && state.hellos.len() < MOST_HELLOS) {
            Some(hello) => state.hellos.push((query, hello)),
            None => return add(&self.common.counters.rejected, 1),
        }
        self.alarm.notify_one();
    }
}

impl<S: Sink> State<S> {
    fn pushed(&self) -> u64 {
        self.streams.pushed(self.sink.tail())
    }

    /// Returns whether data of `stream` can be accepted.
    fn knows(&self, stream: u64) -> bool {
        self.streams.current() == Some(stream) || self.offers.iter().any(|offer| offer.stream == stream)
    }

    /// Makes the source of a batch the current one, if the batch begins at its offer; returns whether it is the current one.
    fn follow(&mut self, header: Data, common: &Common) -> Result<bool, Error> {
        let is_current = self.streams.current() == Some(header.stream);
        if is_current && header.first == self.received {
            // The source does not mean an offer of another number: it is forged, or older than this batch.
            self.withdraw(header.stream);
            return Ok(true);
        }
        if !self.offers.iter().any(|offer| (offer.stream, offer.next) == (header.stream, header.first)) {
            return Ok(is_current);
        }
        self.withdraw(header.stream);
        self.begin(header.stream, header.first, common)?;
        Ok(true)
    }

    fn withdraw(&mut self, stream: u64) {
        self.offers.retain(|offer| offer.stream != stream);
    }

    /// Changes the current source, or its next number. Stores the state before a message can be pushed.
    fn begin(&mut self, stream: u64, next: u64, common: &Common) -> Result<(), Error> {
        add(&common.counters.reconnects, self.streams.current().is_some().into());
        self.streams.begin(stream, next, self.sink.tail());
        self.sink.save(&self.streams.encode())?;
        // The other source still has them.
        self.batches.clear();
        self.held = 0;
        self.received = next;
        self.acknowledged = next;
        Ok(())
    }

    /// Accepts a batch that continues the sequence; returns the offset of its new messages.
    fn append(&mut self, header: Data, contents: &[u8], most: usize, common: &Common) -> Option<usize> {
        let ahead = header.first.wrapping_sub(self.received) as i64;
        // A window may be sent twice, and each batch may keep a zenoh buffer. One batch is always taken: its message may exceed the window.
        let is_too_much = !self.batches.is_empty() && (self.held + contents.len() > most || self.batches.len() >= 2 * MOST_BATCHES);
        if ahead > 0 || is_too_much {
            add(&common.counters.gaps, 1);
            self.gap = true;
            return None;
        }
        let known = ahead.unsigned_abs().min(header.count.into());
        add(&common.counters.duplicates, known);
        if known == u64::from(header.count) {
            return None;
        }
        self.received = header.first.wrapping_add(header.count.into());
        Some(HEADER + self.skip(&contents[HEADER..], known))
    }

    fn is_whole(&self, count: u32, messages: &[u8]) -> bool {
        let ring = self.sink.ring();
        if !ring.framed {
            return count > 0 && u64::from(count).checked_mul(ring.size) == Some(messages.len() as u64);
        }
        let (mut rest, mut frames) = (messages, 0_u32);
        while let Some((frame, after)) = split_frame(rest) {
            if frame.len() as u64 > ring.size {
                return false;
            }
            (rest, frames) = (after, frames.saturating_add(1));
        }
        rest.is_empty() && count > 0 && frames == count
    }

    fn skip(&self, messages: &[u8], count: u64) -> usize {
        let ring = self.sink.ring();
        if !ring.framed {
            return (count * ring.size) as usize;
        }
        let mut rest = messages;
        for _ in 0..count {
            rest = split_frame(rest).map_or(&[][..], |(_, after)| after);
        }
        messages.len() - rest.len()
    }

    fn push(&mut self, common: &Common) -> Result<bool, Error> {
        let mut pushed = false;
        while let Some(batch) = self.batches.front_mut() {
            let contents = batch.bytes.to_bytes();
            let rest = &contents[batch.done..];
            let (count, bytes) = self.sink.push(rest)?;
            if bytes > rest.len() {
                return Err(Error::End(format!("the sink pushed {bytes} of {} bytes", rest.len())));
            }
            pushed |= count > 0;
            add(&common.counters.messages, count);
            add(&common.counters.bytes, bytes as u64);
            self.unacknowledged += bytes;
            batch.done += bytes;
            if batch.done < contents.len() {
                break;
            }
            self.held -= contents.len();
            drop(contents);
            self.batches.pop_front();
        }
        Ok(pushed)
    }

    /// The sender may wait for an acknowledgement.
    fn is_urgent(&self) -> bool {
        self.gap || self.unacknowledged > self.max_unacknowledged
    }

    fn acknowledgement(&mut self, receiver: u64) -> Option<Ack> {
        let stream = self.streams.current()?;
        let pushed = self.pushed();
        let is_known = self.reported.is_some_and(|(at, when)| at == self.received && when.elapsed() < BETWEEN_GAPS);
        let gap = std::mem::take(&mut self.gap) && !is_known;
        self.unacknowledged = 0;
        if pushed == self.acknowledged && !gap {
            return None;
        }
        if gap {
            self.reported = Some((self.received, Instant::now()));
        }
        self.acknowledged = pushed;
        Some(Ack { stream, receiver, pushed, received: self.received, gap })
    }

    /// Answers a hello; changes nothing but the offers and the delay of acknowledgements.
    fn answer(&mut self, hello: &Hello, shared: &Shared<S>) -> Reply {
        if !self.sink.ring().accepts(&hello.ring) {
            add(&shared.common.counters.refused, 1);
            return Reply::Refusal(self.sink.ring().clone());
        }
        self.max_unacknowledged = shared.window.min(usize::try_from(hello.limit).unwrap_or(usize::MAX)) / 8;
        let &Hello { stream, first, count, .. } = hello;
        let next = self.streams.next(stream, first, count, self.sink.tail());
        self.withdraw(stream);
        // What was received, but not pushed, can be false too.
        let continues = self.streams.current() == Some(stream) && next == self.pushed() && self.received.wrapping_sub(first) <= count;
        if !continues {
            if self.offers.len() >= MOST_HELLOS {
                self.offers.pop_front();
            }
            self.offers.push_back(Offer { stream, next });
        }
        let received = if continues { self.received } else { next };
        Reply::Welcome(Welcome { receiver: shared.id, pushed: next, received, window: shared.window as u64 })
    }
}
