//! The GPU as a [`Machine`], and its warps; with `lib.rs`, the only file with compiler-specific `cfg`s.
//!
//! 1. `rustc` for nvptx64: warp operations are LLVM intrinsics, because inline assembly is not marked convergent.
//! 2. Rust-CUDA (feature `rust-cuda`): its compiler turns an atomic load into a read-modify-write, so words are inline
//!    assembly. Compiled by `rustc` and assembled; never compiled by Rust-CUDA.
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::{Layout, LayoutDescriptor, Machine, SliceCell, SlotCell};

use crate::{Lanes, WarpLanes, back_off_ns};

#[cfg(feature = "rust-cuda")]
use self::rust_cuda as compiler;
#[cfg(not(feature = "rust-cuda"))]
use self::rustc as compiler;
pub use compiler::DeviceWord;

#[cfg(not(feature = "rust-cuda"))]
mod block;
#[cfg(not(feature = "rust-cuda"))]
pub use block::Block;

/// A GPU: an address is a pointer.
pub struct Device;

impl Machine for Device {
    type Word = DeviceWord;
    type Cell<T> = DeviceCell<T>;
    type Corrupt = Corrupt;

    #[inline(always)]
    fn at(&self, address: u64, _bytes: u64, align: u64) -> Option<NonNull<u8>> {
        let aligned = address & (align - 1) == 0;
        NonNull::new(if aligned { address as *mut u8 } else { core::ptr::null_mut() })
    }
}

/// A slot in device-accessible memory.
#[repr(transparent)]
pub struct DeviceCell<T>(UnsafeCell<T>);

// SAFETY: both pointers are `UnsafeCell::get`'s; nothing is accessed.
unsafe impl<T> SlotCell<T> for DeviceCell<T> {
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
    #[inline(always)]
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }
    #[inline(always)]
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

// SAFETY: `repr(transparent)` over `UnsafeCell<T>`.
unsafe impl<T> SliceCell<T> for DeviceCell<T> {}

// The same hash as `u64`. SAFETY: transparent over a word of 64 bits.
#[diagnostic::do_not_recommend]
unsafe impl Layout for DeviceWord {
    const DESCRIPTOR: LayoutDescriptor = u64::DESCRIPTOR;
}

const _: [LayoutDescriptor; 3] = [
    <ringmem_layouts::ControlBlock<DeviceWord> as Layout>::DESCRIPTOR,
    <ringmem_layouts::TelemetryBuffer<DeviceWord> as Layout>::DESCRIPTOR,
    <ringmem_layouts::RingHeader<DeviceWord> as Layout>::DESCRIPTOR,
];

#[allow(improper_ctypes)]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_sync_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_sync_bfly(mask: u32, value: u32, lanes: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, answer: bool) -> u32;
}

const ALL: u32 = u32::MAX;
const CLAMP: u32 = 31;

/// Returns this thread's number, and the number of threads of the launch.
#[inline(always)]
#[must_use]
pub fn thread() -> [u32; 2] {
    let (thread, threads, group, groups): (u32, u32, u32, u32);
    // SAFETY: reads special registers.
    unsafe {
        asm!("mov.u32 {}, %tid.x;", out(reg32) thread, options(pure, nomem, nostack));
        asm!("mov.u32 {}, %ntid.x;", out(reg32) threads, options(pure, nomem, nostack));
        asm!("mov.u32 {}, %ctaid.x;", out(reg32) group, options(pure, nomem, nostack));
        asm!("mov.u32 {}, %nctaid.x;", out(reg32) groups, options(pure, nomem, nostack));
    }
    [group.wrapping_mul(threads).wrapping_add(thread), groups.wrapping_mul(threads)]
}

/// The 32 lanes of a warp.
pub struct Warp(());

