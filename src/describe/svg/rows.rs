use std::ops::Range;

pub(super) const ROW: usize = 8;

/// In pixels.
const SHOWN: usize = 34;
const MARK: usize = 22;
const MOST: usize = 4;

/// In pixels.
pub(super) enum Row {
    Shown { index: usize, top: usize },
    LeftOut { rows: Range<usize>, top: usize },
}

pub(super) struct Rows {
    count: usize,
    /// In order, none touching another.
    left_out: Vec<Range<usize>>,
}

impl Rows {
    pub fn new(size: usize, fields: impl Iterator<Item = Range<usize>>) -> Self {
        let whole = |field: Range<usize>| field.start.div_ceil(ROW)..field.end / ROW;
        let left_out = fields.map(whole).filter(|rows| rows.len() > MOST).map(|rows| rows.start + 1..rows.end - 1).collect();
        Self { count: size.div_ceil(ROW), left_out }
    }

    pub fn height(&self) -> usize {
        self.top(self.count)
    }

    /// Of the mark, if the row is omitted.
    pub fn top(&self, row: usize) -> usize {
        let mut top = row * SHOWN;
        for rows in self.left_out.iter().take_while(|rows| rows.start < row) {
            top -= (row.min(rows.end) - rows.start) * SHOWN;
            top += if rows.end <= row { MARK } else { 0 };
        }
        top
    }

    pub fn iter(&self) -> impl Iterator<Item = Row> {
        let mut next = 0;
        let mut left_out = self.left_out.iter();
        let mut gap = left_out.next();
        std::iter::from_fn(move || {
            let top = self.top(next);
            if let Some(rows) = gap.filter(|rows| rows.start == next) {
                (next, gap) = (rows.end, left_out.next());
                return Some(Row::LeftOut { rows: rows.clone(), top });
            }
            let index = next;
            next += 1;
            (index < self.count).then_some(Row::Shown { index, top })
        })
    }

    pub fn lines(&self, length: usize) -> Vec<(usize, Range<usize>)> {
        let mut lines: Vec<(usize, Range<usize>)> = Vec::new();
        for row in self.iter() {
            let Row::Shown { index, top } = row else { continue };
            let line = index / length;
            match lines.last_mut() {
                Some((last, tops)) if *last == line && tops.end == top => tops.end = top + SHOWN,
                _ => lines.push((line, top..top + SHOWN)),
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    #[test]
    fn inner_rows_of_a_long_field_become_one_mark() {
        let rows = Rows::new(136, [0..8, 8..24, 24..128, 128..136].into_iter());
        let shown: Vec<(usize, usize)> = rows
            .iter()
            .map(|row| match row {
                Row::Shown { index, top } => (index, top),
                Row::LeftOut { rows, top } => {
                    assert_eq!((rows, top), (4..15, 4 * SHOWN));
                    (usize::MAX, top)
                }
            })
            .collect();
        let tops = [0, 1, 2, 3].map(|row| (row, row * SHOWN));
        assert_eq!(shown[..4], tops);
        assert_eq!(shown[4..], [(usize::MAX, 4 * SHOWN), (15, 4 * SHOWN + MARK), (16, 5 * SHOWN + MARK)]);
        assert_eq!(rows.height(), 6 * SHOWN + MARK);
        assert_eq!(rows.lines(8), [(0, 0..4 * SHOWN), (1, 4 * SHOWN + MARK..5 * SHOWN + MARK), (2, 5 * SHOWN + MARK..6 * SHOWN + MARK)]);
    }

    #[test]
    fn a_field_of_few_rows_is_shown_whole() {
        assert_eq!(Rows::new(32, once(0..32)).height(), 4 * SHOWN);
        assert_eq!(Rows::new(40, once(0..40)).height(), 2 * SHOWN + MARK);
        assert_eq!(Rows::new(48, once(4..44)).height(), 6 * SHOWN);
        assert_eq!(Rows::new(3, once(0..3)).height(), SHOWN);
    }
}
