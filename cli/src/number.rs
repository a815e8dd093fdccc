use std::fmt::Display;
use std::ops::RangeInclusive;

/// Returns the parser of an option that takes a whole number.
pub(super) fn whole<T: TryFrom<i128>>(range: RangeInclusive<i128>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let (least, most) = (range.start(), range.end());
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("expected a whole number from {least} to {most}, in decimal digits"));
        }
        let outside = |number: &dyn Display| format!("{number} is not in {least}..={most}");
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| outside(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn whole_numbers_are_in_their_range() {
        let parse = whole::<u64>(1..=600);
        assert_eq!(["1", "+7", "600"].map(&parse), [Ok(1), Ok(7), Ok(600)]);
        for text in ["0", "-1", "601", "99999999999999999999999999999999999999999999"] {
            assert_eq!(parse(text), Err(format!("{text} is not in 1..=600")));
        }
        for text in ["", "-", "1e2", "0.2", "abc", "0x10", "1_0", " 1", "\u{661}"] {
            assert_eq!(parse(text), Err("expected a whole number from 1 to 600, in decimal digits".to_owned()), "{text}");
        }
    }
}
