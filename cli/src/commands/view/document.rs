//! [`Document`]: a parsed and checked snapshot of `ringmem::snapshot`.

use std::collections::HashMap;

use ringmem::snapshot::VERSION;
use serde::{Deserialize, Serialize, Serializer};

use super::head::{Head, LISTS};

#[derive(Deserialize)]
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
    #[serde(default)]
    pub traces: Vec<Trace>,
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

#[derive(Deserialize)]
pub(super) struct Trace {
    pub name: String,
    pub events: Vec<Event>,
}

#[derive(Deserialize)]
pub(super) struct Event {
    pub kind: Kind,
    pub time_ns: Option<u64>,
    pub block: Option<u64>,
    pub bytes: Option<u64>,
    pub stream: Option<u64>,
    pub address: Option<u64>,
    pub name: Option<String>,
    pub place: Option<String>,
    pub backtrace: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Alloc,
    Refused,
    Free,
}

/// A traced block, from its allocation to its free.
pub(super) struct Allocation<'a> {
    pub begin: usize,
    /// `None` if never freed.
    pub end: Option<usize>,
    pub bytes: u64,
    pub event: &'a Event,
}

/// JavaScript's numbers have 53 bits, addresses of simulated devices more.
pub(super) fn hex(address: Option<u64>) -> Option<String> {
    address.map(|address| format!("{address:#x}"))
}

fn as_hex<S: Serializer>(address: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    hex(*address).serialize(serializer)
}

impl Document {
    /// Accepts at most `events` elements of each list of a part, such as events of all traces, and at most `parts` pools, trackers, managers
    /// and traces each. Counts them before it allocates anything for them. The error is the first mistake and its place.
    pub fn parse(bytes: &[u8], events: usize, parts: usize) -> Result<Self, String> {
        let not_one = |error: serde_json::Error| format!("not a snapshot of memory: {error}");
        let head = Head::of(bytes).map_err(not_one)?;
        match head.version {
            _ if bytes.trim_ascii_start().first() != Some(&b'{') => return Err("not a snapshot of memory: not an object".to_owned()),
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
        document.traces.iter().try_for_each(Trace::check)?;
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

impl Trace {
    fn check(&self) -> Result<(), String> {
        let (mut live, mut last) = (HashMap::new(), 0);
        for (index, event) in self.events.iter().enumerate() {
            let fact = |fact: &str| format!("trace {:?}, event {index}: {fact}", self.name);
            if event.time_ns.is_some_and(|time| time < last) {
                return Err(fact("its time is before that of the previous event"));
            }
            last = event.time_ns.unwrap_or(last);
            if event.kind != Kind::Free && event.bytes.is_none() {
                return Err(fact("no `bytes`"));
            }
            match (event.kind, event.block) {
                (Kind::Refused, _) => {}
                (_, None) => return Err(fact("no `block`")),
                (Kind::Free, Some(block)) => drop(live.remove(&block)),
                (Kind::Alloc, Some(block)) => {
                    if live.insert(block, ()).is_some() {
                        return Err(fact(&format!("block {block} is live already")));
                    }
                }
            }
        }
        Ok(())
    }

    pub fn allocations(&self) -> Vec<Allocation<'_>> {
        let (mut blocks, mut live) = (Vec::<Allocation<'_>>::new(), HashMap::new());
        for (index, event) in self.events.iter().enumerate() {
            match event.kind {
                Kind::Refused => {}
                Kind::Alloc => {
                    live.insert(event.block, blocks.len());
                    blocks.push(Allocation { begin: index, end: None, bytes: event.bytes.unwrap_or(0), event });
                }
                Kind::Free => {
                    if let Some(block) = live.remove(&event.block).and_then(|at| blocks.get_mut(at)) {
                        block.end = Some(index);
                    }
                }
            }
        }
        blocks
    }

    /// Returns the time of each event, if all have one.
    pub fn times(&self) -> Option<Vec<u64>> {
        self.events.iter().map(|event| event.time_ns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Document;

    fn parsed(text: &str) -> Result<(), String> {
        Document::parse(text.as_bytes(), 3, 2).map(drop)
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
