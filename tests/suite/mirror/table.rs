use std::sync::Arc;

use ringmem::error::MirrorFault;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, DeviceReadable, HostReadable, Memory};
use ringmem::mirror::{Access, MirroredBuffer, Side, State};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

use super::{BYTES, LEN, backend, pageable, pinned, stream};

/// A cell is the new state (`=`: unchanged) with `up` or `down` for a copy to the device or the host; or the error. `HD*` and `DD*` are dirty with
/// nothing on the other side.
pub const TABLE: &str = "
                     | U            | HO           | DO         | S  | HD            | DD            | HD*           | DD*
host                 | HO           | =            | S down     | =  | =             | S down        | =             | S down
host_mut             | HD           | HD           | HD down    | HD | =             | HD down       | =             | HD down
device               | S            | S up         | =          | =  | S up          | =             | S up          | =
device_mut           | DO           | DD up        | DD         | DD | DD up         | =             | DD up         | =
device_write_only    | DO           | DD           | DD         | DD | DD            | =             | DD            | =
mark_host_dirty      | NotAllocated | HD           | NoHostCopy | HD | =             | DirtyConflict | =             | DirtyConflict
mark_device_dirty    | NotAllocated | NoDeviceCopy | DD         | DD | DirtyConflict | =             | DirtyConflict | =
sync_to_device       | NotAllocated | S up         | =          | =  | S up          | =             | S up          | =
sync_to_host         | NotAllocated | =            | S down     | =  | =             | S down        | =             | S down
synchronize          | NotAllocated | S up         | S down     | =  | S up          | S down        | S up          | S down
copy_from            | HD           | HD           | HD         | HD | =             | HD            | =             | HD
fill                 | HD           | HD           | HD         | HD | =             | HD            | =             | HD
copy_to              | HO           | =            | S down     | =  | =             | S down        | =             | S down
to_vec               | HO           | =            | S down     | =  | =             | S down        | =             | S down
free                 | =            | U            | U          | U  | U             | U             | U             | U
discard_host         | NotAllocated | NoDeviceCopy | =          | DD | DD            | =             | NoDeviceCopy  | =
discard_device       | NotAllocated | =            | NoHostCopy | HD | =             | HD            | =             | NoHostCopy
compact_host         | NotAllocated | =            | HO down    | HO | HO            | HO down       | HO            | HO down
compact_device       | NotAllocated | DO up        | =          | DO | DO up         | DO            | DO up         | DO
sync_to_device_on    | NotAllocated | S up         | =          | =  | S up          | =             | S up          | =
sync_to_host_on      | NotAllocated | =            | S down     | =  | =             | S down        | =             | S down
device_on_read       | S            | S up         | =          | =  | S up          | =             | S up          | =
device_on_write      | DO           | DD           | DD         | DD | DD            | =             | DD            | =
device_on_update     | DO           | DD up        | DD         | DD | DD up         | =             | DD up         | =
through_read         | S            | S up         | =          | =  | S up          | =             | S up          | =
through_write        | DO           | DD           | DD         | DD | DD            | =             | DD            | =
through_update       | DO           | DD up        | DD         | DD | DD up         | =             | DD up         | =
settle               | =            | =            | =          | =  | =             | =             | =             | =
";

pub const OLDER: [u32; LEN] = [1; LEN];
pub const LAST: [u32; LEN] = [2; LEN];
pub const NEW: [u32; LEN] = [3; LEN];

#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub call: &'static str,
    pub before: &'static str,
    pub after: &'static str,
}

pub fn cells() -> impl Iterator<Item = Cell> {
    let mut rows = TABLE.lines().filter(|line| !line.is_empty()).map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let states = rows.next().expect("the first row has the states");
    rows.flat_map(move |row| {
        assert_eq!(row.len(), states.len(), "{row:?}");
        (1..row.len()).map(|i| Cell { call: row[0], before: states[i], after: row[i] }).collect::<Vec<_>>()
    })
}

fn state(name: &str) -> State {
    match name.trim_end_matches('*') {
        "U" => State::Uninitialized,
        "HO" => State::HostOnly,
        "DO" => State::DeviceOnly,
        "S" => State::Synchronized,
        "HD" => State::HostDirty,
        "DD" => State::DeviceDirty,
        other => panic!("no state {other}"),
    }
}

