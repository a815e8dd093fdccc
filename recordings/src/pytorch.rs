//! PyTorch's snapshots: `{"segments": [..], "device_traces": [[..], ..], ..}`, or the list of segments alone.
//!
//! 1. An event is a dictionary of `action`, `addr` (or `device_free`, for `oom`), `size`, `stream`, since 2.2 `time_us`, and `frames` unless they were off. A
//!    block is `alloc`ated, `free_requested` by the program, and `free_completed` when its uses on other streams are: only then can it be given again. The
//!    `device_free` of a refused request are the bytes that the driver had left, after the allocator had freed its free segments.
//! 2. `segment_alloc`, `segment_map` and their opposites tell the allocator's memory from the driver. Where a recording begins is known from its end: the
//!    segments of the snapshot, less those that the events added.
//! 3. A recording that is switched on late, or whose ring of events has overflowed, begins with live blocks: those that it frees without an allocation, and
//!    those of `segments` that no event mentions. Blocks of versions before 2.1 have no `address`: they lie in a row.
//! 4. `external_annotations` are the beginnings and ends of the program's `record_function`s, with their time. A block that has neither `user_metadata`
//!    nor a `category` has the name of the last annotation that was open at its time.
//! 5. Some actions, and keys that are not named here, mean nothing for memory: `snapshot`, `user_defined`, settings, pools, compile contexts. Events of actions
//!    that this reader does not know are counted, and so is the memory of the host in `host_traces` and `host_segments`.

use std::collections::{BTreeMap, HashMap};

use crate::pickle::{Tree, Value};
use crate::segments::{Segment, Segments};
use crate::stacks::{NameId, StackId, Stacks};
use crate::{Builder, Device, Format, LeftOut, Raw, ReadError, Recording, at, possible};

/// No machine has more.
const DEVICES: usize = 1024;
/// Bytes of the file for each event at least: a dictionary that many events share is no recording.
const EVENT: usize = 12;
/// Unknown actions that are counted apart.
const UNKNOWN: usize = 16;

struct Keys {
    action: Option<u32>,
    addr: Option<u32>,
    device_free: Option<u32>,
    size: Option<u32>,
    stream: Option<u32>,
    time_us: Option<u32>,
    frames: Option<u32>,
    history: Option<u32>,
    name: Option<u32>,
    filename: Option<u32>,
    line: Option<u32>,
    address: Option<u32>,
    device: Option<u32>,
    total_size: Option<u32>,
    blocks: Option<u32>,
    state: Option<u32>,
    requested_size: Option<u32>,
    real_size: Option<u32>,
    is_expandable: Option<u32>,
    user_metadata: Option<u32>,
    category: Option<u32>,
    stage: Option<u32>,
}

