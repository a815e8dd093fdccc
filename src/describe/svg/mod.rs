//! A byte map with 64-byte lines at the right. Long fields' inner rows are omitted; tooltips have all facts.

mod colours;
mod rows;

use std::fmt::{self, Display, Formatter};

use ringmem_layouts::{Abi, LayoutDescriptor, Shape};

use crate::escape::xml as text;

use colours::Parties;
use rows::{ROW, Row, Rows};

const BYTE: usize = 76;
const LEFT: usize = 64;
const WIDTH: usize = LEFT + ROW * BYTE + 80;
const TOP: usize = 84;
const BOTTOM: usize = 24;

struct Leaf {
    path: String,
    /// As [`spelled`](super::spelled).
    kind: String,
    writer: &'static str,
    start: usize,
    end: usize,
}

pub(super) fn write(abi: &Abi, f: &mut Formatter<'_>) -> fmt::Result {
    let maps: Vec<Map> = abi.layouts.iter().map(Map::new).collect();
    let height: usize = maps.iter().map(Map::height).sum();
    let names: Vec<&str> = abi.layouts.iter().map(|layout| layout.name).collect();
    writeln!(
        f,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">
<title>Bytes of {}</title>
<style>{}</style>
<rect class="page" width="{WIDTH}" height="{height}"/>"#,
        text(&names.join(", ")),
        colours::STYLE,
    )?;
    let mut top = 0;
    for map in &maps {
        writeln!(f, r#"<g transform="translate(0 {top})">"#)?;
        map.draw(f)?;
        writeln!(f, "</g>")?;
        top += map.height();
    }
    writeln!(f, "</svg>")
}

struct Map<'a> {
    layout: &'a LayoutDescriptor,
    leaves: Vec<Leaf>,
    rows: Rows,
}

impl<'a> Map<'a> {
    fn new(layout: &'a LayoutDescriptor) -> Self {
        let mut leaves = Vec::new();
        take_apart(layout, ("", "", 0), &mut leaves);
        let rows = Rows::new(layout.size, leaves.iter().map(|leaf| leaf.start..leaf.end));
        Self { layout, leaves, rows }
    }

    fn height(&self) -> usize {
        TOP + self.rows.height() + BOTTOM
    }