impl Cell {
    pub fn state_after(self) -> State {
        match self.after.split(' ').next() {
            Some("=" | "NotAllocated" | "NoHostCopy" | "NoDeviceCopy" | "DirtyConflict") => state(self.before),
            Some(name) => state(name),
            None => unreachable!("a split has a first part"),
        }
    }

    pub fn is_error(self) -> bool {
        self.after.contains("NotAllocated") || self.after.contains("Copy") || self.after.contains("Conflict")
    }

    /// One buffer serves both sides: there is no older copy to return to.
    pub fn of_a_shared_mirror(self) -> Self {
        let after = match (self.call, self.before) {
            ("discard_host", "HD") => "NoDeviceCopy",
            ("discard_device", "DD") => "NoHostCopy",
            _ => self.after,
        };
        Self { after, ..self }
    }

    pub fn copies(self) -> [u64; 2] {
        [self.after.ends_with("up").into(), self.after.ends_with("down").into()]
    }

    pub fn elements(self) -> [u32; LEN] {
        match (self.call, self.before) {
            ("copy_from" | "fill", _) => NEW,
            (call, _) if writes(call).is_some() => NEW,
            ("free", _) | (_, "U") => [0; LEN],
            ("discard_host", "HD") | ("discard_device", "DD") if !self.is_error() => OLDER,
            _ => LAST,
        }
    }
}

fn writes(call: &str) -> Option<Side> {
    match call {
        "host_mut" => Some(Side::Host),
        "device_mut" | "device_write_only" | "device_on_write" | "device_on_update" | "through_write" | "through_update" => {
            Some(Side::Device)
        }
        _ => None,
    }
}

pub fn bring<H, D>(mirror: &mut MirroredBuffer<u32, H, D>, name: &str) -> Result<()>
where
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    match name {
        "U" => {}
        "HO" => {
            mirror.copy_from(&LAST)?;
            mirror.compact(Side::Host)?;
        }
        "DO" => {
            mirror.device_mut()?.copy_from(&LAST)?;
        }
        "S" => {
            mirror.copy_from(&LAST)?;
            mirror.sync_to_device()?;
        }
        "HD" => {
            mirror.copy_from(&OLDER)?;
            mirror.sync_to_device()?;
            mirror.copy_from(&LAST)?;
        }
        "DD" => {
            mirror.copy_from(&OLDER)?;
            mirror.device_mut()?.copy_from(&LAST)?;
        }
        "HD*" => mirror.copy_from(&LAST)?,
        "DD*" => {
            mirror.device_mut()?.copy_from(&LAST)?;
            mirror.mark_device_dirty()?;
        }
        other => panic!("no state {other}"),
    }
    assert_eq!(mirror.state(), state(name), "{name}");
    Ok(())
}

pub fn call<H, D>(mirror: &mut MirroredBuffer<u32, H, D>, name: &str, stream: &Stream) -> Result<()>
where
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    let same = |device: Buffer<u32, D>| (device, ());
    match name {
        "host" => mirror.host().map(drop),
        "host_mut" => mirror.host_mut().map(drop),
        "device" => mirror.device().map(drop),
        "device_mut" => mirror.device_mut().map(drop),
        "device_write_only" => mirror.device_write_only().map(drop),
        "mark_host_dirty" => mirror.mark_host_dirty(),
        "mark_device_dirty" => mirror.mark_device_dirty(),
        "sync_to_device" => mirror.sync_to_device(),
        "sync_to_host" => mirror.sync_to_host(),
        "synchronize" => mirror.synchronize(),
        "copy_from" => mirror.copy_from(&NEW),
        "fill" => mirror.fill(NEW[0]),
        "copy_to" => mirror.copy_to(&mut [0; LEN]),
        "to_vec" => mirror.to_vec().map(drop),
        "free" => mirror.free(),
        "discard_host" => mirror.discard_host(),
        "discard_device" => mirror.discard_device(),
        "compact_host" => mirror.compact(Side::Host),
        "compact_device" => mirror.compact(Side::Device),
        "sync_to_device_on" => mirror.sync_to_device_on(stream).and_then(|()| mirror.settle()),
        "sync_to_host_on" => mirror.sync_to_host_on(stream).and_then(|()| mirror.settle()),
        "device_on_read" => mirror.device_on(Access::Read, stream).and_then(|_| mirror.settle()),
        "device_on_write" => mirror.device_on(Access::Write, stream).and_then(|_| mirror.settle()),
        "device_on_update" => mirror.device_on(Access::Update, stream).and_then(|_| mirror.settle()),
        "through_read" => mirror.through(Access::Read, same),
        "through_write" => mirror.through(Access::Write, same),
        "through_update" => mirror.through(Access::Update, same),
        "settle" => mirror.settle(),
        other => panic!("no call {other}"),
    }
}