impl Warp {
    /// # Safety
    ///
    /// For [`Lanes`]: the block is one warp, and its kernel creates the value, as its only one.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY: `%laneid` numbers the lanes of a warp; `bar.warp.sync` waits for all of them and orders their accesses. They are all that execute the kernel
// together, by the promise of `new`.
unsafe impl Lanes for Warp {
    #[inline(always)]
    fn width(&self) -> u32 {
        Self::WIDTH
    }
    #[inline(always)]
    fn lane(&self) -> u32 {
        let lane: u32;
        // SAFETY: reads a special register.
        unsafe { asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(pure, nomem, nostack)) };
        lane
    }
    #[inline(always)]
    fn group(&self) -> u64 {
        compiler::group()
    }
    #[inline(always)]
    fn groups(&self) -> u64 {
        compiler::groups()
    }
    #[inline(always)]
    fn broadcast(&self, value: u64) -> u64 {
        // SAFETY: all lanes call it, by `Lanes`.
        let (low, high) = unsafe { (shfl_sync_idx(ALL, value as u32, 0, CLAMP), shfl_sync_idx(ALL, (value >> 32) as u32, 0, CLAMP)) };
        u64::from(high) << 32 | u64::from(low)
    }
    #[inline(always)]
    fn sum(&self, mut value: u64) -> u64 {
        let mut distance = 16;
        while distance > 0 {
            // SAFETY: every lane calls `sum`, by the contract of `Lanes`, so every lane of the mask executes the shuffle.
            let (low, high) =
                unsafe { (shfl_sync_bfly(ALL, value as u32, distance, CLAMP), shfl_sync_bfly(ALL, (value >> 32) as u32, distance, CLAMP)) };
            value = value.wrapping_add(u64::from(high) << 32 | u64::from(low));
            distance /= 2;
        }
        value
    }
    #[inline(always)]
    fn barrier(&self) {
        // SAFETY: every lane that has not exited calls `barrier`, by the contract of `Lanes`.
        unsafe { bar_warp_sync(ALL) };
    }
    #[inline(always)]
    fn barrier_and(&self, answer: bool) -> bool {
        self.barrier();
        self.ballot(answer) == ALL
    }
    #[inline(always)]
    fn pause(&self, times: u32) {
        let ns = back_off_ns(times);
        if ns > 0 {
            // SAFETY: sleeps.
            unsafe { asm!("nanosleep.u32 {};", in(reg32) ns, options(nomem, nostack)) };
        }
    }
    #[inline(always)]
    fn now_ns(&self) -> u64 {
        let now: u64;
        // SAFETY: reads a special register; volatile: readings never merge.
        unsafe { asm!("mov.u64 {}, %globaltimer;", out(reg64) now, options(nomem, nostack)) };
        now
    }
    #[inline(always)]
    unsafe fn remember(&self, control: u64, epoch: u32, groups: u64) {
        // SAFETY: the caller promises live addresses of this launch.
        unsafe { compiler::remember(control, epoch, groups) };
    }
}

// SAFETY: a warp has 32 lanes.
unsafe impl WarpLanes for Warp {
    const WIDTH: u32 = 32;

    #[inline(always)]
    fn ballot(&self, answer: bool) -> u32 {
        // SAFETY: all lanes that have not exited call it; the others count as "no".
        unsafe { vote_ballot_sync(ALL, answer) }
    }
}

#[cfg(not(feature = "rust-cuda"))]
mod rustc {
    use core::arch::asm;
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

    use ringmem_layouts::control::{self, Fault};
    use ringmem_layouts::ring::groups::Groups;
    use ringmem_layouts::{Counter, Word};

    use crate::Pairs;
    use crate::panic_row::Row;

    use super::Device;

    /// A shared word at system scope, as rustc's atomics on nvptx64.
    #[repr(transparent)]
    pub struct DeviceWord(AtomicU64);

