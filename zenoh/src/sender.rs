use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::key_expr::KeyExpr;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::query::{ConsolidationMode, QueryTarget};
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

use crate::envelope::{Ack, Data, HEADER, Hello, Reply, Welcome, short};
use crate::error::of;
use crate::metrics::{Common, add};
use crate::options::Options;
use crate::pace::Pace;
use crate::{Error, RingType, Source, keys};

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

/// Most welcomes of one handshake that are tried: by several receivers at the key, or forged.
const MOST_WELCOMES: usize = 8;

/// The replies to one hello, bounded whatever is replied.
#[derive(Default)]
struct Answers {
    /// The current receiver's first.
    welcomes: Vec<Welcome>,
    refusal: Option<RingType>,
}

impl Answers {
    fn add(&mut self, reply: Reply, current: Option<u64>) {
        match reply {
            Reply::Welcome(welcome) => {
                let place = if current == Some(welcome.receiver) { 0 } else { self.welcomes.len() };
                self.welcomes.insert(place, welcome);
                self.welcomes.truncate(MOST_WELCOMES);
            }
            Reply::Refusal(ring) => self.refusal = Some(ring),
        }
    }
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
    /// The buffer of a batch without messages, for the next one.
    unused: Vec<u8>,
    heard: Instant,
    greeted: Option<Instant>,
    gap: bool,
}

impl<S: Source> Sender<S> {
    pub fn new(session: &Session, key: &str, source: S, options: Options, common: Arc<Common>) -> Result<Self, Error> {
        let [data, ack, hello] = keys(key)?;
        let inbox = Arc::new(Inbox::default());
        let (stream, seen, counts) = (source.stream(), Arc::clone(&inbox), Arc::clone(&common));
        let acks = move |sample: Sample| match short(sample.payload()).and_then(|bytes| Ack::decode(&bytes)) {
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
            unused: Vec::new(),
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
                let silence = if self.sent.is_empty() { self.options.silence.saturating_mul(2) } else { self.options.silence };
                self.gap && since >= BETWEEN_GAPS || self.heard.elapsed() >= silence && since >= self.options.silence
            }
            _ => since >= BETWEEN_HELLOS,
        }
    }

    fn greet(&mut self) -> Result<(), Error> {
        let limit = self.options.window_bytes.min(self.source.limit()) as u64;
        let (stream, first, count) = (self.source.stream(), self.source.first(), self.source.unreleased()?);
        let hello = Hello { stream, first, count, limit, ring: self.source.ring().clone() };
        let answers = self.ask(hello.encode());
        self.greeted = Some(Instant::now());
        let Answers { welcomes, refusal } = answers?;
        for welcome in welcomes {
            if self.bind(welcome)? {
                return Ok(());
            }
            add(&self.common.counters.rejected, 1);
        }
        self.lose();
        match refusal {
            Some(ring) if !ring.accepts(self.source.ring()) => {
                Err(Error::Mismatch { source_ring: Box::new(self.source.ring().clone()), sink_ring: Box::new(ring) })
            }
            _ => Ok(()),
        }
    }

    /// Queries all receivers; waits for the end of the query. Errors only if the session is closed.
    fn ask(&self, hello: Vec<u8>) -> Result<Answers, Error> {
        let answers = Arc::new(Mutex::new(Answers::default()));
        let (open, closed) = mpsc::channel::<Infallible>();
        let (heard, common, current) = (Arc::clone(&answers), Arc::clone(&self.common), self.bound.as_ref().map(|bound| bound.receiver));
        // zenoh's own queue keeps replies of any length until they are read.
        let hear = move |reply: zenoh::query::Reply| {
            let _ = &open;
            let Ok(sample) = reply.result() else { return };
            match short(sample.payload()).and_then(|bytes| Reply::decode(&bytes)) {
                Some(reply) => heard.lock().unwrap_or_else(PoisonError::into_inner).add(reply, current),
                None => add(&common.counters.rejected, 1),
            }
        };
        // By default zenoh queries only one of the queryables that call themselves complete, and passes on only the last of several replies: any peer
        // could hide the receiver.
        let query = self.session.get(&self.hello).target(QueryTarget::All).consolidation(ConsolidationMode::None);
        match query.payload(hello).timeout(LONGEST_HELLO).callback(hear).wait() {
            // zenoh drops the callback, and thereby the channel's other end, at the query's end.
            Ok(()) => drop(closed.recv_timeout(2 * LONGEST_HELLO)),
            Err(source) if self.session.is_closed() => return Err(Error::Zenoh { call: "get", source }),
            Err(_) => {}
        }
        Ok(std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn lose(&mut self) {
        if let Some(bound) = &mut self.bound {
            bound.is_alive = false;
        }
    }

    /// Continues as the receiver's welcome says; returns `false` without effect if it is false.
    fn bind(&mut self, Welcome { receiver, pushed, received, window }: Welcome) -> Result<bool, Error> {
        let first = self.source.first();
        // The answer is wrong if it exceeds the source, or allows no message. `received` is not before `pushed`.
        let (done, there) = (pushed.wrapping_sub(first), received.wrapping_sub(first));
        if done > there || window == 0 || !self.source.seek(there)? {
            return Ok(false);
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
        Ok(true)
    }

    fn send(&mut self) -> Result<bool, Error> {
        let Some(bound) = self.bound.as_ref().filter(|bound| bound.is_alive) else { return Ok(false) };
        if self.in_flight >= bound.window || self.sent.len() >= MOST_BATCHES {
            return Ok(false);
        }
        // At least one message, even beyond the window.
        let most = self.options.batch_bytes.min(bound.window - self.in_flight);
        let mut bytes = std::mem::take(&mut self.unused);
        bytes.clear();
        bytes.reserve(HEADER + most.min(self.source.limit()));
        bytes.resize(HEADER, 0);
        let count = self.source.take(most, &mut bytes)?;
        let Some(len) = bytes.len().checked_sub(HEADER) else {
            return Err(Error::End("the source removed bytes from the buffer to which it appends".to_owned()));
        };
        if count == 0 {
            self.unused = bytes;
            return Ok(false);
        }
        let header = Data { count, stream: self.source.stream(), receiver: bound.receiver, first: self.next };
        bytes[..HEADER].copy_from_slice(&header.encode());
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
