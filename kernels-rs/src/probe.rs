//! Benchmark kernels. Only lane 0 works.

use core::ptr::NonNull;

use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::{Machine, Word};

use crate::{Lanes, Pairs};

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::{ORDER_OF_LOADS, ORDER_OF_STORES, PING_PONG, PUBLISH};

/// Offset in bytes of the host's words.
pub const HOST_LINE: u64 = 0;
/// Offset in bytes of the device's words.
pub const DEVICE_LINE: u64 = 128;
/// Size in bytes of a probe's memory, aligned to 128.
pub const BYTES: u64 = 512;

/// A probe's memory.
pub type Words = DevicePointer<[u64; BYTES as usize / 8]>;

/// How a probe stores.
pub mod mode {
    /// A relaxed store of one word.
    pub const RELAXED: u64 = 0;
    /// A barrier, then a relaxed store: `publish_all` of one word.
    pub const PUBLISH: u64 = 1;
    /// A release store of one word.
    pub const RELEASE: u64 = 2;
    /// A relaxed store of two words, 16 bytes: payload and flag.
    pub const PAIR: u64 = 3;
}

struct Lines<'a, W> {
    host: &'a [W; 2],
    device: &'a [W; 2],
}

/// # Safety
///
/// Memory mapped at `words` is live for `'a` and accessed elsewhere as words only.
#[inline(always)]
unsafe fn lines<'a, M: Machine>(machine: &M, words: Words) -> Option<Lines<'a, M::Word>> {
    let base = machine.at(words.address(), BYTES, 128)?;
    // SAFETY: both lines are within `BYTES`.
    let pair = |offset: u64| unsafe { base.add(offset as usize).cast::<[M::Word; 2]>() };
    let (host, device): (NonNull<_>, NonNull<_>) = (pair(HOST_LINE), pair(DEVICE_LINE));
    // SAFETY: `at` mapped and aligned both lines; the caller promises that they are live for `'a` and accessed elsewhere as words only.
    Some(unsafe { Lines { host: host.as_ref(), device: device.as_ref() } })
}

/// Answers `rounds` numbers from the host, from `start`, with equal numbers, until `idle_ns` without one. In [`mode::PAIR`] the payload is
/// the number's complement; if torn from the flag, the answer's payload is 0.
///
/// # Safety
///
/// Memory mapped at `words` is live until this returns and accessed elsewhere as words only.
#[inline(always)]
pub unsafe fn ping_pong<M: Pairs, L: Lanes>(machine: &M, lanes: &L, words: Words, start: u64, rounds: u64, idle_ns: u64, mode: u64) {
    // SAFETY: the caller promises that the memory at `words` is live until this returns, which ends after the last use of the lines, and
    // accessed elsewhere as words only.
    let Some(lines) = (unsafe { lines(machine, words) }) else { return };
    if lanes.lane() != 0 {
        return;
    }
    let mut round = 0;
    while round < rounds {
        let number = start.wrapping_add(round);
        let mut since = lanes.now_ns();
        let mut times: u32 = 0;
        let payload = loop {
            if mode == mode::PAIR {
                // SAFETY: a line, aligned to 128.
                let [payload, flag] = unsafe { M::load_pair(lines.host) };
                if flag == number {
                    break payload;
                }
            } else if lines.host[1].load_acquire() == number {
                break !number;
            }
            times = times.wrapping_add(1);
            // The clock is slower than the word.
            if times.is_multiple_of(64) {
                let now = lanes.now_ns();
                if times == 64 {
                    since = now;
                } else if now.saturating_sub(since) > idle_ns {
                    return;
                }
            }
        };
        match mode {
            // SAFETY: a line, aligned to 128.
            mode::PAIR => unsafe { M::store_pair(lines.device, [if payload == !number { payload } else { 0 }, number]) },
            mode::PUBLISH => M::Word::publish_all([(&lines.device[1], number)]),
            mode::RELEASE => lines.device[1].store_release(number),
            _ => lines.device[1].store(number),
        }
        round += 1;
    }
}

/// Stores `count` numbers, then writes the elapsed nanoseconds to the host's line.
///
/// # Safety
///
/// As [`ping_pong`].
#[inline(always)]
pub unsafe fn publish<M: Pairs, L: Lanes>(machine: &M, lanes: &L, words: Words, count: u64, mode: u64) {
    // SAFETY: the caller promises that the memory at `words` is live until this returns, and accessed elsewhere as words only.
    let Some(lines) = (unsafe { lines(machine, words) }) else { return };
    if lanes.lane() != 0 {
        return;
    }
    let begun = lanes.now_ns();
    let mut number = 0;
    while number < count {
        match mode {
            // SAFETY: a line, aligned to 128.
            mode::PAIR => unsafe { M::store_pair(lines.device, [!number, number]) },
            mode::PUBLISH => M::Word::publish_all([(&lines.device[1], number)]),
            mode::RELEASE => lines.device[1].store_release(number),
            _ => lines.device[1].store(number),
        }
        number += 1;
    }
    let took = lanes.now_ns().saturating_sub(begun);
    M::Word::publish_all([(&lines.host[0], took.max(1))]);
}

/// Stores each number from 1 to `count` to a payload word, then to a flag in another line, in [`mode::PUBLISH`] with a barrier between
/// them. A flag ahead of its payload shows reordering.
///
/// # Safety
///
/// As [`ping_pong`].
#[inline(always)]
pub unsafe fn order_of_stores<M: Machine, L: Lanes>(machine: &M, lanes: &L, words: Words, count: u64, mode: u64) {
    // SAFETY: the caller promises that the memory at `words` is live until this returns, and accessed elsewhere as words only.
    let Some(lines) = (unsafe { lines(machine, words) }) else { return };
    if lanes.lane() != 0 {
        return;
    }
    let mut number = 1;
    while number <= count {
        lines.device[0].store(number);
        if mode == mode::PUBLISH {
            M::Word::publish_all([(&lines.host[1], number)]);
        } else {
            lines.host[1].store(number);
        }
        number += 1;
    }
}

/// Loads a flag, then a payload in another line, in [`mode::PUBLISH`] with an acquire between them, until the flag is `last` or `idle_ns`
/// are over. The host stores each number to the payload first. Finally writes to the device's line how often the flag was ahead, and to the
/// host's line the number of loads.
///
/// # Safety
///
/// As [`ping_pong`].
#[inline(always)]
pub unsafe fn order_of_loads<M: Machine, L: Lanes>(machine: &M, lanes: &L, words: Words, last: u64, idle_ns: u64, mode: u64) {
    // SAFETY: the caller promises that the memory at `words` is live until this returns, and accessed elsewhere as words only.
    let Some(lines) = (unsafe { lines(machine, words) }) else { return };
    if lanes.lane() != 0 {
        return;
    }
    let begun = lanes.now_ns();
    let (mut looks, mut early) = (0_u64, 0);
    loop {
        let flag = if mode == mode::PUBLISH { lines.host[1].load_acquire() } else { lines.host[1].load() };
        let payload = lines.device[1].load();
        looks += 1;
        early += u64::from(payload < flag);
        if flag == last || looks.is_multiple_of(1024) && lanes.now_ns().saturating_sub(begun) > idle_ns {
            break;
        }
    }
    M::Word::publish_all([(&lines.device[0], early), (&lines.host[0], looks)]);
}
