//! [`Lanes`]: the threads that execute one kernel function together.

/// A warp, 32 threads of the host, or one thread that acts as a warp of one lane.
///
/// Every lane calls `broadcast`, `sum`, `ballot` and `barrier`, in the same order. A lane that calls one of them alone waits for the others, or
/// gets an unspecified value.
///
/// # Safety
///
/// The lanes that execute one kernel function together have the numbers 0 to [`WIDTH`](Self::WIDTH) - 1, each once, and
/// [`lane`](Self::lane) always returns the same number: [`Each`](crate::Each) gives a slot to a lane by it. No lane returns from
/// [`barrier`](Self::barrier) before every lane that has not exited has called it; what they wrote before is then visible to all.
pub unsafe trait Lanes {
    /// The number of lanes: 32 on a GPU, 1 on the host, where one thread acts as the warp. A kernel that writes one element per lane writes 32 on
    /// a GPU and 1 on the host: let each lane loop over its elements in steps of `WIDTH`. A simulated device that is built with
    /// `thread_per_lane` has 32 there, too.
    const WIDTH: u32;

    /// Returns the index of this lane. Only lane 0 accesses shared words.
    fn lane(&self) -> u32;
    /// Returns the index of this group (block).
    fn group(&self) -> u64;
    /// Returns the number of groups of the launch.
    fn groups(&self) -> u64;
    /// Returns lane 0's value in every lane; orders no memory access. After the end of lane 0 the value is unspecified, or a panic.
    fn broadcast(&self, value: u64) -> u64;
    /// Returns the wrapping sum over all lanes.
    fn sum(&self, value: u64) -> u64;
    /// Returns lane `i`'s answer in bit `i`; 0 if exited.
    fn ballot(&self, answer: bool) -> u32;
    /// Waits for all lanes; makes their earlier writes visible.
    fn barrier(&self);
    /// Pauses between two polls, after `times` consecutive pauses.
    fn pause(&self, times: u32);
    /// Returns a monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Sets what a panic of this group changes: the state in a control block, at this launch, and the counters
    /// [`Groups`](ringmem_layouts::ring::groups::Groups); 0 for none. For lane 0.
    fn remember(&self, control: u64, epoch: u32, groups: u64);
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