pub fn check_elements<H, D>(mirror: &mut MirroredBuffer<u32, H, D>, cell: Cell)
where
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    match writes(cell.call) {
        Some(Side::Host) => mirror.host_mut().expect("room").copy_from_slice(&NEW),
        Some(Side::Device) => mirror.device_mut().expect("room").copy_from(&NEW).expect("as many"),
        None => {}
    }
    assert_eq!(mirror.to_vec().expect("a copy"), cell.elements(), "{cell:?}");
    assert_eq!(mirror.device().expect("a copy").to_vec().expect("a copy"), cell.elements(), "{cell:?}: on the device");
}

pub fn name(error: &Error) -> &'static str {
    match error {
        Error::Mirror { what: MirrorFault::NotAllocated, .. } => "NotAllocated",
        Error::Mirror { what: MirrorFault::NoHostCopy, .. } => "NoHostCopy",
        Error::Mirror { what: MirrorFault::NoDeviceCopy, .. } => "NoDeviceCopy",
        Error::Mirror { what: MirrorFault::DirtyConflict, .. } => "DirtyConflict",
        _ => "another",
    }
}

pub fn transfers(backend: &HostBackend) -> [u64; 2] {
    let counters = backend.counters();
    [counters.uploads.count, counters.downloads.count]
}

fn follows_the_table<H, D>(make: impl Fn(&Arc<HostBackend>) -> MirroredBuffer<u32, H, D>)
where
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    for cell in cells() {
        let backend = backend();
        let (stream, mut mirror) = (stream(&backend), make(&backend));
        bring(&mut mirror, cell.before).expect("room");
        let (before, copied, statistics) = (backend.counters(), transfers(&backend), mirror.statistics());
        let outcome = call(&mut mirror, cell.call, &stream);
        match &outcome {
            Ok(()) => assert!(!cell.is_error(), "{cell:?}"),
            Err(error) => assert_eq!(name(error), cell.after, "{cell:?}: {error}"),
        }
        assert_eq!(mirror.state(), cell.state_after(), "{cell:?}");
        let after = backend.counters();
        let now = transfers(&backend);
        assert_eq!([now[0] - copied[0], now[1] - copied[1]], cell.copies(), "{cell:?}");
        assert_eq!((after.device_copies, after.host_copies), (before.device_copies, before.host_copies), "{cell:?}");
        let [up, down] = cell.copies();
        assert_eq!(after.uploads.bytes - before.uploads.bytes, up * BYTES, "{cell:?}");
        assert_eq!(after.downloads.bytes - before.downloads.bytes, down * BYTES, "{cell:?}");
        let counted = mirror.statistics();
        assert_eq!(counted.to_device.count - statistics.to_device.count, up, "{cell:?}");
        assert_eq!(counted.to_host.count - statistics.to_host.count, down, "{cell:?}");
        let [device, pinned, host] = super::live(&backend);
        match mirror.state() {
            State::Uninitialized => assert_eq!((device, pinned + host), (0, 0), "{cell:?}"),
            State::HostOnly => assert_eq!((device, pinned + host), (0, BYTES), "{cell:?}"),
            State::DeviceOnly => assert_eq!((device, pinned + host), (BYTES, 0), "{cell:?}"),
            _ => {}
        }
        check_elements(&mut mirror, cell);
    }
}

#[test]
fn every_call_in_every_state_follows_the_table() {
    follows_the_table(pinned);
}

#[test]
fn pageable_host_memory_follows_the_table() {
    follows_the_table(pageable);
}

#[test]
fn the_table_covers_every_error() {
    let cells: Vec<_> = cells().collect();
    assert_eq!(cells.len() % 8, 0);
    for error in ["NotAllocated", "NoHostCopy", "NoDeviceCopy", "DirtyConflict"] {
        assert!(cells.iter().any(|cell| cell.after == error), "{error}");
    }
}

