mod drops;
mod faults;
mod figures;
mod invalid_frames;
mod model;
mod order;
mod panics;
mod policies;
mod threads;
mod uploads;

use std::thread;
use std::time::{Duration, Instant};

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::Result;
use ringmem::backend::host::{Builder, HostBackend};
use ringmem::double_buffer::{self, Failed, Frame, Policy};
use ringmem::memory::{Device, GpuBuffer, Pinned};
use ringmem::stream::Stream;

const LEN: usize = 64;
const BYTES: u64 = 4 * LEN as u64;

const EVERY: Policy = Policy::Every { wait: Duration::ZERO };

type Writer = double_buffer::Writer<u32, Pinned>;
type Reader = double_buffer::Reader<u32, Pinned>;

struct Rig {
    writer: Writer,
    reader: Reader,
    source: Option<GpuBuffer<u32>>,
    work: Stream,
    backend: Clean,
}

impl Rig {
    fn new(slots: usize, policy: Policy) -> Self {
        Self::on(HostBackend::builder(), slots, policy)
    }

    fn on(builder: Builder, slots: usize, policy: Policy) -> Self {
        let backend = Clean::build(builder.device_memory(1 << 20).log(true));
        let (writer, reader) = double_buffer::pair(Pinned::new(&backend, 0), slots, policy).expect("a stream");
        let source = Some(GpuBuffer::new(Device::new(&backend, 0), LEN).expect("room"));
        Self { writer, reader, source, work: Stream::new(&backend, 0).expect("a stream"), backend }
    }

    fn start(&mut self, value: u32) -> Result<u64> {
        self.write(value);
        self.writer.start(self.source.as_mut().expect("it is there"), ..)
    }

    fn write(&mut self, value: u32) {
        let source = self.source.take().expect("it is there");
        self.source = Some(self.work.fill(source, .., value).expect("queued").detach());
    }

    fn arrive(&mut self, value: u32) -> u64 {
        let sequence = self.start(value).expect("a slot");
        self.landed();
        sequence
    }

    fn landed(&self) {
        let source = self.source.as_ref().expect("it is there");
        source.ready_on(&self.work).expect("a live stream");
        self.work.synchronize().expect("its own operations do not fail");
    }

    fn latest(&mut self) -> Option<(u64, u32)> {
        whole(self.reader.latest())
    }

    fn next(&mut self) -> Option<(u64, u32)> {
        whole(self.reader.next(Duration::ZERO))
    }
}

fn whole(frame: Result<Option<Frame<'_, u32>>, Failed>) -> Option<(u64, u32)> {
    let Frame { sequence, elements } = frame.expect("no fault")?;
    let first = *elements.first().expect("it has elements");
    assert!(elements.iter().all(|element| *element == first), "frame {sequence} is torn");
    Some((sequence, first))
}
