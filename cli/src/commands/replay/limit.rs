//! Limits as texts that `--limit` accepts: in the largest unit below the size, with two decimals, as sizes are shown. A size is shown rounded to the nearest
//! hundredth, which as a limit may be too little for an allocator, or more than a device has.

use super::DEVICE;
use crate::{Failure, size};

/// A limit that suffices, rounded up. All its bytes if the rounded limit does not suffice, as a larger one need not, or is more than a device has.
pub(super) fn sufficient(bytes: u64, suffices: impl FnOnce(u64) -> Result<bool, Failure>) -> Result<String, Failure> {
    let rounded = up(bytes);
    let is_sufficient = match size::parse(&rounded) {
        Ok(limit) if limit <= DEVICE => suffices(limit)?,
        _ => false,
    };
    Ok(if is_sufficient { rounded } else { exact(bytes) })
}

/// Rounded up: as a limit, the text is at least `bytes`.
fn up(bytes: u64) -> String {
    text(bytes, u128::div_ceil)
}

/// Rounded down: as a limit, the text is at most `bytes`.
pub(super) fn down(bytes: u64) -> String {
    text(bytes, |dividend, divisor| dividend / divisor)
}

/// All bytes.
fn exact(bytes: u64) -> String {
    format!("{bytes} B")
}

fn text(bytes: u64, divide: impl FnOnce(u128, u128) -> u128) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, name)) = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0) else { return exact(bytes) };
    let hundredths = divide(u128::from(bytes) * 100, 1 << shift);
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, part) => format!("{whole}.{part:02} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::parse;

    #[test]
    fn a_rounded_limit_that_does_not_suffice_is_not_printed() {
        let least = 4_794_089_472;
        let printed = |bytes, enough: &dyn Fn(u64) -> bool| sufficient(bytes, |limit| Ok(enough(limit))).expect("no run fails");
        assert_eq!(printed(least, &|limit| limit >= least), "4.47 GiB");
        assert_eq!(printed(least, &|limit| limit == least), "4794089472 B");
        assert_eq!(printed(DEVICE - 1, &|_| true), "1024 GiB");
        assert_eq!(printed(DEVICE + 1, &|_| true), "1099511627777 B", "no device has 1.01 TiB");
    }

    #[test]
    fn a_limit_parsed_again_is_on_the_side_to_which_it_was_rounded() {
        for (bytes, above, below) in [
            (1, "1 B", "1 B"),
            (1023, "1023 B", "1023 B"),
            (1024, "1 KiB", "1 KiB"),
            (1025, "1.01 KiB", "1 KiB"),
            ((1 << 20) - 1, "1024 KiB", "1023.99 KiB"),
            (133 << 20, "133 MiB", "133 MiB"),
            (4_794_089_472, "4.47 GiB", "4.46 GiB"),
            (1 << 40, "1 TiB", "1 TiB"),
            (u64::MAX - (1 << 40), "16777215 TiB", "16777214.99 TiB"),
        ] {
            assert_eq!((up(bytes).as_str(), down(bytes).as_str()), (above, below));
        }
        for shift in 0..=6300 {
            // Of all lengths, and neither round nor even.
            let bytes = (u64::MAX >> (shift / 100)) / 3 * 2 / (1 + shift % 100) + 1;
            let [above, below] = [up(bytes), down(bytes)].map(|text| parse(&text).expect("a size"));
            assert!(below <= bytes && bytes <= above, "{below} <= {bytes} <= {above}");
            assert!(above - below <= bytes / 100 + 1, "{below} to {above}");
            assert_eq!(parse(&exact(bytes)), Ok(bytes));
        }
    }
}