impl Keys {
    fn of(tree: &Tree) -> Self {
        let key = |text| tree.number(text);
        Self {
            action: key("action"),
            addr: key("addr"),
            device_free: key("device_free"),
            size: key("size"),
            stream: key("stream"),
            time_us: key("time_us"),
            frames: key("frames"),
            history: key("history"),
            name: key("name"),
            filename: key("filename"),
            line: key("line"),
            address: key("address"),
            device: key("device"),
            total_size: key("total_size"),
            blocks: key("blocks"),
            state: key("state"),
            requested_size: key("requested_size"),
            real_size: key("real_size"),
            is_expandable: key("is_expandable"),
            user_metadata: key("user_metadata"),
            category: key("category"),
            stage: key("stage"),
        }
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    keys: Keys,
    stacks: Stacks,
    /// By the number of a list, so that a stack that many events share is read once.
    read: HashMap<u32, StackId>,
    /// By the number of a dictionary: many stacks share a frame.
    frames: HashMap<u32, u32>,
    /// By the number of a text.
    names: HashMap<u32, NameId>,
    annotations: Annotations,
    /// Events that the file may still have.
    left: usize,
    /// Events by an action that is not known, by the number of its text; the rest under `None`.
    unknown: BTreeMap<Option<u32>, u64>,
}

pub(crate) fn read(bytes: Vec<u8>) -> Result<Recording, ReadError> {
    let tree = Tree::read(&bytes)?;
    let left = bytes.len() / EVENT;
    // The tree has all of it.
    drop(bytes);
    let mut reader = Reader {
        keys: Keys::of(&tree),
        tree: &tree,
        stacks: Stacks::default(),
        read: HashMap::new(),
        frames: HashMap::new(),
        names: HashMap::new(),
        annotations: Annotations::default(),
        left,
        unknown: BTreeMap::new(),
    };
    let of_root = |key| tree.get(tree.root, tree.number(key));
    let (segments, traces, annotations) = match tree.root {
        Value::List(_) => (Some(tree.root), None, None),
        root if tree.is_small_dict(root) => (of_root("segments"), of_root("device_traces"), of_root("external_annotations")),
        _ => (None, None, None),
    };
    if !matches!(segments, Some(Value::List(_))) {
        return Err(ReadError::content("a pickle, but no snapshot of PyTorch: it has no list `segments`"));
    }
    let traces = traces.unwrap_or(Value::None);
    if !matches!(traces, Value::None | Value::List(_)) {
        return Err(ReadError::content(format!("`device_traces` is {}, expected a list", tree.describe(traces))));
    }
    if tree.items(traces).nth(DEVICES).is_some() {
        return Err(ReadError::content(format!("`device_traces` of more than {DEVICES} devices")));
    }
    for (index, annotation) in tree.items(annotations.unwrap_or(Value::None)).enumerate() {
        reader.annotation(annotation).map_err(|what| ReadError::content(format!("annotation {index}: {what}")))?;
    }
    let mut builders: Vec<(Builder, Segments)> = Vec::new();
    for (number, trace) in tree.items(traces).enumerate() {
        if !matches!(trace, Value::List(_)) {
            return Err(ReadError::content(format!("device {number} of `device_traces` is {}, expected a list", tree.describe(trace))));
        }
        let mut device = (Builder::default(), Segments::default());
        reader.annotations.begin(number as u64);
        for (index, event) in tree.items(trace).enumerate() {
            reader.event(&mut device, event).map_err(|what| ReadError::content(format!("device {number}, event {index}: {what}")))?;
        }
        builders.push(device);
    }
    for (index, segment) in tree.items(segments.unwrap_or(Value::None)).enumerate() {
        reader.segment(&mut builders, segment).map_err(|what| ReadError::content(format!("segment {index}: {what}")))?;
    }
    let devices = (0..).zip(builders);
    let devices = devices.map(|(number, (mut builder, segments))| {
        builder.device.reserved = segments.reserved();
        builder.device.segments = segments.finish();
        Device { number, ..builder.finish() }
    });
    let devices: Vec<Device> = devices.filter(|device| !device.events.is_empty() || device.reserved.is_some()).collect();
    let host = ["host_traces", "host_segments"].map(|list| {
        let lists = if tree.is_small_dict(tree.root) { of_root(list) } else { None };
        LeftOut { kind: list.to_owned(), count: parts(&tree, lists.unwrap_or(Value::None), left) }
    });
    let left_out = host.into_iter().filter(|host| host.count > 0).chain(reader.unknown()).collect();
    Ok(Recording { format: Format::PyTorch, devices, left_out, stacks: reader.stacks })
}

/// The parts of a list, or of the lists in it. Lists may contain themselves and each other: at most `most` are counted.
fn parts(tree: &Tree, list: Value, most: usize) -> u64 {
    let of = |part| if matches!(part, Value::List(_)) { tree.items(part).take(most).count() } else { 1 };
    let mut count = 0_usize;
    for part in tree.items(list).take(most) {
        count += of(part);
        if count >= most {
            break;
        }
    }
    count.min(most) as u64
}

/// The program's annotations: of a device, in order of time, those open at the time of the events so far.
#[derive(Default)]
struct Annotations {
    /// Device, time in microseconds, whether it is an end, name.
    all: Vec<(u64, u64, bool, NameId)>,
    device: u64,
    next: usize,
    /// By the order of their beginnings.
    open: BTreeMap<usize, NameId>,
    /// The keys in `open` of each name, so that an end finds its beginning without a search.
    begun: HashMap<NameId, Vec<usize>>,
}

impl Annotations {
    fn begin(&mut self, device: u64) {
        // Of equal times in the order of the file.
        self.all.sort_by_key(|&(device, time, ..)| (device, time));
        self.next = self.all.partition_point(|&(of, ..)| of < device);
        self.device = device;
        self.open.clear();
        self.begun.clear();
    }

