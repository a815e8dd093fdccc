use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::manager::{AnyBufferId, BufferId, Growth};
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::{Manager, plain};
use crate::rig::leak_checked::Clean;

const LIMIT: u64 = 40_000;
const MOST: u64 = 12_000;

#[derive(Clone, Debug)]
enum Op {
    Create { name: u8, len: u16 },
    Free { name: u8 },
    Resize { name: u8, len: u16, on: bool },
    Group { names: Vec<u8>, len: u16, on: bool },
    Extend { name: u8, count: u16 },
    Append { name: u8, count: u16 },
    Shrink { name: u8 },
    Write { name: u8, number: u32 },
    Cleanup,
    Fault { verb: u8, nth: u8, when_executed: bool },
}

fn ops() -> impl Strategy<Value = Op> {
    let (name, len) = (|| 0..6_u8, || 0..2500_u16);
    prop_oneof![
        4 => (name(), len()).prop_map(|(name, len)| Op::Create { name, len }),
        1 => name().prop_map(|name| Op::Free { name }),
        3 => (name(), len(), any::<bool>()).prop_map(|(name, len, on)| Op::Resize { name, len, on }),
        3 => (prop::collection::vec(name(), 0..5), len(), any::<bool>()).prop_map(|(names, len, on)| Op::Group { names, len, on }),
        2 => (name(), 0..500_u16).prop_map(|(name, count)| Op::Extend { name, count }),
        1 => (name(), 0..500_u16).prop_map(|(name, count)| Op::Append { name, count }),
        2 => name().prop_map(|name| Op::Shrink { name }),
        3 => (name(), any::<u32>()).prop_map(|(name, number)| Op::Write { name, number }),
        1 => Just(Op::Cleanup),
        2 => (any::<u8>(), 1..6_u8, any::<bool>()).prop_map(|(verb, nth, when_executed)| Op::Fault { verb, nth, when_executed }),
    ]
}

struct Twin {
    manager: Manager,
    stream: Stream,
    buffers: BTreeMap<u8, (BufferId<u32>, Vec<u32>, usize)>,
    is_faulty: bool,
    backend: Clean,
}

fn name(name: u8) -> String {
    ["a", "b", "q", "aa", "", "positions"][usize::from(name)].into()
}

impl Twin {
    fn new() -> Self {
        let backend = Clean::build(HostBackend::builder().device_memory(LIMIT * 2));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let manager = Manager::with_limit(Device::new(&backend, 0), LIMIT);
        Self { backend, manager, stream, buffers: BTreeMap::new(), is_faulty: false }
    }

    fn grown(held: usize, needed: usize) -> Option<usize> {
        let most = MOST as usize / 4;
        match needed {
            _ if needed > most => None,
            _ if needed <= held => Some(held),
            _ => Some((held * 3).div_ceil(2).max(needed).min(most)),
        }
    }

    fn bytes(&self) -> u64 {
        self.buffers.values().map(|(_, _, capacity)| *capacity as u64 * 4).sum()
    }

