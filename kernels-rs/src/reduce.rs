//! `reduce`: sum, minimum and maximum of numbers.
//!
//! 1. A chunk is a run of little-endian words, integers or floats. Each has its own answer; the host [joins](Reduced::join) them in order.
//! 2. Number `i` is added to row `i % WIDTH`, then the rows are added in order: a sum of floats has the same bits for any number of lanes.
//! 3. Minimum and maximum of floats follow [`f64::total_cmp`].

use core::ptr::NonNull;

use ringmem_layouts::control::Fault;
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::{Machine, SharedLayout};

use crate::{Batch, Handler, Lanes, Launch, persistent, refuse};

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::REDUCE;

/// Number of rows.
pub const WIDTH: usize = 32;

/// The type of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Number {
    /// `u64`; sums wrap.
    Whole = 0,
    /// `f64`.
    Float = 1,
}

impl Number {
    /// Returns the type, if known.
    #[must_use]
    pub const fn of(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::Whole),
            1 => Some(Self::Float),
            _ => None,
        }
    }

    #[inline(always)]
    #[must_use]
    const fn add(self, sum: u64, word: u64) -> u64 {
        match self {
            Self::Whole => sum.wrapping_add(word),
            Self::Float => (f64::from_bits(sum) + f64::from_bits(word)).to_bits(),
        }
    }

    /// Maps a word to a key in the numbers' order; [`word`](Self::word) is the inverse.
    #[inline(always)]
    const fn key(self, word: u64) -> u64 {
        match self {
            Self::Whole => word,
            Self::Float => {
                let negative = (word as i64 >> 63) as u64;
                word ^ (negative >> 1) ^ (1 << 63)
            }
        }
    }

    #[inline(always)]
    const fn word(self, key: u64) -> u64 {
        match self {
            Self::Whole => key,
            Self::Float => {
                let word = key ^ (1 << 63);
                let negative = (word as i64 >> 63) as u64;
                word ^ (negative >> 1)
            }
        }
    }
}

/// Requests the reduction of a chunk, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(32))]
#[layout(size = 32, message = 6, writer = "host")]
pub struct Reduce {
    /// The chunk's number, for the answer.
    pub id: u64,
    /// Offset in bytes from the start of the data, a multiple of 8.
    pub offset: u64,
    /// Length in bytes, a multiple of 8.
    pub length: u64,
    /// [`Number`].
    pub number: u64,
}

/// The result of a [`Reduce`], 64 bytes. Numbers are stored as bits, meaningless if `count` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(64))]
#[layout(size = 64, message = 7, writer = "device")]
pub struct Reduced {
    /// The `id` of the chunk.
    pub id: u64,
    /// 0 if reduced, 1 if refused: out of bounds, misaligned or an unknown [`Number`].
    pub status: u64,
    /// Count of numbers.
    pub count: u64,
    /// Their sum. Any NaN is stored as [`f64::NAN`].
    pub sum: u64,
    /// The minimum.
    pub least: u64,
    /// The maximum.
    pub greatest: u64,
    /// Zero.
    #[layout(writer = "none: zero")]
    pub _reserved: [u64; 2],
}

impl Reduced {
    /// The result for no numbers.
    pub const NONE: Self = Self { id: 0, status: 0, count: 0, sum: 0, least: 0, greatest: 0, _reserved: [0; 2] };

    /// Combines this result with that of the following numbers; keeps `id` and `status`. Any bits are a result: the count wraps around.
    #[must_use]
    pub fn join(self, number: Number, next: Self) -> Self {
        match (self.count, next.count) {
            (_, 0) => self,
            (0, _) => Self { id: self.id, status: self.status, ..next },
            _ => Self {
                count: self.count.wrapping_add(next.count),
                sum: canonical(number, number.add(self.sum, next.sum)),
                least: number.word(number.key(self.least).min(number.key(next.least))),
                greatest: number.word(number.key(self.greatest).max(number.key(next.greatest))),
                ..self
            },
        }
    }
}

/// One NaN for all, because their bits differ between machines.
#[inline(always)]
const fn canonical(number: Number, sum: u64) -> u64 {
    match number {
        Number::Float if f64::from_bits(sum).is_nan() => f64::NAN.to_bits(),
        _ => sum,
    }
}

/// The partial result of a row; extremes as keys.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(size = 24, writer = "device")]
pub struct Row {
    /// The sum.
    pub sum: u64,
    /// The minimum key.
    pub least: u64,
    /// The maximum key.
    pub greatest: u64,
}

impl Row {
    const NONE: Self = Self { sum: 0, least: u64::MAX, greatest: 0 };

    #[inline(always)]
    fn add(self, number: Number, word: u64) -> Self {
        let key = number.key(word);
        Self { sum: number.add(self.sum, word), least: self.least.min(key), greatest: self.greatest.max(key) }
    }
}

/// The kernel's working memory.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(128))]
#[layout(size = 768, writer = "device, while a chunk is reduced")]
pub struct Rows {
    /// Each row is written by one lane, between two barriers.
    pub rows: [Row; WIDTH],
}