    /// The last that is open at a time, which is not before those of earlier calls.
    fn at(&mut self, time: Option<u64>) -> NameId {
        while let Some(&(device, begun, is_end, name)) = self.all.get(self.next)
            && device == self.device
            && time.is_some_and(|time| begun <= time)
        {
            self.next += 1;
            let begun = self.begun.entry(name).or_default();
            if !is_end {
                begun.push(self.next);
                self.open.insert(self.next, name);
            } else if let Some(last) = begun.pop() {
                // Those of several threads need not nest.
                self.open.remove(&last);
            }
        }
        self.open.last_key_value().map(|(_, &name)| name).unwrap_or_default()
    }
}

/// The fault in an event or segment.
type Fault = String;

impl Reader<'_> {
    /// Counts an event, segment or block, and checks that it is a dictionary.
    fn check(&mut self, value: Value) -> Result<(), Fault> {
        self.left =
            self.left.checked_sub(1).ok_or("more events and blocks than a file of this length can have: it is damaged, or no snapshot")?;
        match value {
            Value::Dict(_) if self.tree.is_small_dict(value) => Ok(()),
            Value::Dict(_) => Err("a dictionary of too many keys".into()),
            other => Err(format!("{}, expected a dictionary", self.tree.describe(other))),
        }
    }

