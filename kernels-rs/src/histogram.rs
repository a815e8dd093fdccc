//! `histogram`: counts the bytes of chunks in device memory and computes their checksum.
//!
//! 1. Data are little-endian 64-bit words, zero-padded.
//! 2. Each lane counts in its own tables, without atomics.
//! 3. The checksum is the sum modulo 2^64 of `splitmix64(w ^ splitmix64(i))` over the words `w` at index `i`; chunks may come in any order.
//!
//! Source of splitmix64: Steele, Lea and Flood (2014).

use core::ptr::NonNull;

use ringmem_layouts::control::Fault;
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::{Machine, SharedLayout};

use crate::{Batch, Handler, Launch, WarpLanes, persistent, refuse};

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::HISTOGRAM;

/// Requests the count of a chunk, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(32))]
#[layout(size = 32, message = 2, writer = "host")]
pub struct Chunk {
    /// The chunk's number, for the answer.
    pub id: u64,
    /// Offset in bytes from the start of the data, a multiple of 8.
    pub offset: u64,
    /// Length in bytes, at most [`LONGEST`].
    pub length: u64,
    /// Index of its first word in the whole input.
    pub first_word: u64,
}

/// The answer to a [`Chunk`], 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(32))]
#[layout(size = 32, message = 3, writer = "device")]
pub struct Counted {
    /// The `id` of the chunk.
    pub id: u64,
    /// 0 if counted, 1 if refused: out of bounds, misaligned or too long.
    pub status: u64,
    /// Bytes counted since launch, this chunk included.
    pub bytes: u64,
    /// Checksum since launch, this chunk included.
    pub checksum: u64,
}

/// The largest chunk in bytes; 32-bit counters cannot overflow.
pub const LONGEST: u64 = 1 << 30;

const TABLES: usize = 32;

/// The kernel's working memory; zeroed before a launch.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(128))]
#[layout(size = 34816, writer = "device, after each chunk")]
pub struct Work {
    /// Count of each byte value since launch.
    pub totals: [u64; 256],
    /// Each lane's counters, zero between chunks.
    #[layout(writer = "device, while a chunk is counted")]
    pub tables: [[u32; 256]; TABLES],
}

/// Hashes a number to 64 bits.
///
/// ```
/// assert_eq!(ringmem_kernels::histogram::splitmix64(0), 0xe220_a839_7b1d_cdaf);
/// ```
#[inline(always)]
#[must_use]
pub const fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A single thread uses a table per byte of a word: no byte waits for the store of an equal one.
const fn tables_per_lane(width: u32) -> usize {
    if width == 1 { 8 } else { TABLES / width as usize }
}

#[derive(Clone, Copy)]
struct Share {
    lane: u32,
    width: u32,
}

/// # Safety
///
/// `length` bytes at `data`, aligned to 8, are readable and not written meanwhile; `tables` are this lane's `tables_per_lane`.
#[inline(always)]
unsafe fn count(share: Share, data: NonNull<u8>, length: u64, first_word: u64, tables: NonNull<[u32; 256]>) -> u64 {
    let Share { lane, width } = share;
    let per_lane = tables_per_lane(width);
    let bump = |position: usize, byte: u8| {
        // SAFETY: one of this lane's tables; a byte is below 256.
        let counter = unsafe { tables.add(position & (per_lane - 1)).cast::<u32>().add(byte as usize) };
        // SAFETY: `counter` is in one of this lane's tables, which are initialised and which no other lane accesses.
        unsafe { counter.write(counter.read().wrapping_add(1)) };
    };
    let words = data.cast::<u64>();
    let whole = length / 8;
    let mut sum: u64 = 0;
    let mut i = u64::from(lane);
    while i < whole {
        // SAFETY: within the length, aligned.
        let word = u64::from_le(unsafe { words.add(i as usize).read() });
        sum = sum.wrapping_add(splitmix64(word ^ splitmix64(first_word.wrapping_add(i))));
        bump(0, word as u8);
        bump(1, (word >> 8) as u8);
        bump(2, (word >> 16) as u8);
        bump(3, (word >> 24) as u8);
        bump(4, (word >> 32) as u8);
        bump(5, (word >> 40) as u8);
        bump(6, (word >> 48) as u8);
        bump(7, (word >> 56) as u8);
        i += u64::from(width);
    }
    let rest = length % 8;
    if rest != 0 && whole % u64::from(width) == u64::from(lane) {
        let mut word = 0;
        let mut position = 0;
        while position < rest {
            // SAFETY: within the length.
            let byte = unsafe { data.add((whole * 8 + position) as usize).read() };
            word |= u64::from(byte) << (8 * position);
            bump(position as usize, byte);
            position += 1;
        }
        sum = sum.wrapping_add(splitmix64(word ^ splitmix64(first_word.wrapping_add(whole))));
    }
    sum
}

