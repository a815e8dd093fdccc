use core::fmt::{self, Display, Formatter, Write};
use std::string::ToString;

use crate::escape;
use crate::memory::{Call, Event};

/// Formats a [`Logged`](crate::memory::Logged) memory's calls as comma-separated values (RFC 4180, with `\n` as line end), for spreadsheets and
/// data frames.
///
/// The first line names the columns: `kind`, `time_ns`, `block`, `bytes`, `align`, `stream`, `address`, `name`, `place`, `after`, `backtrace`. Units
/// and meanings are those of an [event](crate::snapshot#format). `after` has stream numbers, separated by spaces. An unknown fact is empty. An
/// apostrophe precedes text that a spreadsheet would evaluate: a cell that begins with `=`, `+`, `-` or `@`.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Logged};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Logged::new(Device::new(&backend, 0));
/// let buffer = Buffer::<f32, _>::new(memory.named("x, \"y\""), 1024)?;
/// let text = ringmem::snapshot::csv(&memory.calls()).to_string();
/// assert!(text.starts_with("kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\nalloc,"));
/// assert!(text.contains(",\"x, \"\"y\"\"\","));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub fn csv(calls: &[Call]) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_str("kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n")?;
        calls.iter().try_for_each(|call| row(call, f))
    })
}

fn row(call: &Call, f: &mut Formatter<'_>) -> fmt::Result {
    let (kind, block, request, after) = match &call.event {
        Event::Alloc { block, size, align, on } => ("alloc", Some(block), Some((size, align, on)), None),
        Event::Refused { size, align, on } => ("refused", None, Some((size, align, on)), None),
        Event::Free { block, after } => ("free", Some(block), None, Some(after)),
    };
    write!(f, "{kind},{},", call.time_ns)?;
    field(f, block)?;
    field(f, request.map(|(size, ..)| size))?;
    field(f, request.map(|(_, align, _)| align))?;
    field(f, request.and_then(|(.., on)| on.as_ref()))?;
    field(f, call.address)?;
    field(f, call.name.as_ref())?;
    field(f, call.caller)?;
    for (place, stream) in after.into_iter().flatten().enumerate() {
        write!(f, "{}{stream}", if place == 0 { "" } else { " " })?;
    }
    f.write_char(',')?;
    if let Some(backtrace) = &call.backtrace {
        write!(f, "{}", escape::csv(&backtrace.to_string()))?;
    }
    f.write_char('\n')
}

fn field(f: &mut Formatter<'_>, value: Option<impl Display>) -> fmt::Result {
    if let Some(value) = value {
        write!(f, "{}", escape::csv(&value.to_string()))?;
    }
    f.write_char(',')
}
