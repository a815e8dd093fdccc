use std::io::{self, Write};

const COLUMNS: usize = 64;
const MARGIN: usize = 3;
const ROWS: usize = 8;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws bars for 256 counts, four values per column; fewer on a narrower terminal, to fit a width of 11 characters or more.
/// The tallest column has full height; nonzero counts are visible.
pub(super) fn draw(histogram: &[u64; 256], width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let room = width.map_or(COLUMNS, |width| width.saturating_sub(MARGIN));
    let count = [COLUMNS, COLUMNS / 2, COLUMNS / 4].into_iter().find(|&count| count <= room).unwrap_or(COLUMNS / 8);
    let mut columns = vec![0_u64; count];
    for (value, &more) in histogram.iter().enumerate() {
        let column = &mut columns[value * count / 256];
        *column = column.saturating_add(more);
    }
    let tallest = columns.iter().copied().max().unwrap_or(0).max(1);
    let eighths = columns.iter().map(|&count| {
        let height = u128::from(count) * (ROWS * 8) as u128 / u128::from(tallest);
        if count > 0 { (height as usize).max(1) } else { 0 }
    });
    let eighths: Vec<usize> = eighths.collect();
    for row in (0..ROWS).rev() {
        let line: String = eighths.iter().map(|&height| EIGHTHS[height.saturating_sub(row * 8).min(8)]).collect();
        writeln!(out, "  |{}", line.trim_end())?;
    }
    writeln!(out, "  +{}", "-".repeat(count))?;
    match count / 4 {
        ..4 => writeln!(out, "   00{:1$}ff", "", count - 4),
        quarter => writeln!(out, "   00{0:1$}40{0:1$}80{0:1$}c0{0:2$}ff", "", quarter - 2, quarter - 4),
    }
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
    fn counts_with_an_overflowing_sum_are_drawn() {
        let mut histogram = [0; 256];
        (histogram[0], histogram[1]) = (u64::MAX, u64::MAX);
        assert!((entropy(&histogram) - 1.0).abs() < 1e-12);
        let mut picture = Vec::new();
        draw(&histogram, None, &mut picture).unwrap();
        assert!(picture.starts_with("  |█\n".as_bytes()));
    }

    #[test]
    fn the_tallest_column_fills_the_height() {
        let mut histogram = [0; 256];
        histogram[0] = 1_000_000;
        histogram[255] = 1;
        let mut picture = Vec::new();
        draw(&histogram, None, &mut picture).unwrap();
        let picture = String::from_utf8(picture).unwrap();
        let lines: Vec<&str> = picture.lines().collect();
        assert_eq!(lines.len(), 10);
        assert!(lines[0].starts_with("  |█"));
        assert!(lines[7].starts_with("  |█") && lines[7].ends_with('▁'));
    }

    #[test]
    fn the_picture_fits_narrow_terminals() {
        for width in 11..80 {
            let mut picture = Vec::new();
            draw(&[1; 256], Some(width), &mut picture).unwrap();
            let picture = String::from_utf8(picture).unwrap();
            let lines: Vec<usize> = picture.lines().map(|line| line.chars().count()).collect();
            assert!(lines.len() == 10 && lines.iter().all(|&line| line == lines[0] && line <= width), "{width}:\n{picture}");
        }
    }
}