    fn judge<T>(&mut self, outcome: Result<T, Error>, fits: bool, fresh: usize) -> Option<T> {
        let fits_in = self.bytes() + fresh as u64 * 4 <= LIMIT;
        match outcome {
            Ok(value) => {
                assert!(fits && fits_in, "what does not fit was allowed");
                Some(value)
            }
            Err(Error::Size { .. }) => {
                assert!(!fits, "{fresh}");
                None
            }
            Err(Error::Limit { used, .. }) => {
                assert!(!fits_in && used == self.bytes());
                None
            }
            Err(Error::Injected { .. } | Error::OutOfMemory { .. }) => {
                assert!(self.is_faulty, "nothing was to fail");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Create { name: which, len } => {
                let len = usize::from(len);
                let config = plain().with_bytes(0, MOST).with_growth(Growth::new(3, 2));
                let outcome = self.manager.create::<u32>(&name(which), len, config);
                if self.buffers.contains_key(&which) {
                    assert!(matches!(outcome, Err(Error::AlreadyExists { .. })) || len > MOST as usize / 4);
                    return;
                }
                let Some(id) = self.judge(outcome, Self::grown(0, len).is_some(), len) else { return };
                self.buffers.insert(which, (id, vec![0; len], len));
                // A fresh block has unspecified contents.
                while !self.write(which, u32::from(which)) {}
            }
            Op::Free { name } => {
                if let Some((id, ..)) = self.buffers.remove(&name) {
                    let freed = self.manager.free(id);
                    assert!(matches!(freed, Ok(0)) || self.is_faulty);
                    assert!(!self.manager.contains(id));
                }
            }
            Op::Resize { name, len, on } => self.group(&[name], usize::from(len), on),
            Op::Group { ref names, len, on } => self.group(names, usize::from(len), on),
            Op::Extend { name, count } => self.extend(name, usize::from(count), false),
            Op::Append { name, count } => self.extend(name, usize::from(count), true),
            Op::Shrink { name } => {
                let Some((id, live, capacity)) = self.buffers.get(&name).cloned() else { return };
                let outcome = self.manager.lease_mut(id).and_then(|mut lease| lease.shrink_to_fit());
                let fresh = if live.len() < capacity { live.len() } else { 0 };
                if let Some(freed) = self.judge(outcome, true, fresh) {
                    assert_eq!(freed, (capacity - live.len()) as u64 * 4);
                    self.buffers.insert(name, (id, live.clone(), live.len()));
                }
            }
            Op::Write { name, number } => {
                self.write(name, number);
            }
            Op::Cleanup => {
                for freed in self.manager.cleanup(std::time::Duration::ZERO, |buffer| buffer.len == 0) {
                    let which = *self.buffers.iter().find(|(which, _)| name(**which) == *freed.name).expect("it was there").0;
                    let (_, live, capacity) = self.buffers.remove(&which).expect("it was there");
                    assert_eq!((live.len(), freed.capacity_bytes()), (0, capacity as u64 * 4));
                }
            }
            Op::Fault { verb, nth, when_executed } => {
                let verbs = [Verb::Allocate, Verb::Copy, Verb::Fill, Verb::Free, Verb::Wait];
                let fault = Fault::nth(nth.into());
                let fault = if when_executed { fault.when_executed() } else { fault };
                self.backend.set_faults(&Faults::new().on(verbs[usize::from(verb) % verbs.len()], fault));
                self.is_faulty = true;
            }
        }
    }

    fn write(&mut self, name: u8, number: u32) -> bool {
        let Some((id, mut live, capacity)) = self.buffers.get(&name).cloned() else { return true };
        let numbers: Vec<u32> = (number..=u32::MAX).chain(0..).take(live.len()).collect();
        let outcome = self.manager.lease_mut(id).and_then(|mut lease| lease.view_mut().copy_from(&numbers));
        let done = self.judge(outcome, true, 0).is_some();
        if done {
            live = numbers;
        }
        self.buffers.insert(name, (id, live, capacity));
        done
    }

    fn group(&mut self, names: &[u8], len: usize, on: bool) {
        let chosen: Vec<u8> = names.iter().copied().filter(|name| self.buffers.contains_key(name)).collect();
        let group: Vec<(AnyBufferId, usize)> = chosen.iter().map(|name| (self.buffers[name].0.into(), len)).collect();
        let outcome = match on {
            true => self.manager.resize_group_on(group, &self.stream),
            false => self.manager.resize_group(group),
        };
        let mut once = chosen.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() < chosen.len() {
            assert!(matches!(outcome, Err(Error::Busy { .. })), "{outcome:?}");
            return;
        }
        let grown: Vec<Option<usize>> = chosen.iter().map(|name| Self::grown(self.buffers[name].2, len)).collect();
        let fresh = chosen.iter().zip(&grown).filter(|(name, grown)| grown.is_some_and(|grown| grown != self.buffers[name].2));
        let fresh = fresh.filter_map(|(_, grown)| *grown).sum();
        if self.judge(outcome, grown.iter().all(Option::is_some), fresh).is_none() {
            return;
        }
        for (name, grown) in chosen.into_iter().zip(grown) {
            let (id, mut live, _) = self.buffers[&name].clone();
            let had = live.len();
            live.resize(len, 0);
            self.buffers.insert(name, (id, live, grown.expect("judged")));
            if had < len {
                while !self.write(name, len as u32) {}
            }
        }
    }

    fn extend(&mut self, name: u8, count: usize, one_by_one: bool) {
        let Some((id, mut live, capacity)) = self.buffers.get(&name).cloned() else { return };
        let numbers: Vec<u32> = (7..).take(count).collect();
        let outcome = self.manager.lease_mut(id).and_then(|mut lease| match one_by_one {
            true => lease.extend(numbers.iter().copied()),
            false => lease.extend_from_slice(&numbers),
        });
        let grown = Self::grown(capacity, live.len() + count);
        let fresh = grown.filter(|&grown| grown != capacity).unwrap_or(0);
        if self.judge(outcome, grown.is_some(), fresh).is_some() {
            live.extend(numbers);
            self.buffers.insert(name, (id, live, grown.expect("judged")));
        } else if let Ok(lease) = self.manager.lease(id) {
            self.buffers.insert(name, (id, live, lease.capacity()));
        }
    }

    fn check(&mut self) {
        self.backend.set_faults(&Faults::new());
        let figures = self.manager.statistics();
        assert_eq!((figures.buffers.len(), figures.used_bytes), (self.buffers.len(), self.bytes()));
        assert_eq!(self.backend.counters().device_live.bytes, self.bytes());
        assert!(figures.peak_bytes <= LIMIT);
        for (which, (id, live, capacity)) in &self.buffers {
            assert_eq!(self.manager.find::<u32>(&name(*which)).expect("it is there"), *id);
            let lease = self.manager.lease(*id).expect("nobody else");
            assert_eq!((lease.len(), lease.capacity()), (live.len(), *capacity), "{which}");
            assert_eq!(lease.to_vec().expect("a copy"), *live, "{which}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_follow_a_map_of_vectors(ops in prop::collection::vec(ops(), 1..60)) {
        let mut twin = Twin::new();
        for op in &ops {
            twin.step(op);
            if !matches!(op, Op::Fault { .. }) {
                twin.check();
                twin.is_faulty = false;
            }
        }
        let backend = Arc::clone(&twin.backend);
        drop(twin);
        prop_assert_eq!(backend.counters().device_live.bytes, 0);
    }
}
