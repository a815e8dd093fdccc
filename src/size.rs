//! Sizes as people write and read them, for the packages of this project.

use std::borrow::ToOwned;
use std::format;
use std::string::String;

const FORM: &str = "a size is a number in decimal digits, then a unit such as KiB, MiB or GiB";

/// `K` and `KiB` are 1024, `KB` is 1000, and so on to `T`; case does not matter. A fraction, as sizes are shown with, is rounded down to bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if text.starts_with('-') {
        return Err("a size cannot be negative".to_owned());
    }
    // `1e6`, `1_000`: a number in another notation, not a unit.
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') || unit.contains(|c: char| c.is_ascii_digit() || ".,_".contains(c))
    {
        return Err(FORM.to_owned());
    }
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("unknown unit `{unit}`: use KiB, MiB, GiB or TiB")),
    };
    // A byte of the largest unit is more than its twelfth digit.
    let part = format!("{fraction:0<15}").get(..15).and_then(|digits| digits.parse::<u128>().ok()).unwrap_or(0);
    if part > 0 && factor == 1 {
        return Err("a size is a whole number of bytes".to_owned());
    }
    let more = u64::try_from(part * u128::from(factor) / 10_u128.pow(15)).ok();
    let bytes = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(factor)?.checked_add(more?));
    match bytes {
        None => Err("the size does not fit 64 bits".to_owned()),
        Some(0) => Err("the size cannot be zero".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

/// In the largest unit below the size, with two decimals: `4 MiB`, `1.50 KiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 { format!("{value:.0} {}", UNITS[unit]) } else { format!("{value:.2} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::{parse, show};

    #[test]
    fn sizes_parse_with_common_units() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("4MiB", 4 << 20),
            ("4m", 4 << 20),
            ("2 GiB", 2 << 30),
            ("3KB", 3000),
            ("1T", 1 << 40),
            ("1.5 MiB", 3 << 19),
            ("22.23GiB", 23_869_280_747),
            ("0.5KiB", 512),
            ("7.0", 7),
            ("1.000000000000001000TB", 1_000_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "0MiB",
            "-1",
            "MiB",
            "1.5",
            "1.5B",
            "1.M",
            ".5M",
            "1.2.3M",
            "1,5M",
            "1X",
            "17179869184G",
            "0.0000000000009T",
            "99999999999999999999",
            "17000000T",
            "1 2",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_a_fitting_unit() {
        assert_eq!(
            (show(0), show(1023), show(4 << 20), show(1536)),
            ("0 bytes".into(), "1023 bytes".into(), "4 MiB".into(), "1.50 KiB".into())
        );
    }
}