#[test]
fn mirror_errors_contain_state_and_conflict() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    assert_eq!(mirror.sync_to_host().expect_err("nothing").to_string(), "no copy on either side: the mirrored buffer is Uninitialized");
    mirror.host().expect("room");
    let error = mirror.mark_device_dirty().expect_err("only the host has a copy");
    assert!(matches!(error, Error::Mirror { what: MirrorFault::NoDeviceCopy, state: "HostOnly" }), "{error:?}");
    mirror.compact(Side::Device).expect("room");
    let error = mirror.mark_host_dirty().expect_err("only the device has a copy");
    assert!(matches!(error, Error::Mirror { what: MirrorFault::NoHostCopy, state: "DeviceOnly" }), "{error:?}");
    mirror.device_mut().expect("it is there");
    let error = mirror.mark_host_dirty().expect_err("the device was written");
    assert!(matches!(error, Error::Mirror { what: MirrorFault::DirtyConflict, state: "DeviceDirty" }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "conflict: the other copy has newer writes; synchronize or discard one copy: the mirrored buffer is DeviceDirty"
    );
}

#[test]
fn a_conflict_is_resolved_by_discarding_either_side() {
    for (give_up, left) in [(Side::Host, LAST), (Side::Device, OLDER)] {
        let backend = backend();
        let mut mirror = pinned(&backend);
        bring(&mut mirror, "S").expect("room");
        mirror.device_mut().expect("room").copy_from(&LAST).expect("as many");
        mirror.discard_device().expect("the host's copy is whole");
        mirror.host_mut().expect("it is there").copy_from_slice(&OLDER);
        assert!(matches!(mirror.mark_device_dirty(), Err(Error::Mirror { what: MirrorFault::DirtyConflict, state: "HostDirty" })));
        match give_up {
            Side::Host => mirror.discard_host().expect("the device's copy is whole"),
            Side::Device => mirror.discard_device().expect("the host's copy is whole"),
        }
        assert_eq!(mirror.to_vec().expect("a copy"), left, "{give_up}");
    }
}

#[test]
fn a_length_mismatch_is_an_error_and_changes_nothing() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    let error = mirror.copy_from(&[1]).expect_err("one element");
    assert!(matches!(error, Error::Size { what: "length in elements", least: 64, asked: 1, .. }), "{error}");
    let error = mirror.copy_to(&mut [0; LEN + 1]).expect_err("one too many");
    assert!(matches!(error, Error::Size { what: "length in elements", least: 64, asked: 65, .. }), "{error}");
    assert_eq!((mirror.state(), super::live(&backend)), (State::Uninitialized, [0; 3]));
}

#[test]
fn oversized_mirrors_and_mixed_backends_are_errors() {
    use ringmem::memory::{Device, Pinned};
    let (ours, theirs) = (backend(), backend());
    let huge = MirroredBuffer::<u64, _, _>::new(Pinned::new(&ours, 0), Device::new(&ours, 0), usize::MAX / 4);
    assert!(matches!(huge, Err(Error::Size { .. })), "{huge:?}");
    let mixed = MirroredBuffer::<u64, _, _>::new(Pinned::new(&ours, 0), Device::new(&theirs, 0), 1);
    assert!(matches!(mixed, Err(Error::OtherBackend { .. })), "{mixed:?}");
    let stream = stream(&theirs);
    let mut mirror = pinned(&ours);
    assert!(matches!(mirror.device_on(Access::Write, &stream), Err(Error::OtherBackend { .. })));
    mirror.device_mut().expect("room");
    assert!(matches!(mirror.sync_to_host_on(&stream), Err(Error::OtherBackend { .. })));
    assert!(matches!(mirror.used_by(&stream), Err(Error::OtherBackend { .. })));
}

#[test]
fn an_empty_mirror_allocates_and_copies_nothing() {
    use ringmem::memory::{Device, Pinned};
    let backend = backend();
    let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 0).expect("no bytes");
    assert!(mirror.is_empty() && mirror.size_bytes() == 0);
    assert!(mirror.host_mut().expect("nothing").is_empty());
    mirror.device_mut().expect("nothing").copy_from(&[]).expect("nothing");
    mirror.sync_to_host_on(&stream(&backend)).expect("nothing");
    assert!(mirror.to_vec().expect("nothing").is_empty());
    let counters = backend.counters();
    assert_eq!((super::live(&backend), counters.uploads.count, counters.downloads.count), ([0; 3], 0, 0));
    assert_eq!(mirror.statistics(), Default::default());
}
