//! [`Image`]: kernels as PTX for a device and as host functions for a host backend.
//!
//! `ringmem_kernels::kernels!` creates them; `ringmem::stream::Module` loads them.

use core::ptr::NonNull;

use crate::{LayoutDescriptor, set_hash};

/// The layouts that one side was compiled with.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Abi, LAYOUTS, SharedLayout, layout_set};
///
/// #[derive(SharedLayout)]
/// #[repr(C)]
/// struct Sample { time: u64 }
///
/// const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Sample));
/// assert_ne!(ABI.hash, Abi::of(LAYOUTS).hash);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// The layouts, in any order.
    pub layouts: &'static [LayoutDescriptor],
    /// The [`set_hash`] of the layouts; that of `kernels!` covers the parameters of kernels over buffers, and which kernels are `grouped fn` or `block fn`,
    /// too.
    pub hash: u64,
}

impl Abi {
    /// Returns the ABI of a set of layouts.
    #[must_use]
    pub const fn of(layouts: &'static [LayoutDescriptor]) -> Self {
        Self { layouts, hash: set_hash(layouts) }
    }
}

/// The kernels that a backend loads.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::image::{Entry, Image, KernelHost};
/// use ringmem::{Abi, LAYOUTS};
///
/// fn spin(host: &dyn KernelHost, _arguments: &[u64]) {
///     (0..8).for_each(|times| host.pause(times));
/// }
///
/// const IMAGE: Image = Image {
///     ptx: b".version 8.0 ...", // the same kernel
///     host: &[Entry { name: "spin", arguments: 0, run: spin }],
///     abi: Abi::of(LAYOUTS),
/// };
/// assert_eq!(IMAGE.abi.hash, ringmem::set_hash(LAYOUTS));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// PTX text, with the ABI hash in the symbol `RINGMEM_ABI`.
    pub ptx: &'static [u8],
    /// The kernels for a host backend.
    pub host: &'static [Entry],
    /// The layouts of both.
    pub abi: Abi,
}

/// A kernel that runs on a host thread.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::image::{Entry, KernelHost};
/// # use core::ptr::NonNull;
/// # struct Process;
/// # impl KernelHost for Process {
/// #     fn translate(&self, address: u64, _bytes: u64) -> Option<NonNull<u8>> { NonNull::new(address as *mut u8) }
/// #     fn now_ns(&self) -> u64 { 0 }
/// #     fn pause(&self, _times: u32) {}
/// # }
///
/// unsafe fn increment(host: &dyn KernelHost, arguments: &[u64]) {
///     let word = host.translate(arguments[0], 8).expect("mapped memory").cast::<u64>();
///     // SAFETY: the caller promises that the argument names a live word, which nothing else accesses.
///     unsafe { *word.as_ptr() += 1 };
/// }
///
/// let entry = Entry { name: "increment", arguments: 1, run: increment };
/// let mut word = 7_u64;
/// // SAFETY: one argument, which names a word that nothing else accesses.
/// unsafe { (entry.run)(&Process, &[&raw mut word as u64]) };
/// assert_eq!(word, 8);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The kernel's name in the PTX.
    pub name: &'static str,
    /// Number of arguments in words: integers, device addresses, and values of kernels over buffers.
    pub arguments: usize,
    /// The kernel.
    ///
    /// # Safety
    ///
    /// The caller passes `arguments` arguments. Until the call returns, the memory that they name is live and shared by the kernel's protocol. If the host
    /// [has lanes](KernelHost::on_each_lane), there is one for each number below [`lanes`](KernelHost::lanes), whose [`lane`](KernelHost::lane) does not
    /// change, and [`all_gather`](KernelHost::all_gather) waits for the others and orders memory as documented. They are [`LANES`] unless the launch is of
    /// several warps, for a kernel that takes them.
    pub run: unsafe fn(&dyn KernelHost, &[u64]),
}

/// A backend's services for a kernel on a host thread.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::ptr::NonNull;
/// use ringmem::image::KernelHost;
/// use std::time::Instant;
///
/// /// A backend whose device addresses are host addresses.
/// struct Process(Instant);
///
/// impl KernelHost for Process {
///     fn translate(&self, address: u64, _bytes: u64) -> Option<NonNull<u8>> {
///         NonNull::new(address as *mut u8)
///     }
///     fn now_ns(&self) -> u64 {
///         self.0.elapsed().as_nanos() as u64
///     }
///     fn pause(&self, times: u32) {
///         if times < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
///     }
/// }
///
/// let host = Process(Instant::now());
/// assert_eq!((host.group(), host.groups(), host.translate(0, 8)), (0, 1, None));
/// ```
pub trait KernelHost: Sync {
    /// Returns the host address of `bytes` mapped bytes at a device address.
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>>;
    /// Returns a monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Returns the index of this group (block).
    fn group(&self) -> u64 {
        0
    }
    /// Returns the number of groups.
    fn groups(&self) -> u64 {
        1
    }
    /// Pauses in a wait, after `times` pauses.
    fn pause(&self, times: u32);

    /// Calls a kernel once for each lane of a group, on a thread each at the same time, with a host of this [`lane`](Self::lane), and returns true when all
    /// lanes have ended. A panic of a lane is a panic of this call. Without threads for all lanes, no lane is called, and the launch fails.
    ///
    /// Returns false, and calls nothing, if one thread is the whole group: the default, which a lane's host has, too.
    fn on_each_lane(&self, kernel: &(dyn Fn(&dyn KernelHost) + Sync)) -> bool {
        let _ = kernel;
        false
    }
    /// Returns the index of this lane.
    fn lane(&self) -> u32 {
        0
    }
    /// Returns the number of lanes of the group: [`LANES`] for each warp, or 1.
    fn lanes(&self) -> u32 {
        1
    }
    /// Waits until every lane of the group has called this or ended, and passes the number of each lane and its value to `each`, in order; `None` for those
    /// that have ended. `each` must not call a method of the host: the other lanes may be locked out meanwhile. What a lane wrote before its call, or its end,
    /// is visible to all afterwards.
    fn all_gather(&self, value: u64, each: &mut dyn FnMut(u32, Option<u64>)) {
        each(0, Some(value));
    }
}

/// The lanes of a warp.
pub const LANES: usize = 32;
