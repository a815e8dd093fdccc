use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ringmem_kernels::probe::{self, mode};
use ringmem_layouts::HostWord;

use crate::conversations::{Heard, Run, Spy};
use crate::memory::{Bytes, Device};
use crate::reader::Reader;

const MODES: [u64; 4] = [mode::RELAXED, mode::PUBLISH, mode::RELEASE, mode::PAIR];

fn words(memory: &Bytes) -> (&[HostWord; 2], &[HostWord; 2]) {
    // SAFETY: both lines of words lie within the memory.
    unsafe { (memory.place::<[HostWord; 2]>(probe::HOST_LINE).as_ref(), memory.place::<[HostWord; 2]>(probe::DEVICE_LINE).as_ref()) }
}

pub fn ping_pong(run: &Run<'_>) -> Heard {
    const ROUNDS: u64 = 8;
    for mode in MODES {
        let memory = Bytes::zeroed(probe::BYTES as usize);
        let (to, from) = words(&memory);
        let arguments = vec![memory.address(), 1, ROUNDS, 30_000_000_000, mode];
        run.hold(&Device::new([memory.range()]), &[arguments], |watch| {
            for number in 1..=ROUNDS {
                to[0].store(!number, Relaxed);
                to[1].store(number, Release);
                watch.until("a number", |_| (from[1].load(Acquire) == number).then_some(()))?;
                if mode == mode::PAIR {
                    // The kernel answers 0 to a torn pair.
                    watch.until("its complement", |_| [!number, 0].contains(&from[0].load(Relaxed)).then_some(()))?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

pub fn publish(run: &Run<'_>) -> Heard {
    for (mode, count) in MODES.into_iter().flat_map(|mode| [1, 2, 35].map(|count| (mode, count))) {
        let memory = Bytes::zeroed(probe::BYTES as usize);
        let (to, from) = words(&memory);
        let spy = Spy::new(Device::new([memory.range()]), || to[0].load(Acquire) == 0 || from[1].load(Relaxed) == count - 1);
        from[1].store(u64::MAX, Relaxed);
        run.hold(&spy, &[vec![memory.address(), count, mode]], |watch| {
            watch.until("the time", |_| (to[0].load(Acquire) != 0).then_some(()))
        })?;
        if spy.has_failed() || from[1].load(Relaxed) != count - 1 {
            return Err("the time is seen before the last number".to_owned());
        }
    }
    let memory = Bytes::zeroed(probe::BYTES as usize);
    let [time, unused] = words(&memory).0;
    let reader = Reader::of_word(time, unused);
    run.hold_read(&Device::new([memory.range()]), &[vec![memory.address(), 35, mode::RELAXED]], Some(&reader), |watch| {
        watch.until("the time", |_| (time.load(Acquire) != 0).then_some(()))
    })
}
