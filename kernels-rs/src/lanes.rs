//! [`Lanes`]: the threads that run one kernel function together.

/// A warp, or one thread that is its own warp.
///
/// Every lane calls every method, in the same order; the methods say what they order.
pub trait Lanes {
    /// How many lanes there are.
    const WIDTH: u32;

    /// Which one this is, below `WIDTH`. Lane 0 is the one that talks to shared words.
    fn lane(&self) -> u32;
    /// Which group of lanes this is: the block.
    fn group(&self) -> u64;
    /// How many groups the launch has.
    fn groups(&self) -> u64;
    /// Lane 0's value, in every lane. Orders nothing: a [`barrier`](Self::barrier) comes after it.
    fn broadcast(&self, value: u64) -> u64;
    /// The sum over all lanes, wrapping, in every lane.
    fn sum(&self, value: u64) -> u64;
    /// Bit `i` is lane `i`'s answer; 0 for a lane that has left.
    fn ballot(&self, answer: bool) -> u32;
    /// What any lane wrote before it, every lane sees after it.
    fn barrier(&self);
    /// A wait's next step, with how many came before it in a row.
    fn pause(&self, times: u32);
    /// A clock that never goes back, nanoseconds.
    fn now_ns(&self) -> u64;
    /// Tells a panic handler which control block to write to, 0 for none, and for which launch. Lane 0 calls it.
    fn remember(&self, control: u64, epoch: u32);
}

/// How long a lane sleeps before it looks again, nanoseconds, after so many looks in vain in a row: not at first, then little, then a microsecond
/// and never longer, so that a message that arrives waits for a sleeper no longer than that.
#[must_use]
pub const fn back_off_ns(times: u32) -> u32 {
    match times {
        0..32 => 0,
        32..1024 => 64,
        _ => LONGEST_NAP_NS,
    }
}

/// The most that [`back_off_ns`] says.
pub const LONGEST_NAP_NS: u32 = 1000;
