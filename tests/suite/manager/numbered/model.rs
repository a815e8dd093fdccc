use std::sync::Arc;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::error::IdError;
use ringmem::manager::{BufferId, Lease, LeaseMut, MemoryManager};
use ringmem::message::BufferReference;

use super::{DeviceMemory, backend, blocks, buffer, manager};

#[derive(Clone, Copy, Debug)]
enum Op {
    Register(usize),
    Lease(usize),
    LeaseMut(usize),
    GiveBack(usize),
    Write(usize, u32),
    Release(usize),
    Take(usize),
    Resolve(usize, usize),
    HandOver(usize),
    Forge(usize, u64),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let which = || 0..12_usize;
    prop_oneof![
        6 => (0..9_usize).prop_map(Op::Register),
        4 => which().prop_map(Op::Lease),
        3 => which().prop_map(Op::LeaseMut),
        6 => which().prop_map(Op::GiveBack),
        2 => (which(), any::<u32>()).prop_map(|(which, value)| Op::Write(which, value)),
        2 => which().prop_map(Op::Release),
        1 => which().prop_map(Op::Take),
        2 => (which(), 0..9_usize).prop_map(|(which, end)| Op::Resolve(which, end)),
        1 => which().prop_map(Op::HandOver),
        1 => (which(), any::<u64>()).prop_map(|(which, bits)| Op::Forge(which, bits)),
        1 => Just(Op::Clear),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    Open,
    Released,
    Gone,
}

struct Known {
    id: BufferId<u32>,
    elements: Vec<u32>,
    is: Is,
    shared: Vec<Lease<'static, u32, DeviceMemory>>,
    alone: Option<LeaseMut<'static, u32, DeviceMemory>>,
}

impl Known {
    fn leases(&self) -> u32 {
        self.shared.len() as u32 + u32::from(self.alone.is_some())
    }

    fn refuses(&self, alone: bool) -> Option<&'static str> {
        match self.is {
            Is::Gone => Some("stale"),
            Is::Released => Some("released"),
            Is::Open if self.alone.is_some() || (alone && !self.shared.is_empty()) => Some("busy"),
            Is::Open => None,
        }
    }