    fn draw(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let LayoutDescriptor { name, size, align, .. } = self.layout;
        let parties = Parties::new(self.leaves.iter().map(|leaf| leaf.writer));
        writeln!(f, r#"<text class="title" x="{LEFT}" y="28">{}</text>"#, text(name))?;
        let right = LEFT + ROW * BYTE;
        writeln!(f, r#"<text class="muted end" x="{right}" y="28">{size} bytes, aligned to {align}</text>"#)?;
        parties.legend(LEFT, WIDTH, 48, f)?;
        for byte in 0..ROW {
            let x = LEFT + byte * BYTE + BYTE / 2;
            writeln!(f, r#"<text class="muted mid" x="{x}" y="{}">+{byte}</text>"#, TOP - 6)?;
        }
        for leaf in &self.leaves {
            self.field(leaf, &parties, f)?;
        }
        self.gutters(f)
    }

    fn field(&self, leaf: &Leaf, parties: &Parties, f: &mut Formatter<'_>) -> fmt::Result {
        let Leaf { path, kind, writer, start, end } = leaf;
        let bytes = end - start;
        let [by, after_kind] =
            [", written by ", " · "].map(|joint| if writer.is_empty() { String::new() } else { format!("{joint}{writer}") });
        writeln!(
            f,
            r#"<g class="{}"><title>{}: {}, {bytes} bytes at {start}{}</title>"#,
            parties.class(writer),
            text(path),
            text(kind),
            text(&by)
        )?;
        writeln!(f, r#"<path d="{}"/>"#, self.outline(*start, *end))?;
        let (from, to) = widest(*start, *end);
        let (x, width) = (LEFT + from % ROW * BYTE, (to - from) * BYTE);
        let y = TOP + self.rows.top(from / ROW);
        if to - from >= 4 {
            let side = (width * 5 / 8).min(path.chars().count() * 8 + 8);
            label("name", path, (x + 10, y + 21), 13, side, f)?;
            label("kind end", &format!("{kind}{after_kind}"), (x + width - 10, y + 21), 11, width - side - 32, f)?;
        } else {
            let middle = x + width / 2;
            label("name mid", path, (middle, y + 15), 13, width - 8, f)?;
            label("kind mid", kind, (middle, y + 28), 11, width - 8, f)?;
        }
        writeln!(f, "</g>")
    }

    fn outline(&self, start: usize, end: usize) -> impl Display {
        let (first, last) = (start / ROW, (end - 1) / ROW);
        let (from, to) = (LEFT + start % ROW * BYTE, LEFT + ((end - 1) % ROW + 1) * BYTE);
        let (left, right) = (LEFT, LEFT + ROW * BYTE);
        let [top, below] = [first, first + 1].map(|row| TOP + self.rows.top(row));
        let [above, bottom] = [last, last + 1].map(|row| TOP + self.rows.top(row));
        fmt::from_fn(move |f| {
            if first == last {
                write!(f, "M{from} {top}H{to}V{bottom}H{from}Z")
            } else if last == first + 1 && to <= from {
                write!(f, "M{from} {top}H{right}V{below}H{from}Z M{left} {above}H{to}V{bottom}H{left}Z")
            } else {
                write!(f, "M{from} {top}H{right}V{above}H{to}V{bottom}H{left}V{below}H{from}Z")
            }
        })
    }

    fn gutters(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for row in self.rows.iter() {
            match row {
                Row::Shown { index, top } => {
                    let (y, offset) = (TOP + top + 21, index * ROW);
                    let class = if offset % LINE == 0 { "mark end" } else { "muted end" };
                    writeln!(f, r#"<text class="{class}" x="{}" y="{y}">{offset}</text>"#, LEFT - 10)?;
                }
                Row::LeftOut { rows, top } => {
                    let y = TOP + top;
                    let (x, bytes) = (LEFT + ROW * BYTE / 2, rows.len() * ROW);
                    writeln!(f, r#"<text class="muted mid" x="{x}" y="{}">⋮ {bytes} bytes not shown ⋮</text>"#, y + 15)?;
                    writeln!(f, r#"<text class="muted end" x="{}" y="{}">⋮</text>"#, LEFT - 10, y + 15)?;
                }
            }
        }
        if self.layout.size <= LINE {
            return Ok(());
        }
        let x = LEFT + ROW * BYTE + 10;
        writeln!(f, r#"<text class="muted" x="{x}" y="{}">{LINE}-byte</text>"#, TOP - 6)?;
        for (line, tops) in self.rows.lines(LINE / ROW) {
            let (from, to) = (TOP + tops.start + 2, TOP + tops.end - 2);
            writeln!(f, r#"<path class="line" d="M{x} {from}h6V{to}h-6"/>"#)?;
            writeln!(f, r#"<text class="muted" x="{}" y="{}">line {line}</text>"#, x + 12, (from + to) / 2 + 4)?;
        }
        Ok(())
    }
}

const LINE: usize = 64;

/// `outer` is the path, the writer and the start of the field that contains `layout`. A field without a writer has that of the outer one.
fn take_apart(layout: &LayoutDescriptor, outer: (&str, &'static str, usize), leaves: &mut Vec<Leaf>) {
    let (prefix, by, base) = outer;
    for field in layout.fields.iter().filter(|field| field.size > 0) {
        let (path, start) = (format!("{prefix}{}", field.name), base + field.offset);
        let writer = if field.writer.is_empty() { by } else { field.writer };
        if field.layout.shape == Shape::Struct {
            take_apart(field.layout, (&format!("{path}."), writer, start), leaves);
        } else {
            let kind = fmt::from_fn(|f| super::spelled(field.layout, f)).to_string();
            leaves.push(Leaf { path, kind, writer, start, end: start + field.size });
        }
    }
}

/// Within one row, the first of equal ones.
fn widest(start: usize, end: usize) -> (usize, usize) {
    let row_end = |byte: usize| (byte / ROW + 1) * ROW;
    let first = (start, end.min(row_end(start)));
    if end <= first.1 {
        return first;
    }
    let second = (first.1, end.min(row_end(first.1)));
    if second.1 - second.0 > first.1 - first.0 { second } else { first }
}

fn label(class: &str, words: &str, (x, y): (usize, usize), size: usize, width: usize, f: &mut Formatter<'_>) -> fmt::Result {
    // A character's width is 0.6 of its size.
    let length = words.chars().count().max(1);
    let size = size.min((width * 10 / 6 / length).max(9));
    let room = (width * 10 / 6 / size).max(2);
    let shown: String = if length <= room { words.to_owned() } else { words.chars().take(room - 1).chain(['…']).collect() };
    writeln!(f, r#"<text class="{class}" x="{x}" y="{y}" font-size="{size}">{}</text>"#, text(&shown))
}
