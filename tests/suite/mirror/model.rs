use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::error::OperationFault;
use ringmem::mirror::{Access, Side, State};
use ringmem::stream::Stream;

use super::table::transfers;
use super::{LEN, PinnedMirror, backend, launch, live, pinned, stream, through};

#[derive(Clone, Copy, Debug)]
enum Op {
    ReadHost,
    ReadDevice,
    WriteHost(usize, u32),
    WriteDevice(usize, u32),
    OverwriteHost(u32),
    OverwriteDevice(u32),
    Kernel(usize),
    QueuedFill(usize, u32),
    Sync(Side),
    QueuedSync(Side, usize),
    MarkDirty(Side),
    Discard(Side),
    Compact(Side),
    Free,
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Host), Just(Side::Device)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::ReadHost),
        2 => Just(Op::ReadDevice),
        3 => (0..LEN, any::<u32>()).prop_map(|(at, value)| Op::WriteHost(at, value)),
        3 => (0..LEN, any::<u32>()).prop_map(|(at, value)| Op::WriteDevice(at, value)),
        1 => any::<u32>().prop_map(Op::OverwriteHost),
        1 => any::<u32>().prop_map(Op::OverwriteDevice),
        3 => (0..2_usize).prop_map(Op::Kernel),
        1 => (0..2_usize, any::<u32>()).prop_map(|(on, value)| Op::QueuedFill(on, value)),
        2 => side().prop_map(Op::Sync),
        3 => (side(), 0..2_usize).prop_map(|(side, on)| Op::QueuedSync(side, on)),
        1 => side().prop_map(Op::MarkDirty),
        1 => side().prop_map(Op::Discard),
        1 => side().prop_map(Op::Compact),
        1 => Just(Op::Free),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Strike {
    None,
    AtTheCall,
    Executed { told: bool },
}

fn strike() -> impl Strategy<Value = Strike> {
    prop_oneof![
        2 => Just(Strike::None),
        1 => Just(Strike::AtTheCall),
        1 => any::<bool>().prop_map(|told| Strike::Executed { told }),
    ]
}

#[derive(Clone, Debug, Default)]
struct Model {
    copies: [Option<[u32; LEN]>; 2],
    valid: [bool; 2],
    dirty: [bool; 2],
    made: [u64; 2],
}

fn index(side: Side) -> usize {
    usize::from(side == Side::Device)
}

impl Model {
    fn is_empty(&self) -> bool {
        self.valid == [false; 2]
    }

    fn refresh(&mut self, side: Side) {
        let (to, from) = (index(side), index(side.other()));
        if self.valid[to] {
            return;
        }
        self.copies[to] = if self.is_empty() { Some([0; LEN]) } else { self.copies[from] };
        self.made[to] += u64::from(!self.is_empty());
        self.valid[to] = true;
        self.dirty = [false; 2];
    }

    fn written(&mut self, side: Side) -> &mut [u32; LEN] {
        let (this, other) = (index(side), index(side.other()));
        // A first write on the device is not dirty: nothing else was valid.
        self.dirty[this] = side == Side::Host || !self.is_empty();
        (self.valid[this], self.valid[other], self.dirty[other]) = (true, false, false);
        self.copies[this].get_or_insert([0; LEN])
    }

    fn elements(&self) -> [u32; LEN] {
        let valid = self.valid.iter().position(|&valid| valid);
        valid.and_then(|side| self.copies[side]).unwrap_or([0; LEN])
    }

    fn apply(&mut self, op: Op) -> Option<()> {
        let needs_a_copy = matches!(op, Op::Sync(_) | Op::QueuedSync(..) | Op::MarkDirty(_) | Op::Discard(_) | Op::Compact(_));
        if needs_a_copy && self.is_empty() {
            return None;
        }
        match op {
            Op::ReadHost => self.refresh(Side::Host),
            Op::ReadDevice if self.is_empty() => (self.copies, self.valid) = ([Some([0; LEN]); 2], [true; 2]),
            Op::ReadDevice => self.refresh(Side::Device),
            Op::WriteHost(at, value) => {
                self.refresh(Side::Host);
                self.written(Side::Host)[at] = value;
            }
            Op::WriteDevice(at, value) => {
                self.update_device()[at] = value;
            }
            Op::OverwriteHost(value) => *self.written(Side::Host) = [value; LEN],
            Op::OverwriteDevice(value) | Op::QueuedFill(_, value) => *self.written(Side::Device) = [value; LEN],
            Op::Kernel(_) => self.update_device().iter_mut().for_each(|element| *element = element.wrapping_add(1)),
            Op::Sync(side) | Op::QueuedSync(side, _) => self.refresh(side),
            Op::MarkDirty(side) => {
                if self.dirty[index(side.other())] || self.copies[index(side)].is_none() {
                    return None;
                }
                self.written(side);
            }
            Op::Discard(side) => {
                let (this, other) = (index(side), index(side.other()));
                if self.valid[this] {
                    self.copies[other]?;
                    (self.valid[this], self.valid[other]) = (false, true);
                    (self.dirty[this], self.dirty[other]) = (false, true);
                }
            }
            Op::Compact(keep) => {
                self.refresh(keep);
                self.copies[index(keep.other())] = None;
                self.valid[index(keep.other())] = false;
                self.dirty = [false; 2];
            }
            Op::Free => *self = Self { made: self.made, ..Self::default() },
        }
        Some(())
    }

