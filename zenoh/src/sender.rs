use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::key_expr::KeyExpr;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

use crate::envelope::{Ack, Data, HEADER, Hello, Reply};
use crate::error::of;
use crate::pace::Pace;
use crate::relay::{Common, Options, add};
use crate::{Error, Source, keys};

/// Zenoh keeps a 64 KiB buffer for each unacknowledged batch.
pub const MOST_BATCHES: usize = 256;
/// Between handshakes while no receiver answers, and the longest wait for an answer.
const BETWEEN_HELLOS: Duration = Duration::from_millis(100);
const LONGEST_HELLO: Duration = Duration::from_secs(1);
/// Between two handshakes because of gaps.
const BETWEEN_GAPS: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Inbox {
    last: Mutex<Option<Ack>>,
    arrived: Condvar,
}

struct Bound {
    receiver: u64,
    window: usize,
    is_alive: bool,
}

pub struct Sender<S> {
    session: Session,
    source: S,
    options: Options,
    common: Arc<Common>,
    inbox: Arc<Inbox>,
    hello: KeyExpr<'static>,
    publisher: Publisher<'static>,
    _acks: Subscriber<()>,
    bound: Option<Bound>,
    next: u64,
    /// The number after the last message ever sent.
    furthest: u64,
    /// Unacknowledged batches: the number after each, and its bytes.
    sent: VecDeque<(u64, usize)>,
    in_flight: usize,
    heard: Instant,
    greeted: Option<Instant>,
    gap: bool,
}

impl<S: Source> Sender<S> {
    pub fn new(session: &Session, key: &str, source: S, options: Options, common: Arc<Common>) -> Result<Self, Error> {
        let [data, ack, hello] = keys(key)?;
        let inbox = Arc::new(Inbox::default());
        let (stream, seen, counts) = (source.stream(), Arc::clone(&inbox), Arc::clone(&common));
        let acks = move |sample: Sample| match Ack::decode(&sample.payload().to_bytes()) {
            Some(ack) if ack.stream == stream => {
                let mut last = seen.last.lock().unwrap_or_else(PoisonError::into_inner);
                let gap = ack.gap || last.is_some_and(|last| last.gap);
                *last = Some(Ack { gap, ..ack });
                seen.arrived.notify_one();
            }
            _ => add(&counts.counters.rejected, 1),
        };
        let acks = session.declare_subscriber(ack).callback(acks).wait().map_err(of("declare_subscriber"))?;
        let publisher = session.declare_publisher(data).congestion_control(CongestionControl::Block).express(true);
        let publisher = publisher.wait().map_err(of("declare_publisher"))?;
        let first = source.first();
        Ok(Self {
            session: session.clone(),
            source,
            options,
            common,
            inbox,
            hello,
            publisher,
            _acks: acks,
            bound: None,
            next: first,
            furthest: first,
            sent: VecDeque::new(),
            in_flight: 0,
            heard: Instant::now(),
            greeted: None,
            gap: false,
        })
    }

    pub fn run(mut self) -> (S, Result<(), Error>) {
        let outcome = self.relay();
        (self.source, outcome)
    }

    fn relay(&mut self) -> Result<(), Error> {
        let mut pace = Pace::default();
        while !self.common.is_stopped() {
            let acknowledged = self.acknowledge();
            if self.is_time_to_greet() {
                self.greet()?;
            }
            if self.send()? || acknowledged {
                pace.reset();
            } else {
                self.rest(pace.next());
            }
        }
        self.acknowledge();
        Ok(())
    }