    fn judge<R>(&self, outcome: Result<R, Error>, expected: Option<&str>) -> Option<R> {
        let said = match &outcome {
            Ok(_) => None,
            Err(Error::Busy { .. }) => Some("busy"),
            Err(Error::Id(IdError::Released { leases, .. })) => {
                assert_eq!(*leases, self.leases());
                Some("released")
            }
            Err(Error::Id(IdError::Stale { .. })) => Some("stale"),
            Err(Error::Range { .. }) => Some("range"),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(said, expected, "{:?}", self.id);
        outcome.ok()
    }

    fn leave(&mut self) {
        if self.is == Is::Released && self.leases() == 0 {
            self.is = Is::Gone;
        }
    }
}

fn step(op: Op, backend: &Arc<HostBackend>, manager: &MemoryManager<DeviceMemory>, known: &mut Vec<Known>) {
    if let Op::Register(len) = op {
        let elements: Vec<u32> = (known.len() as u32 * 100..).take(len).collect();
        let id = manager.register(buffer(backend, &elements)).expect("room");
        known.push(Known { id, elements, is: Is::Open, shared: Vec::new(), alone: None });
        return;
    }
    if let Op::Clear = op {
        let open = known.iter_mut().filter(|one| one.is == Is::Open);
        let released = open.map(|one| one.is = Is::Released).count();
        known.iter_mut().for_each(Known::leave);
        assert_eq!(manager.clear(), released as u64);
        return;
    }
    let (Op::Lease(which)
    | Op::LeaseMut(which)
    | Op::GiveBack(which)
    | Op::Write(which, _)
    | Op::Release(which)
    | Op::Take(which)
    | Op::Resolve(which, _)
    | Op::HandOver(which)
    | Op::Forge(which, _)) = op
    else {
        return;
    };
    let Some(place) = known.len().checked_sub(1 + which) else { return };
    let one = &mut known[place];
    let of = |len: usize| BufferReference::new::<u32>(manager.number(), one.id.bits(), 0..len as u64);
    match op {
        Op::Lease(_) => {
            if let Some(lease) = one.judge(manager.lease(one.id), one.refuses(false)) {
                assert_eq!(lease.view().to_vec().expect("a copy"), one.elements);
                one.shared.push(lease.into_owned());
            }
        }
        Op::LeaseMut(_) => {
            if let Some(lease) = one.judge(manager.lease_mut(one.id), one.refuses(true)) {
                assert_eq!(lease.view().to_vec().expect("a copy"), one.elements);
                one.alone = Some(lease.into_owned());
            }
        }
        Op::GiveBack(_) => {
            if one.shared.pop().is_none() {
                one.alone = None;
            }
            one.leave();
        }
        Op::Write(_, value) => {
            if let Some(lease) = &mut one.alone {
                one.elements.fill(value);
                lease.view_mut().copy_from(&one.elements).expect("as many");
            }
        }
        Op::Release(_) => {
            let expected = one.refuses(false).filter(|said| *said != "busy");
            if let Some(leases) = one.judge(manager.free(one.id), expected) {
                assert_eq!(leases, one.leases());
                one.is = Is::Released;
                one.leave();
            }
        }
        Op::Take(_) => {
            if let Some(taken) = one.judge(manager.take(one.id), one.refuses(true)) {
                assert_eq!(taken.to_vec().expect("a copy"), one.elements);
                one.is = Is::Gone;
            }
        }
        Op::Resolve(_, len) => {
            let expected = one.refuses(false).or((len > one.elements.len()).then_some("range"));
            if let Some((lease, part)) = one.judge(manager.resolve::<u32>(&of(len)), expected) {
                assert_eq!(lease.slice(part).expect("within").to_vec().expect("a copy"), one.elements[..len]);
            }
        }
        Op::HandOver(_) => {
            let message = of(one.elements.len()).handed_over();
            if let Some((lease, _)) = one.judge(manager.resolve::<u32>(&message), one.refuses(false)) {
                one.shared.push(lease.into_owned());
                one.is = Is::Released;
            }
        }
        Op::Forge(_, bits) => {
            let id = if bits % 2 == 0 { one.id.bits() ^ (bits << 32) } else { bits };
            let is_real = known.iter().any(|one| one.id.bits() == id && one.is == Is::Open && one.alone.is_none());
            let message = BufferReference::new::<u32>(manager.number(), id, 0..0);
            assert_eq!(manager.resolve::<u32>(&message).is_ok(), is_real, "{id:#x}");
        }
        Op::Register(_) | Op::Clear => {}
    }
}

fn check(backend: &HostBackend, manager: &MemoryManager<DeviceMemory>, known: &[Known]) {
    let statistics = manager.statistics();
    let are = |is: fn(Is) -> bool| known.iter().filter(|one| is(one.is)).count() as u64;
    assert_eq!((statistics.registered, statistics.live()), (known.len() as u64, are(|is| is == Is::Open)));
    assert_eq!((statistics.kept(), statistics.freed), (are(|is| is == Is::Released), are(|is| is == Is::Gone)));
    assert_eq!(statistics.leases, known.iter().map(|one| u64::from(one.leases())).sum::<u64>());
    let there = || known.iter().filter(|one| one.is != Is::Gone);
    assert_eq!(statistics.used_bytes, there().map(|one| 4 * one.elements.len() as u64).sum::<u64>());
    assert_eq!(blocks(backend), there().filter(|one| !one.elements.is_empty()).count() as u64);
    for one in known {
        assert_eq!(manager.contains(one.id), one.is == Is::Open);
        for lease in &one.shared {
            assert_eq!((lease.id(), lease.view().to_vec().expect("a copy")), (one.id, one.elements.clone()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_follow_the_model(ops in prop::collection::vec(op(), 0..80)) {
        let backend = backend();
        let manager = manager(&backend);
        let mut known = Vec::new();
        for &op in &ops {
            step(op, &backend, &manager, &mut known);
            check(&backend, &manager, &known);
        }
        drop(manager);
        drop(known);
        prop_assert_eq!(blocks(&backend), 0);
    }
}
