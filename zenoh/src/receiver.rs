//! [`Receiver`]: the thread that pushes messages into a sink and acknowledges them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::query::{Query, Queryable};
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

use crate::envelope::{Ack, Data, HEADER, Hello, Reply, split_frame};
use crate::error::of;
use crate::pace::Pace;
use crate::relay::{Common, Options, add};
use crate::sender::MOST_BATCHES;
use crate::streams::Streams;
use crate::{Error, Sink, keys, random};

/// How long the thread sleeps while nothing arrives.
const NAP: Duration = Duration::from_millis(20);
/// The time between two reports of one gap.
const BETWEEN_GAPS: Duration = Duration::from_millis(20);
/// Bytes of the longest hello: a table, and numbers.
const LONGEST_HELLO: usize = 20 << 10;

/// What zenoh's callbacks hand to the thread.
enum Incoming {
    Data(Data, ZBytes),
    Hello(Query),
}

/// A batch that is not pushed completely.
struct Batch {
    bytes: ZBytes,
    /// Bytes that are pushed, and the header.
    done: usize,
}

pub struct Receiver<S> {
    session: Session,
    sink: S,
    options: Options,
    common: Arc<Common>,
    id: u64,
    incoming: mpsc::Receiver<Incoming>,
    /// Bytes of batches from their arrival until they are pushed.
    held: Arc<AtomicUsize>,
    publisher: Publisher<'static>,
    _data: Subscriber<()>,
    _hello: Queryable<()>,
    streams: Streams,
    /// Sequence number after the last message that arrived in order.
    received: u64,
    batches: VecDeque<Batch>,
    /// The last acknowledged sequence number.
    acknowledged: u64,
    gap: bool,
    reported: Option<(u64, Instant)>,
}

impl<S: Sink> Receiver<S> {
    pub fn new(session: &Session, key: &str, sink: S, options: Options, common: Arc<Common>) -> Result<Self, Error> {
        let [data, ack, hello] = keys(key)?;
        let id = random();
        let held = Arc::new(AtomicUsize::new(0));
        let streams = sink.load()?.map_or_else(Streams::default, |state| Streams::decode(&state));
        let received = streams.pushed(sink.tail());
        let publisher = session.declare_publisher(ack).congestion_control(CongestionControl::Drop).express(true);
        let publisher = publisher.wait().map_err(of("declare_publisher"))?;
        // A sender keeps within the window. Twice that is room for a window that is sent again.
        let (queue, incoming) = mpsc::sync_channel(2 * MOST_BATCHES);
        let longest = usize::try_from(sink.ring().size).unwrap_or(usize::MAX).saturating_add(2 * options.window_bytes + HEADER);
        let arrival = Arrival {
            id,
            queue: queue.clone(),
            held: Arc::clone(&held),
            most: 2 * options.window_bytes,
            longest,
            common: Arc::clone(&common),
        };
        let data =
            session.declare_subscriber(data).callback(move |sample| arrival.take(&sample)).wait().map_err(of("declare_subscriber"))?;
        // Last: who gets an answer can send data.
        let counts = Arc::clone(&common);
        let greeting = move |query: Query| {
            if query.payload().is_none_or(|payload| payload.len() > LONGEST_HELLO) || queue.try_send(Incoming::Hello(query)).is_err() {
                add(&counts.counters.rejected, 1);
            }
        };
        let hello = session.declare_queryable(hello).callback(greeting).wait().map_err(of("declare_queryable"))?;
        Ok(Self {
            session: session.clone(),
            sink,
            options,
            common,
            id,
            incoming,
            held,
            publisher,
            _data: data,
            _hello: hello,
            streams,
            received,
            batches: VecDeque::new(),
            acknowledged: received,
            gap: false,
            reported: None,
        })
    }

    pub fn run(mut self) -> (S, Result<(), Error>) {
        let outcome = self.relay();
        (self.sink, outcome)
    }

