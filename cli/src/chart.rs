//! Draws a histogram of byte values as text.

use std::io::{self, Write};

const COLUMNS: usize = 64;
const ROWS: usize = 8;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn draw(histogram: &[u64; 256], out: &mut dyn Write) -> io::Result<()> {
    let mut columns = [0_u64; COLUMNS];
    for (value, &count) in histogram.iter().enumerate() {
        let column = &mut columns[value * COLUMNS / 256];
        *column = column.saturating_add(count);
    }
    let tallest = columns.iter().copied().max().unwrap_or(0).max(1);
    let eighths = columns.map(|count| {
        let height = u128::from(count) * (ROWS * 8) as u128 / u128::from(tallest);
        if count > 0 { (height as usize).max(1) } else { 0 }
    });
    for row in (0..ROWS).rev() {
        let line: String = eighths.iter().map(|&height| EIGHTHS[height.saturating_sub(row * 8).min(8)]).collect();
        writeln!(out, "  |{}", line.trim_end())?;
    }
    writeln!(out, "  +{}", "-".repeat(COLUMNS))?;
    writeln!(out, "   00{:14}40{:14}80{:14}c0{:12}ff", "", "", "", "")
}

/// Shannon entropy (1948) in bits per byte: 0 for no bytes or one value, 8 for uniform values.
pub(super) fn entropy(histogram: &[u64; 256]) -> f64 {
    let total: u128 = histogram.iter().copied().map(u128::from).sum();
    let bits: f64 = histogram
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| {
            let share = count as f64 / total as f64;
            -share * share.log2()
        })
        .sum();
    bits.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::{draw, entropy};

    #[test]
    fn entropy_has_its_known_values() {
        let mut histogram = [0; 256];
        assert_eq!(entropy(&histogram), 0.0);
        histogram[7] = 9;
        assert_eq!(entropy(&histogram), 0.0);
        histogram[8] = 9;
        assert!((entropy(&histogram) - 1.0).abs() < 1e-12);
        assert!((entropy(&[3; 256]) - 8.0).abs() < 1e-12);
    }

    #[test]
    fn counts_that_no_sum_holds_are_drawn_and_measured() {
        let mut histogram = [0; 256];
        (histogram[0], histogram[1]) = (u64::MAX, u64::MAX);
        assert!((entropy(&histogram) - 1.0).abs() < 1e-12);
        let mut picture = Vec::new();
        draw(&histogram, &mut picture).unwrap();
        assert!(picture.starts_with("  |█\n".as_bytes()));
    }

    #[test]
    fn the_tallest_column_fills_the_height_and_the_least_is_marked() {
        let mut histogram = [0; 256];
        histogram[0] = 1_000_000;
        histogram[255] = 1;
        let mut picture = Vec::new();
        draw(&histogram, &mut picture).unwrap();
        let picture = String::from_utf8(picture).unwrap();
        let lines: Vec<&str> = picture.lines().collect();
        assert_eq!(lines.len(), 10);
        assert!(lines[0].starts_with("  |█"));
        assert!(lines[7].starts_with("  |█") && lines[7].ends_with('▁'));
    }
}