    fn rest(&self, most: Duration) {
        if most.is_zero() {
            return thread::yield_now();
        }
        let last = self.inbox.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            drop(self.inbox.arrived.wait_timeout(last, most));
        }
    }

    /// Releases messages that the receiver pushed; returns whether there were any.
    fn acknowledge(&mut self) -> bool {
        let Some(ack) = self.inbox.last.lock().unwrap_or_else(PoisonError::into_inner).take() else { return false };
        let first = self.source.first();
        let (pushed, sent) = (ack.pushed.wrapping_sub(first), self.next.wrapping_sub(first));
        let is_ours = self.bound.as_ref().is_some_and(|bound| bound.receiver == ack.receiver);
        if !is_ours || pushed > sent {
            // Older than a handshake, from another receiver, or false.
            add(&self.common.counters.rejected, (!is_ours || pushed as i64 > 0).into());
            return false;
        }
        self.gap |= ack.gap;
        self.release(pushed);
        pushed > 0
    }

    fn release(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        self.source.release(count);
        self.heard = Instant::now();
        add(&self.common.counters.acknowledged, count);
        let first = self.source.first();
        while let Some(&(end, bytes)) = self.sent.front() {
            if (end.wrapping_sub(first) as i64) > 0 {
                break;
            }
            self.sent.pop_front();
            self.in_flight -= bytes;
        }
    }

    fn is_time_to_greet(&self) -> bool {
        let since = self.greeted.map_or(Duration::MAX, |greeted| greeted.elapsed());
        match &self.bound {
            Some(bound) if bound.is_alive => {
                let silence = if self.sent.is_empty() { 2 * self.options.silence } else { self.options.silence };
                self.gap && since >= BETWEEN_GAPS || self.heard.elapsed() >= silence && since >= self.options.silence
            }
            _ => since >= BETWEEN_HELLOS,
        }
    }

    fn greet(&mut self) -> Result<(), Error> {
        let limit = self.options.window_bytes.min(self.source.limit()) as u64;
        let hello = Hello { stream: self.source.stream(), first: self.source.first(), limit, ring: self.source.ring().clone() };
        let replies = self.session.get(&self.hello).payload(hello.encode()).timeout(LONGEST_HELLO).wait();
        self.greeted = Some(Instant::now());
        let replies = match replies {
            Ok(replies) => replies,
            Err(source) if self.session.is_closed() => return Err(Error::Zenoh { call: "get", source }),
            Err(_) => {
                self.lose();
                return Ok(());
            }
        };
        let (mut welcome, mut refusal) = (None, None);
        while let Ok(reply) = replies.recv() {
            let Ok(sample) = reply.result() else { continue };
            match Reply::decode(&sample.payload().to_bytes()) {
                // With two receivers at the key, the current one.
                Some(Reply::Welcome { receiver, pushed, received, window }) => {
                    if welcome.is_none() || self.bound.as_ref().is_some_and(|bound| bound.receiver == receiver) {
                        welcome = Some((receiver, pushed, received, window));
                    }
                }
                Some(Reply::Refusal(ring)) => refusal = Some(ring),
                None => add(&self.common.counters.rejected, 1),
            }
        }
        match (welcome, refusal) {
            (Some((receiver, pushed, received, window)), _) => self.bind(receiver, pushed, received, window),
            (None, Some(ring)) if !ring.accepts(self.source.ring()) => {
                Err(Error::Mismatch { source_ring: Box::new(self.source.ring().clone()), sink_ring: Box::new(ring) })
            }
            _ => {
                self.lose();
                Ok(())
            }
        }
    }

    fn lose(&mut self) {
        if let Some(bound) = &mut self.bound {
            bound.is_alive = false;
        }
    }

    fn bind(&mut self, receiver: u64, pushed: u64, received: u64, window: u64) -> Result<(), Error> {
        let first = self.source.first();
        // The answer is wrong if it exceeds the source. `received` is not before `pushed`.
        let (done, there) = (pushed.wrapping_sub(first), received.wrapping_sub(first));
        if done > there || !self.source.seek(there)? {
            add(&self.common.counters.rejected, 1);
            self.lose();
            return Ok(());
        }
        // Acknowledgements received so far are older than the handshake's answer.
        *self.inbox.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.gap = false;
        self.heard = Instant::now();
        self.sent.retain(|&(end, bytes)| {
            let arrived = received.wrapping_sub(end) as i64 >= 0;
            self.in_flight -= if arrived { 0 } else { bytes };
            arrived
        });
        self.next = received;
        self.release(done);
        if self.furthest.wrapping_sub(received) as i64 <= 0 {
            self.furthest = received;
        }
        let is_new = self.bound.as_ref().is_some_and(|bound| bound.receiver != receiver || !bound.is_alive);
        add(&self.common.counters.reconnects, is_new.into());
        let window = self.options.window_bytes.min(usize::try_from(window).unwrap_or(usize::MAX));
        self.bound = Some(Bound { receiver, window, is_alive: true });
        Ok(())
    }

    fn send(&mut self) -> Result<bool, Error> {
        let Some(bound) = self.bound.as_ref().filter(|bound| bound.is_alive) else { return Ok(false) };
        if self.in_flight >= bound.window || self.sent.len() >= MOST_BATCHES {
            return Ok(false);
        }
        let mut bytes = Vec::with_capacity(HEADER + self.options.batch_bytes);
        bytes.resize(HEADER, 0);
        // At least one message, even beyond the window.
        let most = self.options.batch_bytes.min(bound.window - self.in_flight);
        let count = self.source.take(most, &mut bytes)?;
        if count == 0 {
            return Ok(false);
        }
        let header = Data { count, stream: self.source.stream(), receiver: bound.receiver, first: self.next };
        bytes[..HEADER].copy_from_slice(&header.encode());
        let len = bytes.len() - HEADER;
        if self.sent.is_empty() {
            self.heard = Instant::now();
        }
        self.next = self.next.wrapping_add(count.into());
        self.sent.push_back((self.next, len));
        self.in_flight += len;
        self.count(count.into(), len as u64);
        match self.publisher.put(ZBytes::from(bytes)).wait() {
            Err(source) if self.session.is_closed() => Err(Error::Zenoh { call: "put", source }),
            // Counts as lost on the way.
            _ => Ok(true),
        }
    }

    fn count(&mut self, count: u64, bytes: u64) {
        let counters = &self.common.counters;
        let new = self.next.wrapping_sub(self.furthest);
        let new = if (new as i64) < 0 { 0 } else { new.min(count) };
        add(&counters.messages, new);
        add(&counters.resent, count - new);
        add(&counters.bytes, bytes * new / count);
        if new > 0 {
            self.furthest = self.next;
        }
    }
}
