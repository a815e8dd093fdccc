use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ringmem_kernels::probe::{self, mode};
use ringmem_layouts::HostWord;
use ringmem_layouts::image::KernelHost;

use crate::conversations::{Heard, Run};
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

/// Reads the words whenever the machine accesses memory, also after the kernel's last store.
struct Spy<'s> {
    device: Device,
    memory: &'s Bytes,
    count: u64,
    is_early: AtomicBool,
}

impl KernelHost for Spy<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let (to, from) = words(self.memory);
        if to[0].load(Acquire) != 0 && from[1].load(Relaxed) != self.count - 1 {
            self.is_early.store(true, Relaxed);
        }
        self.device.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

pub fn publish(run: &Run<'_>) -> Heard {
    for (mode, count) in MODES.into_iter().flat_map(|mode| [1, 2, 35].map(|count| (mode, count))) {
        let memory = Bytes::zeroed(probe::BYTES as usize);
        let spy = Spy { device: Device::new([memory.range()]), memory: &memory, count, is_early: AtomicBool::new(false) };
        let (to, from) = words(&memory);
        from[1].store(u64::MAX, Relaxed);
        run.hold(&spy, &[vec![memory.address(), count, mode]], |watch| {
            watch.until("the time", |_| (to[0].load(Acquire) != 0).then_some(()))
        })?;
        if spy.is_early.load(Relaxed) || from[1].load(Relaxed) != count - 1 {
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
