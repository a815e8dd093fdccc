//! Logs of RMM's `logging_resource_adaptor`: a line of columns, and a line for each call.
//!
//! Columns come in any order. A log that rotated, or several in one file, have the columns again between the lines. `allocate failure` is a refused request.

use std::num::NonZeroU64;

use crate::stacks::{StackId, Stacks};
use crate::{Builder, Format, Raw, ReadError, Recording};

const COLUMNS: [&str; 4] = ["Action", "Pointer", "Size", "Stream"];

pub(crate) fn is_header(line: &str) -> bool {
    let columns: Vec<&str> = line.split(',').map(|column| unquoted(column.trim())).collect();
    COLUMNS.iter().all(|column| columns.contains(column))
}

/// After a space, the reader of tables leaves quotes as they are.
fn unquoted(field: &str) -> &str {
    field.trim_matches('"')
}

/// Where the columns are.
#[derive(Default)]
struct Order {
    count: usize,
    places: [usize; 4],
    time: Option<usize>,
}

impl Order {
    /// `None` if the row has no columns.
    fn of(row: &csv::StringRecord) -> Option<Self> {
        let place = |column: &str| row.iter().position(|name| unquoted(name) == column);
        let [action, pointer, size, stream] = COLUMNS.map(place);
        Some(Self { count: row.len(), places: [action?, pointer?, size?, stream?], time: place("Time") })
    }
}

pub(crate) fn read(text: &str) -> Result<Recording, ReadError> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let mut order = Order::default();
    let mut builder = Builder::default();
    let mut row = csv::StringRecord::new();
    let fact = |error: csv::Error| ReadError::line(error.position().map_or(0, csv::Position::line), error.to_string());
    while reader.read_record(&mut row).map_err(fact)? {
        let line = row.position().map_or(0, csv::Position::line);
        if let Some(columns) = Order::of(&row) {
            order = columns;
            continue;
        }
        if row.len() != order.count {
            return Err(ReadError::line(line, format!("{} fields, expected {}", row.len(), order.count)));
        }
        let [action, pointer, size, stream] = order.places.map(|place| row.get(place).map_or("", unquoted));
        let number = |column: &str, text: &str| {
            let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None if text == "(nil)" => Some(0),
                None => text.parse().ok(),
            };
            number.ok_or_else(|| ReadError::line(line, format!("`{column}` is `{text}`, expected a number")))
        };
        let time_ns = order.time.and_then(|place| time(unquoted(row.get(place)?)));
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
        return Err(ReadError::line(text.lines().count(), "no line end: the log is truncated; remove this line"));
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
