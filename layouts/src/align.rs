//! Alignments in bytes: powers of two. For other values the functions return `None` or `false`.

/// A cache line on most hosts.
pub const LINE: u64 = 64;
/// Two lines of a host, fetched in pairs, or one line of a GPU.
pub const LINES: u64 = 128;
/// Minimum alignment of device allocations.
pub const DEVICE: u64 = 256;
/// A page on most hosts.
pub const PAGE: u64 = 4096;

/// Returns the smallest multiple of `align` not below `value`, if it fits 64 bits.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::align;
/// assert_eq!(align::align_up(385, align::LINES), Some(512));
/// assert_eq!(align::align_up(u64::MAX, align::PAGE), None);
/// assert_eq!(align::align_up(385, 0), None);
/// ```
#[must_use]
pub const fn align_up(value: u64, align: u64) -> Option<u64> {
    match padding(value, align) {
        Some(padding) => value.checked_add(padding),
        None => None,
    }
}

/// Returns the largest multiple of `align` not above `value`.
#[must_use]
pub const fn align_down(value: u64, align: u64) -> Option<u64> {
    if align.is_power_of_two() { Some(value & !(align - 1)) } else { None }
}

/// Returns whether `value` is a multiple of `align`.
#[must_use]
pub const fn is_aligned(value: u64, align: u64) -> bool {
    align.is_power_of_two() && value & (align - 1) == 0
}

/// Returns the bytes from `value` to the next multiple of `align`, which may exceed 64 bits.
#[must_use]
pub const fn padding(value: u64, align: u64) -> Option<u64> {
    if align.is_power_of_two() { Some(value.wrapping_neg() & (align - 1)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0..10_000_u64, (0..10_000_u64).prop_map(|below| u64::MAX - below), (0..64_u32).prop_map(|bit| 1 << bit)]
    }

    proptest! {
        #[test]
        fn alignment_matches_128_bit_arithmetic(value in values(), bit in 0..64_u32) {
            let (align, wide) = (1_u64 << bit, u128::from(value));
            let up = wide.next_multiple_of(u128::from(align));
            prop_assert_eq!(align_up(value, align), u64::try_from(up).ok());
            prop_assert_eq!(align_down(value, align), Some(value - value % align));
            prop_assert_eq!(is_aligned(value, align), value % align == 0);
            prop_assert_eq!(padding(value, align).map(u128::from), Some(up - wide));
        }

        #[test]
        fn alignments_other_than_powers_of_two_return_none(value in values(), align in values()) {
            prop_assume!(!align.is_power_of_two());
            prop_assert_eq!((align_up(value, align), align_down(value, align), padding(value, align)), (None, None, None));
            prop_assert!(!is_aligned(value, align));
        }
    }

    #[test]
    fn overflow_and_zero_alignment_return_none() {
        assert_eq!((align_up(u64::MAX, 2), align_up(u64::MAX - 1, 2), padding(u64::MAX, 2)), (None, Some(u64::MAX - 1), Some(1)));
        assert_eq!((align_up(0, 0), align_down(0, 0), is_aligned(0, 0), padding(0, 0)), (None, None, false, None));
    }
}
