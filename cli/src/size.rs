const WHOLE: &str = "a size is a whole number in decimal digits, then a unit such as KiB, MiB or GiB";

/// `K` and `KiB` are 1024, `KB` is 1000, and so on to `T`; case does not matter.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(if text.starts_with('-') { "a size cannot be negative".to_owned() } else { WHOLE.to_owned() });
    }
    // `1.5MiB`, `1e6`, `1_000`: a number in another notation, not a unit.
    if unit.contains(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '_')) {
        return Err(WHOLE.to_owned());
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
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    match bytes {
        None => Err("the size does not fit 64 bits".to_owned()),
        Some(0) => Err("the size cannot be zero".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

pub(super) fn show(bytes: u64) -> String {
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
        for (text, bytes) in
            [("1", 1), ("4096", 4096), ("4MiB", 4 << 20), ("4m", 4 << 20), ("2 GiB", 2 << 30), ("3KB", 3000), ("1T", 1 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "0MiB", "-1", "MiB", "1.5M", "1X", "99999999999999999999", "17000000T", "1 2"] {
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