    fn update_device(&mut self) -> &mut [u32; LEN] {
        if self.is_empty() {
            self.written(Side::Device)
        } else {
            self.refresh(Side::Device);
            self.written(Side::Device)
        }
    }

    fn state(&self) -> State {
        match (self.valid, self.dirty) {
            ([false, false], _) => State::Uninitialized,
            ([true, true], _) => State::Synchronized,
            ([true, false], [true, _]) => State::HostDirty,
            ([true, false], _) => State::HostOnly,
            ([false, true], [_, true]) => State::DeviceDirty,
            ([false, true], _) => State::DeviceOnly,
        }
    }
}

fn apply(op: Op, mirror: &mut PinnedMirror, streams: &[Stream; 2]) -> Result<(), Error> {
    match op {
        Op::ReadHost => mirror.host().map(drop),
        Op::ReadDevice => mirror.device().map(drop),
        Op::WriteHost(at, value) => mirror.host_mut().map(|elements| elements[at] = value),
        Op::WriteDevice(at, value) => mirror.device_mut()?.slice(at..=at)?.fill(value),
        Op::OverwriteHost(value) => mirror.copy_from(&[value; LEN]),
        Op::OverwriteDevice(value) => mirror.device_write_only()?.fill(value),
        Op::Kernel(on) => {
            drop(launch(mirror, "add", &streams[on]));
            Ok(())
        }
        Op::QueuedFill(on, value) => mirror.through(Access::Write, |device| match streams[on].fill(device, .., value) {
            Ok(pending) => (pending.detach(), Ok(())),
            Err(rejected) => (rejected.value, Err(rejected.error)),
        })?,
        Op::Sync(Side::Host) => mirror.sync_to_host(),
        Op::Sync(Side::Device) => mirror.sync_to_device(),
        Op::QueuedSync(Side::Host, on) => mirror.sync_to_host_on(&streams[on]),
        Op::QueuedSync(Side::Device, on) => mirror.sync_to_device_on(&streams[on]),
        Op::MarkDirty(Side::Host) => mirror.mark_host_dirty(),
        Op::MarkDirty(Side::Device) => mirror.mark_device_dirty(),
        Op::Discard(Side::Host) => mirror.discard_host(),
        Op::Discard(Side::Device) => mirror.discard_device(),
        Op::Compact(keep) => mirror.compact(keep),
        Op::Free => mirror.free(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_return_the_last_write_even_with_failed_copies(ops in prop::collection::vec((op(), strike()), 0..60)) {
        let backend = backend();
        let (streams, mut mirror) = ([stream(&backend), stream(&backend)], pinned(&backend));
        let (mut model, mut read) = (Model::default(), 0);
        for &(op, strike) in &ops {
            let fault = match (op, strike) {
                (Op::Kernel(_), _) => None,
                (_, Strike::AtTheCall) => Some(Fault::nth(1)),
                (Op::QueuedSync(..), Strike::Executed { .. }) => {
                    mirror.settle().expect("no fault");
                    Some(Fault::nth(1).when_executed())
                }
                _ => None,
            };
            backend.set_faults(&fault.map_or(Faults::new(), |fault| Faults::new().on(Verb::Copy, fault)));
            let before = mirror.state();
            let mut outcome = apply(op, &mut mirror, &streams);
            backend.set_faults(&Faults::new());
            if let (Strike::Executed { told }, Op::QueuedSync(_, on), Ok(()), Some(_)) = (strike, op, &outcome, fault)
                && mirror.state() != before
            {
                if told {
                    let is_told = matches!(streams[on].synchronize(), Err(Error::Injected { .. }));
                    prop_assert!(is_told);
                }
                outcome = mirror.settle();
                let is_told = matches!(outcome, Err(Error::Injected { .. } | Error::Operation { what: OperationFault::AlreadyReported, .. }));
                prop_assert!(is_told, "{:?}", outcome);
            }
            if let Err(Error::Injected { .. } | Error::Operation { what: OperationFault::AlreadyReported, .. }) = outcome {
                prop_assert!(fault.is_some());
                prop_assert_eq!(mirror.state(), before, "{:?}", op);
                outcome = apply(op, &mut mirror, &streams);
            }
            prop_assert_eq!(outcome.is_ok(), model.apply(op).is_some(), "{:?}: {:?}", op, outcome);
            prop_assert_eq!(mirror.state(), model.state(), "{:?}", op);
            match op {
                Op::ReadHost => prop_assert_eq!(mirror.host().expect("valid"), model.elements()),
                Op::ReadDevice => {
                    prop_assert_eq!(mirror.device().expect("valid").to_vec().expect("a copy"), model.elements());
                    read += 1;
                }
                _ => {}
            }
        }
        let elements = model.elements();
        model.refresh(Side::Host);
        prop_assert_eq!(mirror.to_vec().expect("a copy"), elements);
        streams.iter().for_each(through);
        let [to_host, to_device] = model.made;
        prop_assert_eq!(transfers(&backend), [to_device, to_host + read]);
        drop(mirror);
        prop_assert_eq!(live(&backend), [0; 3]);
    }
}