    // SAFETY: 64-bit accesses at system scope; a fence releases the relaxed stores after it.
    unsafe impl Word for DeviceWord {
        fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }
        #[inline(always)]
        fn load(&self) -> u64 {
            self.0.load(Relaxed)
        }
        #[inline(always)]
        fn load_acquire(&self) -> u64 {
            self.0.load(Acquire)
        }
        #[inline(always)]
        fn store(&self, value: u64) {
            self.0.store(value, Relaxed);
        }
        #[inline(always)]
        fn store_release(&self, value: u64) {
            self.0.store(value, Release);
        }
        #[inline(always)]
        fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
            core::sync::atomic::fence(AcqRel);
            // By index: LLVM 23 moves an array that is iterated by value through local memory.
            #[allow(clippy::needless_range_loop)]
            for place in 0..N {
                let (word, value) = words[place];
                word.store(value);
            }
        }
    }

    #[inline(always)]
    pub fn group() -> u64 {
        // SAFETY: reads a special register.
        unsafe { core::arch::nvptx::_block_idx_x() as u64 }
    }
    #[inline(always)]
    pub fn groups() -> u64 {
        // SAFETY: reads a special register.
        unsafe { core::arch::nvptx::_grid_dim_x() as u64 }
    }
    /// # Safety
    ///
    /// As [`Lanes::remember`](crate::Lanes::remember).
    #[inline(always)]
    pub unsafe fn remember(control: u64, epoch: u32, groups: u64) {
        let group = group();
        row(group).store(block_number(group), [control, u64::from(epoch), groups]);
    }

    /// For the panic handler.
    static ROWS: [Row; 4096] = [const { Row::new() }; 4096];

    #[inline(always)]
    fn grid_number() -> u64 {
        let grid: u64;
        // SAFETY: reads a special register.
        unsafe { asm!("mov.u64 {}, %gridid;", out(reg64) grid, options(pure, nomem, nostack)) };
        grid
    }

    /// Of all launches.
    #[inline(always)]
    fn block_number(group: u64) -> u64 {
        grid_number() << 32 | group
    }

    #[inline(always)]
    fn row(group: u64) -> &'static Row {
        // The golden ratio distributes launches over the table.
        let start = grid_number().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
        &ROWS[(start + group) as usize % ROWS.len()]
    }

    /// In a persistent kernel, the other lanes notice the exit at the barrier after the batch, other groups the fault in their counters, and the host the
    /// state. A kernel over buffers, whose blocks have more than 32 threads in a row, has no such state: it ends with an error of the device, as after a failed
    /// `assert` in CUDA C++.
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        let threads: u32;
        // SAFETY: reads a special register.
        unsafe { asm!("mov.u32 {}, %ntid.x;", out(reg32) threads, options(pure, nomem, nostack)) };
        if threads > <super::Warp as crate::WarpLanes>::WIDTH {
            // SAFETY: ends the launch.
            unsafe { asm!("trap;", "exit;", options(noreturn, nostack)) }
        }
        let [place, epoch, shared] = row(group()).load(block_number(group())).unwrap_or_default();
        if shared != 0 {
            // SAFETY: the kernel of this block promised live counters by `Lanes::remember`; they are words.
            unsafe { &*(shared as *const Groups<DeviceWord>) }.end(Some(Fault::Panic));
        }
        if place != 0 {
            // SAFETY: the kernel of this block promised a live control block by `Lanes::remember`.
            let block = unsafe { &*(place as *const control::Shared<DeviceWord>) };
            // SAFETY: the only kernel on the block, of whose groups only this one stores the state; this lane exits below.
            unsafe { control::panicked(block, epoch as u32) };
        }
        // SAFETY: ends this lane.
        unsafe { asm!("exit;", options(noreturn, nostack)) }
    }

    // Rust has no two-word atomic here.
    impl Pairs for Device {
        #[inline(always)]
        unsafe fn load_pair(pair: &[DeviceWord; 2]) -> [u64; 2] {
            let (low, high): (u64, u64);
            // SAFETY: the reference keeps both words live, and the caller promises that the pair is aligned to 16 as `v2` requires; relaxed
            // at system scope.
            unsafe {
                asm!("ld.relaxed.sys.v2.u64 {{{}, {}}}, [{}];", out(reg64) low, out(reg64) high, in(reg64) pair.as_ptr(), options(nostack));
            }
            [low, high]
        }
        #[inline(always)]
        unsafe fn store_pair(pair: &[DeviceWord; 2], [low, high]: [u64; 2]) {
            // SAFETY: the reference keeps both words live, and the caller promises that the pair is aligned to 16 as `v2` requires; relaxed
            // at system scope.
            unsafe {
                asm!("st.relaxed.sys.v2.u64 [{}], {{{}, {}}};", in(reg64) pair.as_ptr(), in(reg64) low, in(reg64) high, options(nostack));
            }
        }
    }

    // SAFETY: single atomic operations at device scope, which includes all lanes that access a counter.
    unsafe impl Counter for DeviceWord {
        #[inline(always)]
        fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64> {
            let found: u64;
            // SAFETY: a live word. A generic address would be slower than the global window's.
            unsafe {
                asm!(
                    "{{ .reg .b64 place; cvta.to.global.u64 place, {word};",
                    "atom.relaxed.gpu.global.cas.b64 {found}, [place], {current}, {new}; }}",
                    word = in(reg64) self.0.as_ptr(), found = out(reg64) found, current = in(reg64) current, new = in(reg64) new,
                    options(nostack)
                );
            }
            if found == current { Ok(()) } else { Err(found) }
        }
        #[inline(always)]
        fn add_release(&self, value: u64) {
            // SAFETY: `self` is a live word in global memory, and the instruction accesses only this word.
            unsafe {
                asm!(
                    "{{ .reg .b64 place; cvta.to.global.u64 place, {word};",
                    "red.release.gpu.global.add.u64 [place], {value}; }}",
                    word = in(reg64) self.0.as_ptr(), value = in(reg64) value,
                    options(nostack)
                );
            }
        }
    }
}

