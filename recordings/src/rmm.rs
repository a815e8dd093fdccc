//! Logs of RMM's `logging_resource_adaptor`: a line of columns, and a line for each call.
//!
//! Columns come in any order. A log that rotated, or several in one file, have the columns again between the lines. `allocate failure` is a refused request.

use std::num::NonZeroU64;

use crate::stacks::{StackId, Stacks};
use crate::{Builder, Format, Raw, ReadError, Recording};

const COLUMNS: [&str; 4] = ["Action", "Pointer", "Size", "Stream"];

pub(crate) fn is_header(line: &str) -> bool {
    let columns: Vec<&str> = line.trim_end().split(',').map(str::trim).collect();
    COLUMNS.iter().all(|column| columns.contains(column))
}

/// Where the columns are.
struct Order {
    count: usize,
    places: [usize; 4],
    time: Option<usize>,
}

impl Order {
    fn of(header: &str) -> Self {
        let columns: Vec<&str> = header.trim_end().split(',').map(str::trim).collect();
        let place = |column: &str| columns.iter().position(|&name| name == column);
        Self { count: columns.len(), places: COLUMNS.map(|column| place(column).unwrap_or(usize::MAX)), time: place("Time") }
    }
}

pub(crate) fn read(text: &str) -> Result<Recording, ReadError> {
    let mut order = Order::of("");
    let mut builder = Builder::default();
    for (line, row) in (1..).zip(text.lines()) {
        if row.trim().is_empty() {
            continue;
        }
        if is_header(row) {
            order = Order::of(row);
            continue;
        }
        let fields: Vec<&str> = row.split(',').map(str::trim).collect();
        if fields.len() != order.count {
            return Err(ReadError::line(line, format!("{} fields, expected {}", fields.len(), order.count)));
        }
        let [action, pointer, size, stream] = order.places.map(|place| fields.get(place).copied().unwrap_or_default());
        let number = |column: &str, text: &str| {
            let number = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None if text == "(nil)" => Some(0),
                None => text.parse().ok(),
            };
            number.ok_or_else(|| ReadError::line(line, format!("`{column}` is `{text}`, expected a number")))
        };
        let time_ns = order.time.and_then(|place| time(fields.get(place)?));
        let raw = |address| {
            let (size, stream) = (number("Size", size)?, number("Stream", stream)?);
            Ok::<_, ReadError>(Raw { address, size, stream, stack: StackId::default(), time_ns })
        };
        match action {
            "allocate" => builder.alloc(&raw(number("Pointer", pointer)?)?),
            "free" | "deallocate" => builder.free(&raw(number("Pointer", pointer)?)?),
            // It has no pointer.
            "allocate failure" => builder.refused(&raw(0)?),
            _ => {
                let what = format!("`Action` is `{action}`, expected `allocate`, `allocate failure` or `free`");
                return Err(ReadError::line(line, what));
            }
        }
    }
    if !text.ends_with('\n') {
        // A number may lack its last digits.
        return Err(ReadError::line(text.lines().count(), "no line end: the log is truncated"));
    }
    Ok(Recording { format: Format::Rmm, devices: vec![builder.finish()], stacks: Stacks::default() })
}

/// `HH:MM:SS:micros` or `HH:MM:SS.micros`, and perhaps a date before it.
fn time(text: &str) -> Option<NonZeroU64> {
    let clock = text.rsplit([' ', 'T']).next()?;
    let mut parts = clock.split([':', '.']);
    let mut part = || parts.next()?.parse::<u64>().ok().filter(|&part| part < 1_000_000);
    let (hours, minutes, seconds) = (part()?, part()?, part()?);
    NonZeroU64::new((((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + part().unwrap_or(0)) * 1000)
}
