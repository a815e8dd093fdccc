//! Logs of RMM's `logging_resource_adaptor`: a line of columns, and a line for each call.
//!
//! Columns come in any order. A log that rotated, or several in one file, have the columns again between the lines. `allocate failure` is a refused request. An
//! allocation of no bytes, whose pointer is `(nil)`, is no block.
//!
//! A last line without a line end is a call if all of its fields are valid, unless its last field is the action, the pointer or the size: the rest of that may
//! be missing. Of a stream, which RMM writes last, some digits may be missing too: the call is then on another stream.

use std::num::NonZeroU64;

use crate::stacks::{NameId, StackId, Stacks};
use crate::{Builder, Format, Lines, Raw, ReadError, Recording, at};

const COLUMNS: [&str; 4] = ["Action", "Pointer", "Size", "Stream"];

pub(crate) fn is_header(line: &str) -> bool {
    let columns: Vec<&str> = line.split(',').map(|column| unquoted(column.trim())).collect();
    COLUMNS.iter().all(|column| columns.contains(column))
}

/// The fault of a line that has some of the columns.
pub(crate) fn missing_columns(line: &str) -> Option<String> {
    let columns: Vec<&str> = line.split(',').map(|column| unquoted(column.trim())).collect();
    let (found, missing): (Vec<&str>, Vec<&str>) = COLUMNS.into_iter().partition(|column| columns.contains(column));
    (found.len() > 1 && !missing.is_empty()).then(|| format!("the columns of a log of RMM without `{}`", missing.join("` and `")))
}

/// After a space, the reader of tables leaves quotes as they are.
fn unquoted(field: &str) -> &str {
    field.trim_matches('"')
}

/// Where the columns are.
#[derive(Default)]
struct Order {
    names: Vec<String>,
    places: [usize; 4],
    time: Option<usize>,
}

impl Order {
    /// `None` if the row has no columns.
    fn of(row: &csv::StringRecord) -> Option<Self> {
        let place = |column: &str| row.iter().position(|name| unquoted(name) == column);
        let [action, pointer, size, stream] = COLUMNS.map(place);
        let names = row.iter().map(|name| unquoted(name).to_owned()).collect();
        Some(Self { names, places: [action?, pointer?, size?, stream?], time: place("Time") })
    }

    /// Whether the last field of a line may lack its end, and still be valid with another meaning.
    fn ends_in_a_fact(&self) -> bool {
        let [facts @ .., _] = self.places;
        facts.iter().any(|place| place + 1 == self.names.len())
    }
}

pub(crate) fn read(text: &str) -> Result<Recording, ReadError> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let mut order = Order::default();
    let mut builder = Builder::default();
    let mut clock = Clock::default();
    let mut row = csv::StringRecord::new();
    let mut lines = Lines::default();
    let unended = (!text.ends_with('\n')).then(|| text.lines().count() as u64);
    while reader.read_record(&mut row).map_err(|error| ReadError::line(lines.of(text, error.position()), error.to_string()))? {
        let line = lines.of(text, row.position());
        let fault = |what: String| {
            let remedy = if Some(line) == unended { "; no line end: the log is truncated, remove this line" } else { "" };
            ReadError::line(line, what + remedy)
        };
        // Of spaces; the reader skips empty ones.
        if row.len() == 1 && row.get(0) == Some("") {
            continue;
        }
        if let Some(columns) = Order::of(&row) {
            order = columns;
            continue;
        }
        if let Some(missing) = order.names.get(row.len()) {
            return Err(fault(format!("{} fields, expected {}: `{missing}` is missing", row.len(), order.names.len())));
        }
        if row.len() > order.names.len() {
            return Err(fault(format!("{} fields, expected {}", row.len(), order.names.len())));
        }
        if Some(line) == unended && order.ends_in_a_fact() {
            let last = order.names.last().map_or("", |name| name);
            return Err(fault(format!("`{last}` may lack its last characters")));
        }
        let [action, pointer, size, stream] = order.places.map(|place| row.get(place).map_or("", unquoted));
        let number = |column: &str, text: &str| {
            let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None if text == "(nil)" => Some(0),
                None => text.parse().ok(),
            };
            number.ok_or_else(|| fault(format!("`{column}` is `{text}`, expected a number")))
        };
        let time_ns = order.time.and_then(|place| clock.read(time(unquoted(row.get(place)?))?));
        let mut raw = |address| {
            let (size, id) = (number("Size", size)?, number("Stream", stream)?);
            // What is neither a block nor a refused request has no stream.
            if size > 0 || address > 0 || action == "allocate failure" {
                builder.stream_named(id, || stream.to_owned());
            }
            Ok::<_, ReadError>(Raw { address, size, stream: id, stack: StackId::default(), name: NameId::default(), time_ns })
        };
        match action {
            "allocate" => {
                let raw = raw(number("Pointer", pointer)?)?;
                builder.alloc(&raw).map_err(fault)?;
            }
            "free" | "deallocate" => {
                let raw = raw(number("Pointer", pointer)?)?;
                builder.free(&raw).map_err(fault)?;
            }
            // It has no pointer.
            "allocate failure" => {
                let raw = raw(0)?;
                builder.refused(&raw, None);
            }
            _ => return Err(fault(format!("`Action` is `{action}`, expected `allocate`, `allocate failure` or `free`"))),
        }
    }
    Ok(Recording { format: Format::Rmm, devices: vec![builder.finish()], stacks: Stacks::default(), left_out: Vec::new() })
}

/// `HH:MM:SS:micros`, `HH:MM:SS.fraction`, or seconds with or without a fraction; before it there may be a date, which is left out.
fn time(text: &str) -> Option<u64> {
    let clock = text.rsplit([' ', 'T']).next()?;
    let (whole, fraction) = match clock.split_once('.') {
        Some(parts) => parts,
        None if clock.matches(':').count() == 3 => clock.rsplit_once(':')?,
        None => (clock, ""),
    };
    let nanos = format!("{fraction:0<9}").get(..9)?.parse::<u64>().ok()?;
    let mut seconds = 0_u64;
    for part in whole.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// The clock of a log, which begins anew at midnight.
#[derive(Default)]
struct Clock {
    last: u64,
    midnights: u64,
}

impl Clock {
    const DAY: u64 = 86_400_000_000_000;

    fn read(&mut self, time: u64) -> Option<NonZeroU64> {
        // Seconds since 1970 are no clock.
        if time >= Self::DAY {
            return Some(at(time));
        }
        let mut all = time.checked_add(self.midnights.checked_mul(Self::DAY)?)?;
        if all.checked_add(Self::DAY / 2)? < self.last {
            self.midnights += 1;
            all = all.checked_add(Self::DAY)?;
        } else if all >= Self::DAY && all > self.last.checked_add(Self::DAY / 24 * 23)? {
            // From before midnight: threads log a little out of order.
            return Some(at(all - Self::DAY));
        }
        self.last = self.last.max(all);
        Some(at(all))
    }
}
