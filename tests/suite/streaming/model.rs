use std::io;

use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::streaming::{Cause, Interrupted, Job, Sink, Source, Stage, Streamed, Streamer, Through};

use crate::rig::leak_checked::Clean;
use crate::streaming::persistent::changing;
use crate::streaming::rig::{build, incremented, noise};

struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn some(&mut self, bytes: usize, calm: bool) -> io::Result<usize> {
        match self.below(if calm { 30 } else { 40 }) {
            0..10 => Err(io::ErrorKind::Interrupted.into()),
            10..20 => Ok(bytes),
            20..39 => Ok(1 + self.below(bytes as u64) as usize),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

struct Awkward<'a> {
    chance: Chance,
    calm: bool,
    bytes: &'a [u8],
    written: Vec<u8>,
    is_known: bool,
}

impl Awkward<'_> {
    fn split(&mut self) -> (Reads<'_>, Writes<'_>) {
        let (reads, writes) = (Chance(self.chance.below(u64::MAX) | 1), Chance(self.chance.below(u64::MAX) | 1));
        let (calm, bytes, is_known) = (self.calm, self.bytes, self.is_known);
        (Reads { chance: reads, calm, bytes, is_known }, Writes { chance: writes, calm, bytes: &mut self.written })
    }
}

struct Reads<'a> {
    chance: Chance,
    calm: bool,
    bytes: &'a [u8],
    is_known: bool,
}

impl Source for Reads<'_> {
    fn length(&self) -> Option<u64> {
        self.is_known.then_some(self.bytes.len() as u64)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let most = self.chance.some(buffer.len(), self.calm)?;
        self.bytes.read_at(&mut buffer[..most], at)
    }
}

struct Writes<'a> {
    chance: Chance,
    calm: bool,
    bytes: &'a mut Vec<u8>,
}

impl Sink for Writes<'_> {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let most = self.chance.some(bytes.len(), self.calm)?;
        self.bytes.write_at(&bytes[..most], at)
    }
}

fn to_the_end(
    awkward: &mut Awkward<'_>,
    expected: &[u8],
    element: u64,
    backend: &Clean,
    mut attempt: impl FnMut(Job<'_>) -> Result<Streamed, Interrupted>,
) -> u32 {
    let (mut done, mut stops) = (0, 0);
    loop {
        let (mut source, mut sink) = awkward.split();
        let Err(Interrupted { done: now, cause }) = attempt(Job::new(&mut source).from(done).to(&mut sink).checksums()) else { break };
        assert!(matches!(cause, Cause::Device(_) | Cause::Read { .. } | Cause::Write { .. }), "{cause:?}");
        assert!(done <= now && (now.is_multiple_of(element) || now == expected.len() as u64), "{done} before, {now} now");
        assert!(awkward.written[..now as usize] == expected[..now as usize], "{cause:?}");
        (done, stops) = (now, stops + 1);
        if stops == 30 {
            awkward.calm = true;
            backend.set_faults(&Faults::new());
        }
        assert!(stops < 40, "{cause:?}");
    }
    assert!(awkward.written == expected);
    stops
}

#[test]
fn random_faults_lose_no_byte_and_keep_the_order() {
    let mut stops = [0; 3];
    for seed in 1..=120_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let backend = build(HostBackend::builder().device_memory(1 << 20));
        let element = [1, 2, 3, 8, 24][chance.below(5) as usize];
        let bytes = noise((chance.below(150) * element) as usize);
        let [chunk, depth, staging] = [200, 5, 5].map(|most| 1 + chance.below(most));
        let builder = Streamer::builder(&backend, 0).chunk(chunk).depth(depth as u32).staging(staging as u32).element(element);
        let is_known = chance.below(2) == 0;
        let mut awkward = Awkward { chance, calm: false, bytes: &bytes, written: Vec::new(), is_known };
        let kind = (seed % 3) as usize;
        if kind == 2 {
            let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(7)).collect();
            stops[kind] += to_the_end(&mut awkward, &expected, element, &backend, |job| {
                let mut streamer = builder.clone().build().expect("room");
                let mut stage = changing(&backend, &streamer, 4, u64::MAX);
                streamer.run(job, &mut stage)
            });
            continue;
        }
        let mut streamer = builder.build().expect("room");
        fn queued(
            backend: &Clean,
            streamer: &mut Streamer,
            awkward: &mut Awkward<'_>,
            expected: &[u8],
            element: u64,
            stage: &mut impl Stage,
        ) -> u32 {
            to_the_end(awkward, expected, element, backend, |job| streamer.run(job, stage))
        }
        let mut stage = incremented(&backend);
        let rules =
            [Verb::Copy, Verb::Launch, Verb::StreamWait, Verb::RecordPosition, Verb::Wait, Verb::Synchronize, Verb::Allocate].into_iter();
        backend.set_faults(&rules.fold(Faults::new(), |faults, verb| {
            faults.on(verb, Fault::random(0.004, seed)).on(verb, Fault::random(0.004, !seed).when_executed())
        }));
        stops[kind] += if kind == 0 {
            queued(&backend, &mut streamer, &mut awkward, &bytes, element, &mut Through)
        } else {
            let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(1)).collect();
            queued(&backend, &mut streamer, &mut awkward, &expected, element, &mut stage)
        };
        backend.set_faults(&Faults::new());
    }
    assert!(stops.iter().all(|stops| *stops > 20), "{stops:?}");
}
