//! [`Lanes`]: the threads that execute one kernel function together. [`WarpLanes`]: those of one warp.

/// A warp, a block of several warps, threads of the host in the place of one of these, or one thread that acts as a warp of one lane.
///
/// Every lane calls `broadcast`, `sum`, `barrier` and `barrier_and`, in the same order. A lane that calls one of them alone waits for the others, or
/// gets an unspecified value.
///
/// # Safety
///
/// The lanes that execute one kernel function together have the numbers 0 to [`width`](Self::width) - 1, each once, and
/// [`lane`](Self::lane) and `width` always return the same numbers: [`Each`](crate::Each) gives a slot to a lane by them. No lane returns from
/// [`barrier`](Self::barrier) or [`barrier_and`](Self::barrier_and) before every lane that has not exited has called it; what they wrote before is then
/// visible to all.
pub unsafe trait Lanes {
    /// Returns the number of lanes: 32 for each warp on a GPU, 1 on the host, where one thread acts as the warp. A kernel that writes one element per lane
    /// writes 32 on a GPU and 1 on the host: let each lane loop over its elements in steps of `width`. A simulated device that is built with
    /// `thread_per_lane` has as many as a GPU.
    fn width(&self) -> u32;
    /// Returns the index of this lane. Only lane 0 accesses indices and control words; each lane accesses its slots.
    fn lane(&self) -> u32;
    /// Returns the index of this group (block).
    fn group(&self) -> u64;
    /// Returns the number of groups of the launch.
    fn groups(&self) -> u64;
    /// Returns lane 0's value in every lane; orders no memory access. After the end of lane 0 the value is unspecified, or a panic.
    fn broadcast(&self, value: u64) -> u64;
    /// Returns the wrapping sum over all lanes; unspecified if one has exited.
    fn sum(&self, value: u64) -> u64;
    /// Waits for all lanes; makes their earlier writes visible.
    fn barrier(&self);
    /// Waits as [`barrier`](Self::barrier). Returns whether all lanes have answered `true`; `false` if one has exited.
    fn barrier_and(&self, answer: bool) -> bool;
    /// Pauses between two polls, after `times` consecutive pauses.
    fn pause(&self, times: u32);
    /// Returns a monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Sets what a panic of this group changes: the state in a control block, at this launch, and the counters
    /// [`Groups`](ringmem_layouts::ring::groups::Groups); 0 for none. For lane 0.
    ///
    /// # Safety
    ///
    /// Until lane 0 calls this again or has exited, what is at an address that is not 0 is live and of this launch, and of its groups only this one stores the
    /// control block's state: a panic stores to both.
    unsafe fn remember(&self, control: u64, epoch: u32, groups: u64);
}

/// The lanes of a single warp, or what acts as one.
///
/// # Safety
///
/// The number of lanes is [`WIDTH`](Self::WIDTH), at most 32.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be more lanes than a warp has",
    note = "a `block fn` runs on several warps: write its handler for `L: Lanes`, or declare a `persistent fn`"
)]
pub unsafe trait WarpLanes: Lanes {
    /// The number of lanes.
    const WIDTH: u32;

    /// Returns lane `i`'s answer in bit `i`; 0 if exited. Every lane calls it, as [`Lanes::broadcast`].
    fn ballot(&self, answer: bool) -> u32;
}

/// Returns the nanoseconds to sleep after `times` empty polls.
#[must_use]
pub const fn back_off_ns(times: u32) -> u32 {
    match times {
        0..32 => 0,
        32..1024 => 64,
        _ => LONGEST_NAP_NS,
    }
}

/// The maximum of [`back_off_ns`].
pub const LONGEST_NAP_NS: u32 = 1000;