    fn relay(&mut self) -> Result<(), Error> {
        let mut pace = Pace::default();
        while !self.common.is_stopped() {
            // The sink is full: poll it. Nothing arrived: sleep until something does.
            let most = if self.batches.is_empty() { NAP } else { pace.next() };
            if most.is_zero() {
                thread::yield_now();
            }
            match self.incoming.recv_timeout(most) {
                Ok(incoming) => self.accept(incoming)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while let Ok(incoming) = self.incoming.try_recv() {
                self.accept(incoming)?;
            }
            if self.push()? {
                pace.reset();
            }
            self.acknowledge();
            if self.session.is_closed() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn accept(&mut self, incoming: Incoming) -> Result<(), Error> {
        match incoming {
            Incoming::Data(header, bytes) => {
                let len = bytes.len();
                if !self.append(header, bytes) {
                    self.held.fetch_sub(len, Relaxed);
                }
                Ok(())
            }
            Incoming::Hello(query) => self.answer(&query),
        }
    }

    /// Appends a batch that continues the sequence; returns whether it did.
    fn append(&mut self, header: Data, bytes: ZBytes) -> bool {
        let counters = &self.common.counters;
        // Contiguous already, or copied once.
        let bytes = match bytes.to_bytes() {
            Cow::Owned(copied) => ZBytes::from(copied),
            Cow::Borrowed(_) => bytes,
        };
        let contents = bytes.to_bytes();
        if self.streams.current() != Some(header.stream) || !self.is_whole(header.count, &contents[HEADER..]) {
            add(&counters.rejected, 1);
            return false;
        }
        let ahead = header.first.wrapping_sub(self.received) as i64;
        // A sender has fewer batches in flight. Each may keep a buffer of zenoh's, however small it is.
        if ahead > 0 || self.batches.len() >= 2 * MOST_BATCHES {
            add(&counters.gaps, 1);
            self.gap = true;
            return false;
        }
        let known = ahead.unsigned_abs().min(header.count.into());
        add(&counters.duplicates, known);
        if known == u64::from(header.count) {
            return false;
        }
        let done = HEADER + self.skip(&contents[HEADER..], known);
        drop(contents);
        self.received = header.first.wrapping_add(header.count.into());
        self.batches.push_back(Batch { bytes, done });
        true
    }

    /// Returns whether these bytes are `count` whole messages that the sink can take.
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

    /// Returns the bytes of the first `count` messages.
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

    /// Pushes batches into the sink until it is full; returns whether anything was pushed.
    fn push(&mut self) -> Result<bool, Error> {
        let mut pushed = false;
        while let Some(batch) = self.batches.front_mut() {
            let contents = batch.bytes.to_bytes();
            let (count, bytes) = self.sink.push(&contents[batch.done..])?;
            pushed |= count > 0;
            add(&self.common.counters.messages, count);
            add(&self.common.counters.bytes, bytes as u64);
            batch.done += bytes;
            if batch.done < contents.len() {
                break;
            }
            self.held.fetch_sub(contents.len(), Relaxed);
            drop(contents);
            self.batches.pop_front();
        }
        Ok(pushed)
    }

    /// Publishes how far the sink is, if that is news.
    fn acknowledge(&mut self) {
        let Some(stream) = self.streams.current() else { return };
        let pushed = self.streams.pushed(self.sink.tail());
        let is_known = self.reported.is_some_and(|(at, when)| at == self.received && when.elapsed() < BETWEEN_GAPS);
        let gap = self.gap && !is_known;
        self.gap = false;
        if pushed == self.acknowledged && !gap {
            return;
        }
        if gap {
            self.reported = Some((self.received, Instant::now()));
        }
        self.acknowledged = pushed;
        let ack = Ack { stream, receiver: self.id, pushed, received: self.received, gap };
        // One that is lost is followed by another, or by a handshake.
        let _ = self.publisher.put(ack.encode()).wait();
    }

    /// Answers a sender.
    fn answer(&mut self, query: &Query) -> Result<(), Error> {
        let Some(hello) = query.payload().and_then(|payload| Hello::decode(&payload.to_bytes())) else {
            add(&self.common.counters.rejected, 1);
            return Ok(());
        };
        let reply = if self.sink.ring().accepts(&hello.ring) {
            self.resume(hello.stream, hello.first)?;
            let pushed = self.streams.pushed(self.sink.tail());
            Reply::Welcome { receiver: self.id, pushed, received: self.received, window: self.options.window_bytes as u64 }
        } else {
            add(&self.common.counters.refused, 1);
            Reply::Refusal(self.sink.ring().clone())
        };
        // If it is lost, the sender asks again.
        let _ = query.reply(query.key_expr().clone(), reply.encode()).wait();
        Ok(())
    }

    /// Makes `stream` the current source. The state is stored before its first message can be pushed.
    fn resume(&mut self, stream: u64, first: u64) -> Result<(), Error> {
        let tail = self.sink.tail();
        let was = self.streams.current();
        if !self.streams.resume(stream, first, tail) {
            return Ok(());
        }
        self.sink.save(&self.streams.encode())?;
        add(&self.common.counters.reconnects, u64::from(was.is_some()));
        // Batches of another source, which still has them.
        for batch in self.batches.drain(..) {
            self.held.fetch_sub(batch.bytes.len(), Relaxed);
        }
        self.received = self.streams.pushed(tail);
        self.acknowledged = self.received;
        Ok(())
    }
}

/// What the callback of data checks before anything is kept.
struct Arrival {
    id: u64,
    queue: SyncSender<Incoming>,
    held: Arc<AtomicUsize>,
    most: usize,
    /// Bytes of the longest batch that is accepted.
    longest: usize,
    common: Arc<Common>,
}

impl Arrival {
    fn take(&self, sample: &Sample) {
        let counters = &self.common.counters;
        let (payload, mut header) = (sample.payload(), [0; HEADER]);
        let read = std::io::Read::read_exact(&mut payload.reader(), &mut header);
        let Some(header) =
            read.ok().and_then(|()| Data::decode(&header)).filter(|header| header.receiver == self.id && payload.len() <= self.longest)
        else {
            return add(&counters.rejected, 1);
        };
        let len = payload.len();
        // One batch is always taken: its message may be larger than the window.
        let held = self.held.fetch_add(len, Relaxed);
        if held > 0 && held + len > self.most || self.queue.try_send(Incoming::Data(header, payload.clone())).is_err() {
            self.held.fetch_sub(len, Relaxed);
            add(&counters.gaps, 1);
        }
    }
}