/// For Rust-CUDA's compiler, whose atomic loads are read-modify-writes: words and warps are inline assembly.
#[cfg(feature = "rust-cuda")]
mod rust_cuda {
    use core::arch::asm;
    use core::cell::UnsafeCell;

    use ringmem_layouts::Word;

    /// A shared word at system scope.
    #[repr(transparent)]
    pub struct DeviceWord(UnsafeCell<u64>);

    // SAFETY: 64-bit accesses at system scope; a fence before relaxed stores releases each of them.
    unsafe impl Word for DeviceWord {
        fn new(value: u64) -> Self {
            Self(UnsafeCell::new(value))
        }
        fn load(&self) -> u64 {
            let value;
            // SAFETY: loads the live word.
            unsafe { asm!("ld.relaxed.sys.u64 {}, [{}];", out(reg64) value, in(reg64) self.0.get(), options(nostack)) };
            value
        }
        fn load_acquire(&self) -> u64 {
            let value;
            // SAFETY: loads the live word, and accesses nothing else.
            unsafe { asm!("ld.acquire.sys.u64 {}, [{}];", out(reg64) value, in(reg64) self.0.get(), options(nostack)) };
            value
        }
        fn store(&self, value: u64) {
            // SAFETY: stores the live word.
            unsafe { asm!("st.relaxed.sys.u64 [{}], {};", in(reg64) self.0.get(), in(reg64) value, options(nostack)) };
        }
        fn store_release(&self, value: u64) {
            // SAFETY: stores the live word; it lies in an `UnsafeCell`, so a store through `&self` is allowed.
            unsafe { asm!("st.release.sys.u64 [{}], {};", in(reg64) self.0.get(), in(reg64) value, options(nostack)) };
        }
        fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
            // SAFETY: a fence.
            unsafe { asm!("fence.acq_rel.sys;", options(nostack)) };
            // By index: LLVM 23 moves an array that is iterated by value through local memory.
            #[allow(clippy::needless_range_loop)]
            for place in 0..N {
                let (word, value) = words[place];
                word.store(value);
            }
        }
    }

    pub fn group() -> u64 {
        let group: u32;
        // SAFETY: reads a special register.
        unsafe { asm!("mov.u32 {}, %ctaid.x;", out(reg32) group, options(pure, nomem, nostack)) };
        u64::from(group)
    }
    pub fn groups() -> u64 {
        let groups: u32;
        // SAFETY: reads a special register.
        unsafe { asm!("mov.u32 {}, %nctaid.x;", out(reg32) groups, options(pure, nomem, nostack)) };
        u64::from(groups)
    }
    pub const unsafe fn remember(_control: u64, _epoch: u32, _groups: u64) {}

    #[cfg(feature = "entries")]
    mod entries {
        use ringmem_layouts::kernel::DevicePointer;

        use super::super::{Device, Warp};
        use crate::{ABI, Launch, echo, histogram, persistent};

        /// Hash of this image's layouts, compared by the host.
        #[unsafe(no_mangle)]
        #[used]
        static RINGMEM_ABI: u64 = ABI.hash;

        /// The kernel `echo`.
        ///
        /// # Safety
        ///
        /// As [`crate::persistent`], of one warp per block.
        #[cuda_std::kernel]
        pub unsafe fn echo(controls: u64, epoch: u64, idle_ns: u64, batch: u64) {
            let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, abi: ABI.hash };
            // SAFETY: the launcher promises that control block, rings and telemetry are live until this returns, accessed by their protocols only, with one
            // host side and no other kernel. It launches one warp per block, every lane of which calls this once with an equal `launch`. The `Warp` is the
            // kernel's only one.
            unsafe { persistent(&Device, &Warp::new(), &launch, &mut echo::Handle::<true>) }
        }

        /// The kernel `histogram`.
        ///
        /// # Safety
        ///
        /// As [`crate::histogram::histogram`], of one warp per block.
        #[cuda_std::kernel]
        pub unsafe fn histogram(controls: u64, epoch: u64, idle_ns: u64, batch: u64, data: u64, length: u64, work: u64) {
            let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, abi: ABI.hash };
            // SAFETY: the launcher promises that control block, rings and telemetry are live until this returns, accessed by their protocols only, with one
            // host side and no other kernel. Data and work are live, too; nothing else accesses the zeroed work, or writes a chunk between its message and its
            // answer. It launches one warp per block, every lane of which calls this once with an equal `launch`. The `Warp` is the kernel's only one.
            unsafe { histogram::histogram(&Device, &Warp::new(), &launch, DevicePointer::new(data), length, DevicePointer::new(work)) }
        }
    }
}
