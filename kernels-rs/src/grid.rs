//! Kernels that run once over whole buffers, with all groups of a launch: [`copy`], [`fill`], [`vector_add`].
//!
//! 1. Neighbouring lanes access neighbouring 16 bytes; each lane issues four loads before its first store.
//! 2. They process unaligned addresses by single elements.
//! 3. They do nothing if an address is unmapped, or not aligned to its elements.

use ringmem_layouts::Machine;
use ringmem_layouts::kernel::DevicePointer;

use crate::Lanes;

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::{COPY, FILL, SAXPY, SMOOTH, VECTOR_ADD};

/// Loads before the first store: as many as fit registers.
const UNROLL: u64 = 4;

/// The widest access that every architecture supports.
#[repr(C, align(16))]
struct Words(u64, u64);

#[repr(C, align(16))]
struct Floats(f32, f32, f32, f32);

#[inline(always)]
fn each<L: Lanes>(lanes: &L, count: u64, mut four: impl FnMut([u64; UNROLL as usize]), mut one: impl FnMut(u64)) {
    let stride = lanes.groups() * u64::from(lanes.width());
    let mut index = lanes.group() * u64::from(lanes.width()) + u64::from(lanes.lane());
    // No sum wraps: a count is at most the size of memory.
    while index + (UNROLL - 1) * stride < count {
        four([index, index + stride, index + 2 * stride, index + 3 * stride]);
        index += UNROLL * stride;
    }
    while index < count {
        one(index);
        index += stride;
    }
}

/// Values are scalars or tuples: a struct would go through local memory.
#[inline(always)]
fn move_each<V, L: Lanes>(lanes: &L, count: u64, load: impl Fn(u64) -> V, store: impl Fn(u64, V)) {
    let four = |[a, b, c, d]: [u64; UNROLL as usize]| {
        let (of_a, of_b, of_c, of_d) = (load(a), load(b), load(c), load(d));
        store(a, of_a);
        store(b, of_b);
        store(c, of_c);
        store(d, of_d);
    };
    each(lanes, count, four, |index| store(index, load(index)));
}

const fn is_wide(places: u64) -> bool {
    places.is_multiple_of(16)
}

/// Runs [`COPY`] on any machine.
///
/// # Safety
///
/// Memory at both addresses is initialised, live until every group has returned, and accessed by nothing else; the ranges do not overlap.
#[inline(always)]
pub unsafe fn copy<M: Machine, L: Lanes>(machine: &M, lanes: &L, to: DevicePointer<u8>, from: DevicePointer<u8>, bytes: u64) {
    let (to, from) = (to.address(), from.address());
    let (Some(target), Some(source)) = (machine.at(to, bytes, 1), machine.at(from, bytes, 1)) else { return };
    let whole = if is_wide(to | from) { bytes / 16 } else { 0 };
    let (wide_target, wide_source) = (target.cast::<Words>(), source.cast::<Words>());
    let load_wide = |index: u64| {
        // SAFETY: a whole piece, which exists only if both addresses are aligned to 16.
        let Words(low, high) = unsafe { wide_source.add(index as usize).as_ref() };
        (*low, *high)
    };
    // SAFETY: a whole piece of the target, which is aligned to 16 too; `each` gives an index to one lane of one group, and the caller
    // promises no other access.
    let store_wide = |index: u64, (low, high)| unsafe { wide_target.add(index as usize).write(Words(low, high)) };
    move_each(lanes, whole, load_wide, store_wide);
    // SAFETY: past the whole pieces, below the byte count.
    let load = |index: u64| unsafe { source.add((whole * 16 + index) as usize).read() };
    // SAFETY: past the whole pieces and below the byte count of the target; `each` gives an index to one lane of one group.
    let store = |index: u64, byte| unsafe { target.add((whole * 16 + index) as usize).write(byte) };
    move_each(lanes, bytes - whole * 16, load, store);
}

/// Runs [`FILL`] on any machine.
///
/// # Safety
///
/// Memory at the address is live until every group has returned, and not accessed elsewhere.
#[inline(always)]
pub unsafe fn fill<M: Machine, L: Lanes>(machine: &M, lanes: &L, to: DevicePointer<u64>, count: u64, value: u64) {
    let to = to.address();
    let Some(bytes) = count.checked_mul(8) else { return };
    let Some(target) = machine.at(to, bytes, 8) else { return };
    let target = target.cast::<u64>();
    // A word, aligned pieces, a word.
    let before = if is_wide(to) { 0 } else { count.min(1) };
    let (pieces, after) = ((count - before) / 2, (count - before) % 2);
    // SAFETY: within the words.
    let wide = unsafe { target.add(before as usize) }.cast::<Words>();
    // SAFETY: below the count, and aligned to 16 after the word before; each index is one lane's of one group.
    let store = |index: u64| unsafe { wide.add(index as usize).write(Words(value, value)) };
    each(lanes, pieces, |four| four.into_iter().for_each(store), store);
    if lanes.group() == 0 && lanes.lane() == 0 {
        if before == 1 {
            // SAFETY: the first word, outside all pieces.
            unsafe { target.write(value) };
        }
        if after == 1 {
            // SAFETY: the last word, below the count and outside all pieces.
            unsafe { target.add((count - 1) as usize).write(value) };
        }
    }
}

/// Runs [`VECTOR_ADD`] on any machine.
///
/// # Safety
///
/// Memory at the addresses is initialised, live until every group has returned, and not accessed elsewhere. `sums` equals a summand or
/// overlaps neither.
#[inline(always)]
pub unsafe fn vector_add<M: Machine, L: Lanes>(
    machine: &M,
    lanes: &L,
    sums: DevicePointer<f32>,
    a: DevicePointer<f32>,
    b: DevicePointer<f32>,
    count: u64,
) {
    let (sums, a, b) = (sums.address(), a.address(), b.address());
    let Some(bytes) = count.checked_mul(4) else { return };
    let places = (machine.at(sums, bytes, 4), machine.at(a, bytes, 4), machine.at(b, bytes, 4));
    let (Some(to), Some(left), Some(right)) = places else { return };
    let (to, left, right) = (to.cast::<f32>(), left.cast::<f32>(), right.cast::<f32>());
    let whole = if is_wide(sums | a | b) { count / 4 } else { 0 };
    let (wide_to, wide_left, wide_right) = (to.cast::<Floats>(), left.cast::<Floats>(), right.cast::<Floats>());
    let sum_of_four = |index: u64| {
        // SAFETY: a whole piece, which exists only if all addresses are aligned to 16.
        let (x, y) = unsafe { (wide_left.add(index as usize).as_ref(), wide_right.add(index as usize).as_ref()) };
        (x.0 + y.0, x.1 + y.1, x.2 + y.2, x.3 + y.3)
    };
    // SAFETY: a whole piece of the sums, which are aligned to 16 too; `each` gives an index to one lane of one group, and the caller
    // promises no other access.
    let store_four = |index: u64, (a, b, c, d)| unsafe { wide_to.add(index as usize).write(Floats(a, b, c, d)) };
    move_each(lanes, whole, sum_of_four, store_four);
    // SAFETY: below the count, past the whole pieces.
    let sum = |index: u64| unsafe { left.add((whole * 4 + index) as usize).read() + right.add((whole * 4 + index) as usize).read() };
    // SAFETY: below the count of sums, past the whole pieces; `each` gives an index to one lane of one group.
    let store = |index: u64, sum| unsafe { to.add((whole * 4 + index) as usize).write(sum) };
    move_each(lanes, count - whole * 4, sum, store);
}
