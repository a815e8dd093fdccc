//! `transform`: changes each byte of chunks in place, eight at once: their highest bits are added separately, so no carry crosses a byte.

use core::ptr::NonNull;

use ringmem_layouts::control::Fault;
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::{Machine, SharedLayout};

use crate::{Batch, Handler, Lanes, Launch, persistent, refuse};

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::TRANSFORM;

/// The operation on each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adds this value, modulo 256.
    Add(u8),
    /// Exclusive or with this value.
    Xor(u8),
}

impl Operation {
    const ADD: u64 = 1 << 8;
    const XOR: u64 = 2 << 8;

    /// Encodes the operation for [`Apply`].
    #[must_use]
    pub const fn word(self) -> u64 {
        match self {
            Self::Add(operand) => Self::ADD | operand as u64,
            Self::Xor(operand) => Self::XOR | operand as u64,
        }
    }

    /// Decodes the word of [`Apply`]; `None` if unknown.
    #[must_use]
    pub const fn of(word: u64) -> Option<Self> {
        let operand = word as u8;
        match word & !0xff {
            Self::ADD => Some(Self::Add(operand)),
            Self::XOR => Some(Self::Xor(operand)),
            _ => None,
        }
    }

    /// Applies the operation to one byte.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, byte: u8) -> u8 {
        match self {
            Self::Add(operand) => byte.wrapping_add(operand),
            Self::Xor(operand) => byte ^ operand,
        }
    }

    /// Applies the operation to eight bytes.
    #[inline(always)]
    #[must_use]
    pub const fn apply_to_eight(self, bytes: u64) -> u64 {
        const EACH: u64 = 0x0101_0101_0101_0101;
        const LOW: u64 = 0x7f * EACH;
        match self {
            Self::Add(operand) => {
                let operand = operand as u64 * EACH;
                ((bytes & LOW) + (operand & LOW)) ^ ((bytes ^ operand) & !LOW)
            }
            Self::Xor(operand) => bytes ^ (operand as u64 * EACH),
        }
    }
}

/// Requests the change of a chunk, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(32))]
#[layout(size = 32, message = 4, writer = "host")]
pub struct Apply {
    /// The chunk's number, for the answer.
    pub id: u64,
    /// Offset in bytes from the start of the data, a multiple of 16.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// [`Operation::word`].
    pub operation: u64,
}

/// The answer to an [`Apply`], 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(16))]
#[layout(size = 16, message = 5, writer = "device")]
pub struct Applied {
    /// The `id` of the chunk.
    pub id: u64,
    /// 0 if changed, 1 if refused: out of bounds, misaligned or an unknown operation.
    pub status: u64,
}

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Sixteen([u64; 2]);

/// # Safety
///
/// `length` bytes at `data`, aligned to 16, are readable and writable. Meanwhile only lanes of one group of this width, each with its own
/// number, access them.
#[inline(always)]
unsafe fn change(lane: u32, width: u32, data: NonNull<u8>, length: u64, operation: Operation) {
    let wide = data.cast::<Sixteen>();
    let whole = length / 16;
    let mut i = u64::from(lane);
    while i < whole {
        // SAFETY: within the length, aligned, and at this lane's index.
        let place = unsafe { wide.add(i as usize) };
        // SAFETY: within the length and aligned; the caller promises readable bytes, which no other lane accesses at this index.
        let Sixteen([low, high]) = unsafe { place.read() };
        // SAFETY: within the length and aligned; the caller promises writable bytes, which no other lane accesses at this index.
        unsafe { place.write(Sixteen([operation.apply_to_eight(low), operation.apply_to_eight(high)])) };
        i += u64::from(width);
    }
    let mut i = whole * 16 + u64::from(lane);
    while i < length {
        // SAFETY: within the length, and at this lane's index.
        let place = unsafe { data.add(i as usize) };
        // SAFETY: the caller promises readable and writable bytes; no other lane accesses this one, because only this lane has index `i`.
        unsafe { place.write(operation.apply(place.read())) };
        i += u64::from(width);
    }
}

struct Handle {
    data: NonNull<u8>,
    length: u64,
}

impl<M: Machine, L: Lanes> Handler<M, L> for Handle {
    type Input = Apply;
    type Output = Applied;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Apply, Applied, M>) -> u64 {
        let mut refused = 0;
        let mut index = 0;
        while index < batch.len() {
            // SAFETY: below the length.
            let chunk = unsafe { batch.message(index, |chunk| *chunk) };
            let inside = chunk.offset.checked_add(chunk.length).is_some_and(|end| end <= self.length) && chunk.offset % 16 == 0;
            let operation = if inside { Operation::of(chunk.operation) } else { None };
            if let Some(operation) = operation {
                // SAFETY: checked bounds and alignment; the host does not access an unanswered chunk, and every lane runs this.
                unsafe { change(lanes.lane(), lanes.width(), self.data.add(chunk.offset as usize), chunk.length, operation) };
            }
            if lanes.lane() == 0 {
                let status = u64::from(operation.is_none());
                refused += status;
                // SAFETY: below the length, and only by lane 0.
                unsafe { batch.exchange(index, |_, slot| *slot = Applied { id: chunk.id, status }) };
            }
            index += 1;
        }
        refused
    }
}

/// Runs [`TRANSFORM`] on any machine, over `length` bytes at `data`.
///
/// # Safety
///
/// As [`persistent`]; `data` and `length` are equal on all lanes. The data is live until this returns. Nothing else accesses a chunk between its message and
/// its answer, and chunks that await answers do not overlap.
#[inline(always)]
pub unsafe fn transform<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, data: DevicePointer<u8>, length: u64) {
    let Some(data) = machine.at(data.address(), length, 16) else {
        // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
        // returns, accessed by their protocols only, with one host side and no other kernel.
        return unsafe { refuse(machine, lanes, launch, Fault::Address) };
    };
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
    // returns, accessed by their protocols only, with one host side and no other kernel. The data is live, too; nothing else accesses a chunk between its
    // message and its answer, and chunks that await answers do not overlap.
    unsafe { persistent(machine, lanes, launch, &mut Handle { data, length }) }
}