/// # Safety
///
/// Only this kernel uses `work`. A barrier has passed since the lanes counted, so that all their counts are visible.
#[inline(always)]
unsafe fn settle(Share { lane, width }: Share, work: NonNull<Work>) {
    let used = tables_per_lane(width) * width as usize;
    // SAFETY: both fields are within `work`.
    let (totals, tables) = unsafe { (&raw mut (*work.as_ptr()).totals, &raw mut (*work.as_ptr()).tables) };
    let mut bin = lane as usize;
    while bin < 256 {
        let mut sum: u64 = 0;
        let mut table = 0;
        while table < used {
            // SAFETY: `table` is below 32, `bin` below 256 and this lane's.
            unsafe {
                let counter = tables.cast::<u32>().add(table * 256 + bin);
                sum += u64::from(counter.read());
                counter.write(0);
            }
            table += 1;
        }
        // SAFETY: `bin` is below 256 and this lane's, so `total` is within `work` and no other lane accesses it.
        unsafe {
            let total = totals.cast::<u64>().add(bin);
            total.write(total.read().wrapping_add(sum));
        }
        bin += width as usize;
    }
}

struct Handle {
    data: NonNull<u8>,
    length: u64,
    work: NonNull<Work>,
    bytes: u64,
    checksum: u64,
}

impl<M: Machine, L: WarpLanes> Handler<M, L> for Handle {
    type Input = Chunk;
    type Output = Counted;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Chunk, Counted, M>) -> u64 {
        let share = Share { lane: lanes.lane(), width: lanes.width() };
        let mut refused = 0;
        let mut index = 0;
        while index < batch.len() {
            // SAFETY: below the length.
            let chunk = unsafe { batch.message(index, |chunk| *chunk) };
            let inside = chunk.offset.checked_add(chunk.length).is_some_and(|end| end <= self.length);
            let accepted = inside && chunk.offset % 8 == 0 && chunk.length <= LONGEST;
            if accepted {
                // SAFETY: checked bounds and alignment; the host does not write an unanswered chunk.
                unsafe {
                    let tables = (&raw mut (*self.work.as_ptr()).tables).cast::<[u32; 256]>();
                    let own = tables.add(lanes.lane() as usize * tables_per_lane(lanes.width()));
                    let data = self.data.add(chunk.offset as usize);
                    let sum = count(share, data, chunk.length, chunk.first_word, NonNull::new_unchecked(own));
                    self.checksum = self.checksum.wrapping_add(lanes.sum(sum));
                    lanes.barrier();
                    settle(share, self.work);
                }
                self.bytes = self.bytes.wrapping_add(chunk.length);
                lanes.barrier();
            }
            if lanes.lane() == 0 {
                let status = u64::from(!accepted);
                refused += status;
                let answer = Counted { id: chunk.id, status, bytes: self.bytes, checksum: self.checksum };
                // SAFETY: below the length, and only by lane 0.
                unsafe { batch.exchange(index, |_, slot| *slot = answer) };
            }
            index += 1;
        }
        refused
    }
}

/// Runs [`HISTOGRAM`] on any machine, over `length` bytes at `data`.
///
/// # Safety
///
/// As [`persistent`]; the other arguments are equal on all lanes, too. Data and work are live until this returns; nothing else accesses the zeroed work, or
/// writes a chunk between its message and its answer.
#[inline(always)]
pub unsafe fn histogram<M: Machine, L: WarpLanes>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    data: DevicePointer<u64>,
    length: u64,
    work: DevicePointer<Work>,
) {
    let (Some(data), Some(work)) = (machine.at(data.address(), length, 8), machine.at(work.address(), size_of::<Work>() as u64, 128))
    else {
        // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
        // returns, accessed by their protocols only, with one host side and no other kernel.
        return unsafe { refuse(machine, lanes, launch, Fault::Address) };
    };
    let mut handle = Handle { data, length, work: work.cast(), bytes: 0, checksum: 0 };
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
    // returns, accessed by their protocols only, with one host side and no other kernel. Data and work are live, too; nothing else accesses the zeroed work, or
    // writes a chunk between its message and its answer.
    unsafe { persistent(machine, lanes, launch, &mut handle) }
}

/// Counts host memory, as a reference: adds to `work`'s totals and returns the checksum.
#[cfg(not(target_os = "cuda"))]
#[must_use]
pub fn reference(data: &[u64], length: usize, first_word: u64, work: &mut Work) -> u64 {
    let alone = Share { lane: 0, width: 1 };
    let length = length.min(size_of_val(data)) as u64;
    let work = NonNull::from(work);
    // SAFETY: the words hold `length` bytes, and the work is borrowed.
    unsafe {
        let tables = NonNull::new_unchecked((&raw mut (*work.as_ptr()).tables).cast::<[u32; 256]>());
        let sum = count(alone, NonNull::from(data).cast(), length, first_word, tables);
        settle(alone, work);
        sum
    }
}
