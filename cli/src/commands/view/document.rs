//! [`Document`]: a recording, with the other parts of a snapshot of `ringmem::snapshot`.

use ringmem::snapshot::VERSION;
use ringmem_recordings::{Device, Event, Format, Kind, LeftOut, Recording, StackId, Stacks};
use serde::{Deserialize, Serialize, Serializer};

use super::super::recorded;
use super::head::{Head, LISTS};

/// Only a ringmem snapshot has more than traces and their stacks.
#[derive(Default, Deserialize)]
pub(super) struct Document {
    #[serde(default)]
    pub taken_ns: u64,
    #[serde(default)]
    pub pools: Vec<Pool>,
    #[serde(default)]
    pub samples: Vec<Sample>,
    #[serde(default)]
    pub trackers: Vec<Tracker>,
    #[serde(default)]
    pub managers: Vec<Manager>,
    /// All have a name.
    #[serde(skip)]
    pub traces: Vec<Device>,
    #[serde(skip)]
    pub stacks: Stacks,
    #[serde(skip)]
    pub left_out: Vec<LeftOut>,
    /// Whether blocks are those of PyTorch's allocator.
    #[serde(skip)]
    pub is_pytorch: bool,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Pool {
    pub name: String,
    pub time_ns: Option<u64>,
    pub statistics: Statistics,
    pub slabs: Vec<Slab>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Statistics {
    pub hits: u64,
    pub misses: u64,
    pub live: u64,
    pub requested_bytes: u64,
    pub held_bytes: u64,
    pub reserved_bytes: u64,
    pub reserved_peak: u64,
    pub free_bytes: u64,
    pub largest_free: u64,
    pub cached_bytes: u64,
    pub largest_cached: u64,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Slab {
    pub number: u64,
    #[serde(serialize_with = "as_hex")]
    pub address: Option<u64>,
    pub bytes: u64,
    pub parts: Vec<Part>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Part {
    pub offset: u64,
    pub bytes: u64,
    pub state: State,
}

#[derive(Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Live,
    Cached,
    Pending,
    Free,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Sample {
    pub pool: String,
    pub time_ns: u64,
    pub statistics: Statistics,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Tracker {
    pub name: String,
    pub peak_bytes: u64,
    pub leaks: Vec<Leak>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Leak {
    pub number: u64,
    pub name: Option<String>,
    pub bytes: u64,
    #[serde(serialize_with = "as_hex")]
    pub address: Option<u64>,
    pub stream: Option<u64>,
    pub place: Option<String>,
    pub age_ns: u64,
    pub backtrace: Option<String>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Manager {
    pub name: String,
    pub used_bytes: u64,
    pub peak_bytes: u64,
    pub limit_bytes: u64,
    #[serde(default)]
    pub created: u64,
    #[serde(default)]
    pub registered: u64,
    #[serde(default)]
    pub released: u64,
    #[serde(default)]
    pub freed: u64,
    #[serde(default)]
    pub leases: u64,
    pub buffers: Vec<Buffer>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Buffer {
    pub name: String,
    pub element: String,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub resizes: u64,
    pub age_ns: u64,
    pub idle_ns: u64,
}

/// A block, from its allocation to its free.
pub(super) struct Life<'a> {
    pub begin: usize,
    /// `None` if it was not freed.
    pub end: Option<usize>,
    pub event: &'a Event,
}

/// The blocks of a trace, by number.
pub(super) fn lives(trace: &Device) -> Vec<Life<'_>> {
    let mut lives: Vec<Life<'_>> = Vec::new();
    for (index, event) in trace.events.iter().enumerate() {
        match event.kind {
            Kind::Refused => {}
            Kind::Alloc => lives.push(Life { begin: index, end: None, event }),
            // Of an unknown block, the number is that of none.
            Kind::Free => {
                if let Some(life) = lives.get_mut(event.block as usize) {
                    life.end = Some(index);
                }
            }
        }
    }
    lives
}

/// The time of each event, in nanoseconds, if all have one. Blocks from before the recording have that of its first event, and a time that is before the last
/// one is the last.
pub(super) fn times(trace: &Device) -> Option<Vec<u64>> {
    let first = trace.events.get(trace.before)?.time_ns?.get();
    let mut last = first;
    let recorded = trace.events.iter().skip(trace.before).map(|event| {
        last = last.max(event.time_ns?.get());
        Some(last)
    });
    let before = std::iter::repeat_n(Some(first), trace.before);
    before.chain(recorded).collect()
}

/// The address of a block, if the file tells.
pub(super) fn address(event: &Event) -> Option<u64> {
    Some(event.address).filter(|&address| address > 0)
}

pub(super) fn hex(address: u64) -> String {
    format!("{address:#x}")
}

/// JavaScript's numbers have 53 bits, addresses of simulated devices more.
fn as_hex<S: Serializer>(address: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    address.map(hex).serialize(serializer)
}

impl Document {
    /// `name` is that of a trace without one. Accepts at most `events` elements of each list of a part, such as events of all traces, and at most `parts`
    /// pools, trackers, managers and traces each. Of a snapshot they are counted before anything is allocated for them. The error is the first mistake and its
    /// place.
    pub fn parse(bytes: Vec<u8>, name: &str, events: usize, parts: usize) -> Result<Self, String> {
        // Text may begin with a byte order mark.
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes).trim_ascii_start();
        let is_snapshot = text.first() == Some(&b'{');
        let document = if is_snapshot { Self::snapshot(text, events, parts)? } else { Self::default() };
        let mut recording = recorded::parse(bytes, events)?;
        if !is_snapshot && recording.devices.iter().all(|device| device.events.is_empty() && device.segments.is_empty()) {
            return Err(recorded::no_allocations(&recording));
        }
        for device in &mut recording.devices {
            let number = device.number;
            device
                .name
                .get_or_insert_with(|| if recording.format == Format::PyTorch { format!("device {number}") } else { name.to_owned() });
        }
        let Recording { format, devices: traces, stacks, left_out } = recording;
        Ok(Self { traces, stacks, left_out, is_pytorch: format == Format::PyTorch, ..document })
    }

    /// All but the traces.
    fn snapshot(bytes: &[u8], events: usize, parts: usize) -> Result<Self, String> {
        let not_one = |error: serde_json::Error| format!("not a snapshot of memory: {error}");
        let head = Head::of(bytes).map_err(not_one)?;
        match head.version {
            None => return Err("not a snapshot of memory: no field `version`".to_owned()),
            Some(version) if version.parse() != Ok(VERSION) => {
                let version: String = version.chars().take(40).collect();
                return Err(format!("snapshot version {version}; this program reads version {VERSION}"));
            }
            Some(_) => {}
        }
        for (list, count) in head.lengths {
            if LISTS[0].1.contains(&list) && list != "samples" {
                if count > parts {
                    return Err(format!("a snapshot of more than {parts} parts of one kind: {count} {list}"));
                }
            } else if count > events {
                return Err(format!("a snapshot of more than {events} {list}"));
            }
        }
        let document: Self = serde_json::from_slice(bytes).map_err(not_one)?;
        document.pools.iter().try_for_each(Pool::check)?;
        Ok(document)
    }
}

impl Statistics {
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes as f64 + self.cached_bytes as f64 {
            0.0 => 0.0,
            idle => 1.0 - self.largest_free.max(self.largest_cached) as f64 / idle,
        }
    }
}

impl Pool {
    fn check(&self) -> Result<(), String> {
        for Slab { number, bytes, parts, .. } in &self.slabs {
            let mut end = 0;
            for part in parts {
                let next = part.offset.checked_add(part.bytes).filter(|&next| part.offset >= end && next <= *bytes);
                end = next.ok_or_else(|| {
                    format!(
                        "pool {:?}, slab {number}: the part at {} of {} bytes overlaps another or the end",
                        self.name, part.offset, part.bytes
                    )
                })?;
            }
        }
        Ok(())
    }
}

/// Where the program itself allocated.
pub(super) fn place(stacks: &Stacks, stack: StackId) -> Option<String> {
    stacks.place(stack).map(|frame| if frame.line > 0 { format!("{}:{}", frame.file, frame.line) } else { frame.to_string() })
}

/// The place, its caller and so on, one per line. Each block has its own: whole stacks would take many times the recording.
pub(super) fn backtrace(stacks: &Stacks, stack: StackId) -> Option<String> {
    const FRAMES: usize = 8;
    let place = stacks.place(stack);
    let frames = stacks.frames(stack).skip_while(|frame| place.is_some_and(|place| *frame != place));
    let frames: Vec<String> = frames.take(FRAMES).map(|frame| frame.to_string()).collect();
    (!frames.is_empty()).then(|| frames.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::Document;

    fn parsed(text: &str) -> Result<(), String> {
        Document::parse(text.into(), "t", 3, 2).map(drop)
    }

    #[test]
    fn lists_are_counted_before_they_are_parsed() {
        // The last element is invalid: a parser that stores the list before it counts would find it.
        let list = |element: &str, last: &str| format!("[{}{last}]", format!("{element},").repeat(3));
        let two_traces = format!(
            r#"[{{"name":"a","events":[{{"kind":"free","block":1}}]}},{{"name":"b","events":{}}}]"#,
            list(r#"{"kind":"free","block":1}"#, "7")
        );
        for (document, fact) in [
            (format!(r#"{{"version":1,"traces":{two_traces}}}"#), "more than 3 events"),
            (format!(r#"{{"traces":[{{"events":{},"name":7}}],"version":1}}"#, list("1", "2")), "more than 3 events"),
            (format!(r#"{{"version":1,"samples":{}}}"#, list("1", "2")), "more than 3 samples"),
            (format!(r#"{{"version":1,"pools":[{{"slabs":[{{"parts":{}}}]}}]}}"#, list("1", "2")), "more than 3 parts"),
            (format!(r#"{{"version":1,"trackers":[{{"leaks":{}}}]}}"#, list("1", "2")), "more than 3 leaks"),
            (format!(r#"{{"version":1,"managers":[{{"buffers":{}}}]}}"#, list("1", "2")), "more than 3 buffers"),
            (format!(r#"{{"version":1,"managers":{}}}"#, list("1", "2")), "more than 2 parts of one kind: 4 managers"),
        ] {
            let error = parsed(&document).expect_err("too long");
            assert!(error.contains(fact), "{error}: {document}");
        }
    }

    #[test]
    fn unknown_fields_and_other_versions_may_have_any_shape() {
        let long = "[[],{},1,\"\",null,true,-1,0.5]".to_owned();
        assert_eq!(parsed(&format!(r#"{{"version":1,"later":{long},"traces":[{{"name":"t","events":[],"later":{long}}}]}}"#)), Ok(()));
        for document in [format!(r#"{{"version":2,"traces":{{"events":{long}}}}}"#), format!(r#"{{"pools":"all","version":{long}}}"#)] {
            let error = parsed(&document).expect_err("another version");
            assert!(error.starts_with("snapshot version ") && error.ends_with("; this program reads version 1"), "{error}");
        }
        assert!(parsed(r#"{"version":1,"version":1}"#).is_err_and(|error| error.contains("duplicate field `version`")));
    }
}