    fn unsigned(&self, dict: Value, key: Option<u32>, what: &str) -> Result<Option<u64>, Fault> {
        match self.tree.get(dict, key) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Int(int)) if int >= 0 => Ok(Some(int as u64)),
            Some(other) => Err(format!("`{what}` is {}, expected an unsigned number", self.tree.describe(other))),
        }
    }

    fn size(&self, dict: Value) -> Result<u64, Fault> {
        self.unsigned(dict, self.keys.size, "size")?.ok_or_else(|| "no `size`".into())
    }

    /// Signed, where a pointer is one.
    fn stream(&self, dict: Value) -> Result<u64, Fault> {
        match self.tree.get(dict, self.keys.stream) {
            None | Some(Value::None) => Ok(0),
            Some(Value::Int(stream)) => Ok(stream as u64),
            Some(other) => Err(format!("`stream` is {}, expected a number", self.tree.describe(other))),
        }
    }

    fn raw(&mut self, dict: Value, address: Option<u32>) -> Result<Raw, Fault> {
        let time = self.unsigned(dict, self.keys.time_us, "time_us")?;
        let annotation = self.annotations.at(time);
        Ok(Raw {
            address: self.unsigned(dict, address, "addr")?.unwrap_or(0),
            size: self.size(dict)?,
            stream: self.stream(dict)?,
            stack: self.stack(dict)?,
            name: self.name(dict).unwrap_or(annotation),
            time_ns: time.map(|time| at(time.saturating_mul(1000))),
        })
    }

    /// The block's own.
    fn name(&mut self, dict: Value) -> Option<NameId> {
        let text = |key| self.tree.get(dict, key).filter(|&text| self.tree.text(text).is_some_and(|text| !text.is_empty()));
        let Value::Text(number) = text(self.keys.user_metadata).or_else(|| text(self.keys.category))? else { return None };
        Some(self.named(number))
    }

    fn named(&mut self, number: u32) -> NameId {
        let text = self.tree.text(Value::Text(number)).unwrap_or_default();
        *self.names.entry(number).or_insert_with(|| self.stacks.named(text))
    }

    fn annotation(&mut self, annotation: Value) -> Result<(), Fault> {
        self.check(annotation)?;
        let text = |key| self.tree.get(annotation, key).and_then(|text| self.tree.text(text));
        let is_end = match text(self.keys.stage) {
            Some("START") => false,
            Some("END") => true,
            // The program's own.
            _ => return Ok(()),
        };
        let Some(Value::Text(name)) = self.tree.get(annotation, self.keys.name) else { return Err("no `name`".into()) };
        let time = self.unsigned(annotation, self.keys.time_us, "time_us")?.ok_or("no `time_us`")?;
        let device = self.unsigned(annotation, self.keys.device, "device")?.unwrap_or(0);
        let name = self.named(name);
        self.annotations.all.push((device, time, is_end, name));
        Ok(())
    }

    fn unknown(&self) -> impl Iterator<Item = LeftOut> {
        self.unknown.iter().rev().map(|(&action, &count)| {
            let name = action.and_then(|number| self.tree.text(Value::Text(number)));
            LeftOut { kind: name.map_or_else(|| "other kinds".to_owned(), |name| name.chars().take(40).collect()), count }
        })
    }

    /// A range of memory from the driver.
    fn range(&self, dict: Value, address: Option<u32>, bytes: u64, builder: &mut Builder) -> Result<Segment, Fault> {
        possible(bytes)?;
        let address = self.unsigned(dict, address, "addr")?.unwrap_or(0);
        let stream = builder.stream(self.stream(dict)?);
        Ok(Segment { address, bytes, stream, is_piece: false, begin: None, end: None })
    }

    fn event(&mut self, (builder, segments): &mut (Builder, Segments), event: Value) -> Result<(), Fault> {
        self.check(event)?;
        let named = self.tree.get(event, self.keys.action);
        let action = named.and_then(|action| self.tree.text(action)).ok_or("no `action`")?;
        match action {
            "alloc" | "free_completed" => {
                let raw = self.raw(event, self.keys.addr)?;
                if action == "alloc" { builder.alloc(&raw)? } else { builder.free(&raw)? }
            }
            "oom" => {
                // It has no address.
                let raw = self.raw(event, None)?;
                let device_free = self.unsigned(event, self.keys.device_free, "device_free")?;
                builder.refused(&raw, device_free);
            }
            "segment_alloc" | "segment_map" | "segment_free" | "segment_unmap" => {
                let range = self.range(event, self.keys.addr, self.size(event)?, builder)?;
                let range = Segment { is_piece: action.ends_with("map"), ..range };
                let now = Some(builder.device.events.len());
                if matches!(action, "segment_alloc" | "segment_map") {
                    segments.map(Segment { begin: now, ..range });
                } else {
                    segments.unmap(Segment { end: now, ..range });
                }
                if !segments.are_possible() {
                    return Err("segments of more than 2^47 bytes (128 TiB) together: no device has more".into());
                }
            }
            "free_requested" | "snapshot" | "user_defined" => {}
            _ => {
                let key = if let Some(Value::Text(number)) = named { Some(number) } else { None };
                let key = key.filter(|_| self.unknown.len() < UNKNOWN || self.unknown.contains_key(&key));
                *self.unknown.entry(key).or_default() += 1;
            }
        }
        Ok(())
    }

    fn segment(&mut self, builders: &mut Vec<(Builder, Segments)>, segment: Value) -> Result<(), Fault> {
        self.check(segment)?;
        let device = self.unsigned(segment, self.keys.device, "device")?.unwrap_or(0);
        if device >= DEVICES as u64 {
            return Err(format!("`device` is {device}, expected at most {}", DEVICES - 1));
        }
        let device = device as usize;
        if device >= builders.len() {
            builders.resize_with(device + 1, Default::default);
        }
        let total = self.unsigned(segment, self.keys.total_size, "total_size")?.ok_or("no `total_size`")?;
        let mut next = self.unsigned(segment, self.keys.address, "address")?.unwrap_or(0);
        let stream = self.stream(segment)?;
        let (builder, segments) = &mut builders[device];
        let is_piece = matches!(self.tree.get(segment, self.keys.is_expandable), Some(Value::Bool(true)));
        segments.list(Segment { is_piece, ..self.range(segment, self.keys.address, total, builder)? });
        if !segments.are_possible() {
            return Err("more than 2^47 bytes (128 TiB) together with the segments before it: no device has more".into());
        }
        let blocks = self.tree.get(segment, self.keys.blocks).unwrap_or(Value::None);
        for (index, block) in self.tree.items(blocks).enumerate() {
            self.block(builder, block, &mut next, stream).map_err(|what| format!("block {index}: {what}"))?;
        }
        Ok(())
    }

    /// `next` is the address of a block without one.
    fn block(&mut self, builder: &mut Builder, block: Value, next: &mut u64, stream: u64) -> Result<(), Fault> {
        self.check(block)?;
        let size = self.size(block)?;
        let address = self.unsigned(block, self.keys.address, "address")?.unwrap_or(*next);
        *next = address.saturating_add(size);
        if size == 0 {
            return Ok(());
        }
        let state = self.tree.get(block, self.keys.state).and_then(|state| self.tree.text(state)).unwrap_or_default();
        if !state.starts_with("active") || builder.mentioned.contains(&address) {
            return Ok(());
        }
        // Before 2.1, a block has a history of allocations: first its own, then older ones in its place.
        let history = self.tree.get(block, self.keys.history).and_then(|history| self.tree.items(history).next());
        let of = history.filter(|&own| self.tree.is_small_dict(own));
        let (of, key) = of.map_or((block, self.keys.requested_size), |own| (own, self.keys.real_size));
        let requested = self.unsigned(of, key, "requested_size")?.filter(|&size| size > 0);
        let stack = self.stack(of)?;
        let name = self.name(block).unwrap_or_default();
        builder.was_live(&Raw { address, size: requested.unwrap_or(size), stream, stack, name, time_ns: None })?;
        Ok(())
    }

    fn stack(&mut self, dict: Value) -> Result<StackId, Fault> {
        let (list, number) = match self.tree.get(dict, self.keys.frames) {
            None | Some(Value::None) => return Ok(StackId::default()),
            Some(list @ Value::List(number)) => (list, number),
            Some(other) => return Err(format!("`frames` is {}, expected a list", self.tree.describe(other))),
        };
        if let Some(&stack) = self.read.get(&number) {
            return Ok(stack);
        }
        let mut frames = Vec::new();
        for frame in self.tree.items(list) {
            frames.push(self.frame(frame)?);
        }
        let stack = self.stacks.stack(&frames);
        self.read.insert(number, stack);
        Ok(stack)
    }

    fn frame(&mut self, frame: Value) -> Result<u32, Fault> {
        let Value::Dict(number) = frame else { return Err(format!("a frame is {}, expected a dictionary", self.tree.describe(frame))) };
        if let Some(&frame) = self.frames.get(&number) {
            return Ok(frame);
        }
        if !self.tree.is_small_dict(frame) {
            return Err("a frame of too many keys".into());
        }
        let text = |key| self.tree.get(frame, key).and_then(|text| self.tree.text(text)).unwrap_or_default();
        let line = self.unsigned(frame, self.keys.line, "line")?.unwrap_or(0);
        let (function, file) = (self.stacks.text(text(self.keys.name)), self.stacks.text(text(self.keys.filename)));
        let read = self.stacks.frame(function, file, u32::try_from(line).unwrap_or(0));
        self.frames.insert(number, read);
        Ok(read)
    }
}
