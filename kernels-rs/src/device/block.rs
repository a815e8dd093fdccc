//! [`Block`]: several warps as one group of lanes.
//!
//! Warps meet at the block's barrier, and exchange values by words in shared memory: each warp stores in a word of its own before the barrier, and all load the
//! words of all warps after it. Answers and values have different words: an old value could be taken for an answer.
//!
//! A meeting is one exchange of a value, a sum or a vote. What the loop does with a failed vote is in `persistent.rs`.
//!
//! **Two sets of words** take turns. A lane loads the words of meeting `n` before it arrives at the barrier of meeting `n + 1`. They are stored again for
//! meeting `n + 2`, after that barrier. With one set, a fast warp would overwrite a word that a slow warp has not loaded. A plain barrier is no meeting, and
//! changes nothing in this.
//!
//! **An answer has the number of its meeting.** The barrier does not wait for a warp whose lanes have all exited, and the word of such a warp has an older
//! number: it is a "no". A lane that exits alone makes its warp's vote a "no".
//!
//! Each lane counts the meetings for itself: every lane takes part in each, in the same order, by the contract of [`Lanes`].

use core::arch::{asm, global_asm, nvptx};
use core::cell::Cell;

use super::{ALL, Warp};
use crate::{Lanes, WarpLanes};

// For the meetings with even numbers and for those with odd ones: a word for each warp's answer, and one for its value.
global_asm!(".shared .align 8 .b64 ringmem_meetings[128];");

/// For operations of one warp: these lanes alone do not execute the kernel.
const WARP: Warp = Warp(());

const SET: u32 = 64 * 8;
/// The place of the values in a set.
const VALUES: u32 = 32 * 8;

/// The lanes of a block of 32 threads by any number of warps.
pub struct Block {
    warps: u32,
    warp: u32,
    /// The number of meetings so far.
    meetings: Cell<u32>,
}

impl Block {
    /// # Safety
    ///
    /// The block has 32 threads in its first dimension, by which the panic handler knows it, at most 32 in its second and one in its third. Each thread creates
    /// one value, as the kernel's only one, at the start.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new() -> Self {
        let (warps, warp): (u32, u32);
        // SAFETY: reads special registers.
        unsafe {
            asm!("mov.u32 {}, %ntid.y;", out(reg32) warps, options(pure, nomem, nostack));
            asm!("mov.u32 {}, %tid.y;", out(reg32) warp, options(pure, nomem, nostack));
        }
        let block = Self { warps, warp, meetings: Cell::new(0) };
        for words in [block.meet().1, block.meet().1] {
            // SAFETY: `warp` is below 32, as the caller promises.
            unsafe { Self::store(words + warp * 8, 0) };
        }
        // Before a lane of this warp answers: another one could zero its answer. Other warps load these words after a barrier of the block.
        WARP.barrier();
        block
    }

    /// Begins a meeting: its number, and the address of its set of words.
    #[inline(always)]
    fn meet(&self) -> (u32, u32) {
        let number = self.meetings.get().wrapping_add(1);
        self.meetings.set(number);
        let words: u32;
        // SAFETY: reads an address.
        unsafe { asm!("mov.u32 {}, ringmem_meetings;", out(reg32) words, options(pure, nomem, nostack)) };
        (number, words + number % 2 * SET)
    }

    /// # Safety
    ///
    /// The address is that of a word of `ringmem_meetings`.
    #[inline(always)]
    unsafe fn store(word: u32, value: u64) {
        // SAFETY: the caller promises a live word. Relaxed: lanes of one warp store at once.
        unsafe { asm!("st.relaxed.cta.shared.u64 [{}], {};", in(reg32) word, in(reg64) value, options(nostack)) };
    }

    /// # Safety
    ///
    /// As [`store`](Self::store).
    #[inline(always)]
    unsafe fn load(word: u32) -> u64 {
        let value;
        // SAFETY: the caller promises a live word.
        unsafe { asm!("ld.relaxed.cta.shared.u64 {}, [{}];", out(reg64) value, in(reg32) word, options(nostack)) };
        value
    }
}

// SAFETY: by the promise of `new`, `%tid.y` numbers the warps, and `%laneid` the lanes of each. The barrier waits for all threads of the block that have not
// exited, and orders their accesses.
unsafe impl Lanes for Block {
    #[inline(always)]
    fn width(&self) -> u32 {
        32 * self.warps
    }
    #[inline(always)]
    fn lane(&self) -> u32 {
        32 * self.warp + WARP.lane()
    }
    #[inline(always)]
    fn group(&self) -> u64 {
        WARP.group()
    }
    #[inline(always)]
    fn groups(&self) -> u64 {
        WARP.groups()
    }
    #[inline(always)]
    fn broadcast(&self, value: u64) -> u64 {
        let (_, words) = self.meet();
        if self.lane() == 0 {
            // SAFETY: the first value's word.
            unsafe { Self::store(words + VALUES, value) };
        }
        self.barrier();
        // SAFETY: the first value's word.
        unsafe { Self::load(words + VALUES) }
    }
    #[inline(always)]
    fn sum(&self, value: u64) -> u64 {
        let (_, words) = self.meet();
        let of_warp = WARP.sum(value);
        // SAFETY: `warp` is below 32, by the promise of `new`.
        unsafe { Self::store(words + VALUES + self.warp * 8, of_warp) };
        self.barrier();
        let lane = WARP.lane();
        // SAFETY: a lane is below 32.
        WARP.sum(if lane < self.warps { unsafe { Self::load(words + VALUES + lane * 8) } } else { 0 })
    }
    #[inline(always)]
    fn barrier(&self) {
        // SAFETY: every lane that has not exited calls `barrier`, by the contract of `Lanes`. Since sm_70 this barrier counts threads, not warps: it waits for
        // all that have not exited, also where the lanes of a warp arrive one after the other (CUDA C++ Programming Guide, Independent Thread Scheduling).
        unsafe { nvptx::_syncthreads() };
    }
    #[inline(always)]
    fn barrier_and(&self, answer: bool) -> bool {
        let (number, words) = self.meet();
        let yes = u64::from(number) << 1 | 1;
        let all = WARP.ballot(answer) == ALL;
        // SAFETY: `warp` is below 32, by the promise of `new`.
        unsafe { Self::store(words + self.warp * 8, if all { yes } else { 0 }) };
        self.barrier();
        let lane = WARP.lane();
        // SAFETY: a lane is below 32.
        WARP.ballot(lane >= self.warps || unsafe { Self::load(words + lane * 8) } == yes) == ALL
    }
    #[inline(always)]
    fn pause(&self, times: u32) {
        WARP.pause(times);
    }
    #[inline(always)]
    fn now_ns(&self) -> u64 {
        WARP.now_ns()
    }
    #[inline(always)]
    unsafe fn remember(&self, control: u64, epoch: u32, groups: u64) {
        // SAFETY: the caller promises live addresses of this launch.
        unsafe { WARP.remember(control, epoch, groups) };
    }
}
