//! The hybrid logical clock in one word: 52 bits of microseconds above 12 bits of counter.
//!
//! Source: Kulkarni et al., "Logical Physical Clocks" (2014), with the counter below the time so that one comparison orders two
//! stamps and a full counter carries into the time instead of repeating a stamp.

/// Bits of the counter.
pub const COUNTER_BITS: u32 = 12;

/// The stamp after `last` at `now_us` microseconds: always greater than `last`, and not behind the time.
///
/// ```
/// use ringmem_layouts::clock::tick;
/// let first = tick(0, 5);
/// assert!(tick(first, 5) > first);
/// assert!(tick(first, 3) > first, "a clock that steps back does not");
/// ```
#[must_use]
pub const fn tick(last: u64, now_us: u64) -> u64 {
    let physical = now_us << COUNTER_BITS;
    let logical = last.wrapping_add(1);
    if physical > logical { physical } else { logical }
}