/// # Safety
///
/// `words` words at `data` are aligned, readable and not written meanwhile. Only lanes of one group of this width, each with its own
/// number, access `rows`.
#[inline(always)]
unsafe fn add_up(lane: u32, width: u32, data: NonNull<u64>, words: u64, number: Number, rows: NonNull<Row>) {
    if width as usize == WIDTH {
        let mut row = Row::NONE;
        let mut i = u64::from(lane);
        while i < words {
            // SAFETY: within the words.
            let word = unsafe { data.add(i as usize).read() };
            row = row.add(number, u64::from_le(word));
            i += WIDTH as u64;
        }
        // SAFETY: this lane's row.
        unsafe { rows.add(lane as usize).write(row) };
        return;
    }
    let mut own = [Row::NONE; WIDTH];
    let mut block = 0;
    while block < words {
        let mut i = lane as usize;
        while i < WIDTH && block + (i as u64) < words {
            // SAFETY: within the words.
            let word = unsafe { data.add(block as usize + i).read() };
            own[i] = own[i].add(number, u64::from_le(word));
            i += width as usize;
        }
        block += WIDTH as u64;
    }
    let mut i = lane as usize;
    while i < WIDTH {
        // SAFETY: one of this lane's rows.
        unsafe { rows.add(i).write(own[i]) };
        i += width as usize;
    }
}

/// # Safety
///
/// The rows are written, and nothing writes to them.
#[inline(always)]
unsafe fn settle(rows: NonNull<Row>, words: u64, number: Number, id: u64) -> Reduced {
    // SAFETY: the first row.
    let mut all = unsafe { rows.read() };
    let mut row = 1;
    while row < WIDTH && (row as u64) < words {
        // SAFETY: below the width.
        let next = unsafe { rows.add(row).read() };
        all = Row { sum: number.add(all.sum, next.sum), least: all.least.min(next.least), greatest: all.greatest.max(next.greatest) };
        row += 1;
    }
    if words == 0 {
        return Reduced { id, ..Reduced::NONE };
    }
    let (least, greatest) = (number.word(all.least), number.word(all.greatest));
    Reduced { id, count: words, sum: canonical(number, all.sum), least, greatest, ..Reduced::NONE }
}

struct Handle {
    data: NonNull<u8>,
    length: u64,
    rows: NonNull<Row>,
}

impl<M: Machine, L: Lanes> Handler<M, L> for Handle {
    type Input = Reduce;
    type Output = Reduced;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Reduce, Reduced, M>) -> u64 {
        let mut refused = 0;
        let mut index = 0;
        while index < batch.len() {
            // SAFETY: below the length.
            let chunk = unsafe { batch.message(index, |chunk| *chunk) };
            let inside = chunk.offset.checked_add(chunk.length).is_some_and(|end| end <= self.length);
            let accepted = inside && (chunk.offset | chunk.length) % 8 == 0;
            let number = if accepted { Number::of(chunk.number) } else { None };
            if let Some(number) = number {
                // SAFETY: checked bounds and alignment; the host does not write an unanswered chunk, and every lane runs this.
                unsafe {
                    let data = self.data.add(chunk.offset as usize).cast();
                    add_up(lanes.lane(), lanes.width(), data, chunk.length / 8, number, self.rows);
                }
            }
            lanes.barrier();
            if lanes.lane() == 0 {
                let answer = match number {
                    // SAFETY: every row is written; the other lanes wait at the barrier.
                    Some(number) => unsafe { settle(self.rows, chunk.length / 8, number, chunk.id) },
                    None => Reduced { id: chunk.id, status: 1, ..Reduced::NONE },
                };
                refused += answer.status;
                // SAFETY: below the length, and only by lane 0.
                unsafe { batch.exchange(index, |_, slot| *slot = answer) };
            }
            lanes.barrier();
            index += 1;
        }
        refused
    }
}

/// Runs [`REDUCE`] on any machine, over `length` bytes at `data`.
///
/// # Safety
///
/// As [`persistent`]; the other arguments are equal on all lanes, too. Data and rows are live until this returns; nothing else uses the rows, or writes a chunk
/// between its message and its answer.
#[inline(always)]
pub unsafe fn reduce<M: Machine, L: Lanes>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    data: DevicePointer<u64>,
    length: u64,
    rows: DevicePointer<Rows>,
) {
    let (Some(data), Some(rows)) = (machine.at(data.address(), length, 8), machine.at(rows.address(), size_of::<Rows>() as u64, 128))
    else {
        // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
        // returns, accessed by their protocols only, with one host side and no other kernel.
        return unsafe { refuse(machine, lanes, launch, Fault::Address) };
    };
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
    // returns, accessed by their protocols only, with one host side and no other kernel. Data and rows are live, too; nothing else uses the rows, or writes a
    // chunk between its message and its answer.
    unsafe { persistent(machine, lanes, launch, &mut Handle { data, length, rows: rows.cast() }) }
}

/// Reduces host memory, as a reference.
#[cfg(not(target_os = "cuda"))]
#[must_use]
pub fn reference(words: &[u64], number: Number) -> Reduced {
    let mut rows = [Row::NONE; WIDTH];
    let (data, place, count) = (NonNull::from(words).cast(), NonNull::from(&mut rows).cast(), words.len() as u64);
    // SAFETY: borrowed words and local rows, all of one lane.
    unsafe { add_up(0, 1, data, count, number, place) };
    // SAFETY: just written.
    unsafe { settle(place, count, number, 0) }
}
