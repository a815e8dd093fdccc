use ringmem::Error;

use super::*;

const FRAMES: u32 = 2000;
const MANY: usize = 4096;

fn write(mut writer: Writer, backend: &Clean) -> Vec<(u64, u32)> {
    let work = Stream::new(backend, 0).expect("a stream");
    let mut source = Some(GpuBuffer::<u32>::new(Device::new(backend, 0), MANY).expect("room"));
    let mut started = Vec::new();
    for value in 1..=FRAMES {
        let mut filled = work.fill(source.take().expect("it is there"), .., value).expect("queued").detach();
        // Refilling while the slots are busy would queue fills faster than the stream executes them.
        let sequence = loop {
            match writer.start(&mut filled, ..) {
                Ok(sequence) => break sequence,
                Err(Error::Busy { .. }) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        started.push((sequence, value));
        source = Some(filled);
    }
    started
}

fn read(mut reader: Reader, mut look: impl FnMut(&mut Reader) -> Option<(u64, u32)>) -> Vec<(u64, u32)> {
    let mut frames: Vec<(u64, u32)> = Vec::new();
    let begun = Instant::now();
    loop {
        let is_over = reader.is_over();
        match look(&mut reader) {
            Some(frame) if frames.last() != Some(&frame) => {
                assert!(frames.last().is_none_or(|before| before.0 < frame.0), "{frame:?} after {:?}", frames.last());
                frames.push(frame);
            }
            _ if is_over => return frames,
            _ => thread::yield_now(),
        }
        assert!(begun.elapsed() < 4 * LIMIT, "not in time: the last frame, after {:?}", frames.last());
    }
}

fn run(slots: usize, policy: Policy, look: impl FnMut(&mut Reader) -> Option<(u64, u32)> + Send) -> [Vec<(u64, u32)>; 2] {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20));
    let (writer, reader) = double_buffer::pair(Pinned::new(&backend, 0), slots, policy).expect("a stream");
    thread::scope(|scope| {
        let started = scope.spawn(|| write(writer, &backend));
        let seen = scope.spawn(|| read(reader, look));
        [started, seen].map(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn latest_returns_whole_frames_in_order_and_the_last_one() {
    for slots in 2..=4 {
        let [started, seen] = run(slots, Policy::Newest, |reader| whole(reader.latest()));
        assert!(seen.iter().all(|frame| started.contains(frame)), "{slots} slots");
        assert_eq!(seen.last(), started.last(), "{slots} slots");
    }
}

#[test]
fn next_returns_every_frame_once_and_whole() {
    for (slots, wait) in [(2, Duration::ZERO), (2, LIMIT), (3, LIMIT)] {
        let [started, seen] = run(slots, Policy::Every { wait }, |reader| whole(reader.next(Duration::from_millis(1))));
        assert_eq!(seen, started, "{slots} slots, a wait of {wait:?}");
    }
}
