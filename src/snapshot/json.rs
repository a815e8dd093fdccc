use core::fmt::{self, Display, Formatter};
use core::time::Duration;

use crate::describe::json::list;
use crate::escape::json as quoted;
use crate::manager::{self, BufferStatistics};
use crate::memory::{Call, Event, Leak, Report};
use crate::pool::{PartState, SlabView, Statistics};

pub(super) fn pool(name: &str, time_ns: u64, statistics: &Statistics, slabs: &[SlabView]) -> impl Display {
    fmt::from_fn(move |f| {
        write!(f, r#"{{"name":{},"time_ns":{time_ns},"statistics":{},"slabs":"#, quoted(name), figures(statistics))?;
        list(f, slabs, slab)?;
        f.write_str("}")
    })
}

fn slab(SlabView { number, device_address, bytes, parts }: &SlabView, f: &mut Formatter<'_>) -> fmt::Result {
    let address = or_null(device_address.map(|address| address.get()));
    write!(f, r#"{{"number":{number},"address":{address},"bytes":{bytes},"parts":"#)?;
    list(f, parts, |(offset, bytes, state), f| {
        let state = match state {
            PartState::Live => "live",
            PartState::Cached => "cached",
            PartState::Pending => "pending",
            PartState::Free => "free",
        };
        write!(f, r#"{{"offset":{offset},"bytes":{bytes},"state":"{state}"}}"#)
    })?;
    f.write_str("}")
}

/// By the names of the fields.
macro_rules! object {
    ($f:ident, $value:ident: $first:ident $($field:ident)*) => {{
        write!($f, concat!("{{\"", stringify!($first), "\":{}"), $value.$first)?;
        $(write!($f, concat!(",\"", stringify!($field), "\":{}"), $value.$field)?;)*
        $f.write_str("}")
    }};
}

fn figures(statistics: &Statistics) -> impl Display {
    fmt::from_fn(move |f| {
        object!(f, statistics: hits misses returns live requested_bytes held_bytes reserved_bytes reserved_peak slabs free_bytes
            movable_bytes free_blocks largest_free cached_bytes largest_cached pending memory_allocations memory_frees memory_moves)
    })
}

pub(super) fn sample(pool: &str, time_ns: u64, statistics: &Statistics) -> impl Display {
    fmt::from_fn(move |f| write!(f, r#"{{"pool":{},"time_ns":{time_ns},"statistics":{}}}"#, quoted(pool), figures(statistics)))
}

pub(super) fn tracker(name: &str, report: &Report) -> impl Display {
    fmt::from_fn(move |f| {
        write!(f, r#"{{"name":{},"peak_bytes":{},"leaks":"#, quoted(name), report.peak)?;
        list(f, &report.leaks, leak)?;
        f.write_str("}")
    })
}

fn leak(leak: &Leak, f: &mut Formatter<'_>) -> fmt::Result {
    let Leak { number, name, bytes, align, address, stream, caller, age, backtrace, .. } = leak;
    let (name, stream) = (text_or_null(name.as_ref()), or_null(stream.map(|stream| stream.get())));
    write!(f, r#"{{"number":{number},"name":{name},"bytes":{bytes},"align":{align},"address":{address},"stream":{stream},"#)?;
    let (place, age, backtrace) = (text_or_null(Some(caller)), nanoseconds(*age), text_or_null(backtrace.as_ref()));
    write!(f, r#""place":{place},"age_ns":{age},"backtrace":{backtrace}}}"#)
}

pub(super) fn manager(name: &str, statistics: &manager::Statistics) -> impl Display {
    let manager::Statistics { buffers, used_bytes, peak_bytes, limit_bytes, created, registered, .. } = statistics;
    let manager::Statistics { released, freed, leases, retired, .. } = statistics;
    fmt::from_fn(move |f| {
        write!(f, r#"{{"name":{},"used_bytes":{used_bytes},"peak_bytes":{peak_bytes},"limit_bytes":{limit_bytes},"#, quoted(name))?;
        write!(f, r#""created":{created},"registered":{registered},"released":{released},"freed":{freed},"#)?;
        write!(f, r#""leases":{leases},"retired":{retired},"buffers":"#)?;
        list(f, buffers, buffer)?;
        f.write_str("}")
    })
}

fn buffer(buffer: &BufferStatistics, f: &mut Formatter<'_>) -> fmt::Result {
    let BufferStatistics { name, element, resizes, age, idle, .. } = buffer;
    let (used, capacity, age, idle) = (buffer.used_bytes(), buffer.capacity_bytes(), nanoseconds(*age), nanoseconds(*idle));
    write!(f, r#"{{"name":{},"element":{},"used_bytes":{used},"capacity_bytes":{capacity},"#, quoted(name), quoted(element))?;
    write!(f, r#""resizes":{resizes},"age_ns":{age},"idle_ns":{idle}}}"#)
}

pub(super) fn trace<'a>(name: &str, events: impl Iterator<Item = (&'a Event, Option<&'a Call>)> + Clone) -> impl Display {
    fmt::from_fn(move |f| {
        write!(f, r#"{{"name":{},"events":"#, quoted(name))?;
        list(f, events.clone(), |(each, call), f| event(each, call, f))?;
        f.write_str("}")
    })
}

fn event(event: &Event, call: Option<&Call>, f: &mut Formatter<'_>) -> fmt::Result {
    let time = or_null(call.map(|call| call.time_ns));
    let (kind, block, size, align, on) = match event {
        Event::Free { block, after } => {
            write!(f, r#"{{"kind":"free","time_ns":{time},"block":{block},"after":"#)?;
            list(f, &**after, |stream, f| write!(f, "{stream}"))?;
            return f.write_str("}");
        }
        Event::Alloc { block, size, align, on } => ("alloc", Some(*block), size, align, on),
        Event::Refused { size, align, on } => ("refused", None, size, align, on),
    };
    let (block, stream, address) = (or_null(block), or_null(*on), or_null(call.and_then(|call| call.address)));
    write!(
        f,
        r#"{{"kind":"{kind}","time_ns":{time},"block":{block},"bytes":{size},"align":{align},"stream":{stream},"address":{address},"#
    )?;
    let name = text_or_null(call.and_then(|call| call.name.as_ref()));
    let place = text_or_null(call.and_then(|call| call.caller));
    let backtrace = text_or_null(call.and_then(|call| call.backtrace.as_ref()));
    write!(f, r#""name":{name},"place":{place},"backtrace":{backtrace}}}"#)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn or_null(value: Option<impl Display>) -> impl Display {
    fmt::from_fn(move |f| match &value {
        Some(value) => write!(f, "{value}"),
        None => f.write_str("null"),
    })
}

fn text_or_null(value: Option<impl Display>) -> impl Display {
    or_null(value.map(|value| {
        let text = std::string::ToString::to_string(&value);
        fmt::from_fn(move |f| write!(f, "{}", quoted(&text)))
    }))
}
