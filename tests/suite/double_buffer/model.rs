use std::collections::VecDeque;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Verb};

use super::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Start(bool),
    Next,
    Latest,
    Release,
    Hold,
    LetGo,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop::bool::weighted(0.2).prop_map(Op::Start),
        3 => Just(Op::Next),
        3 => Just(Op::Latest),
        1 => Just(Op::Release),
        1 => Just(Op::Hold),
        2 => Just(Op::LetGo),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Unread {
    sequence: u64,
    is_lost: bool,
    is_in_flight: bool,
}

#[derive(Debug)]
struct Model {
    slots: usize,
    policy: Policy,
    last: u64,
    unread: VecDeque<Unread>,
    held: Option<u64>,
    is_held_up: bool,
}

impl Model {
    fn start(&mut self, is_lost: bool) -> Option<u64> {
        if self.unread.len() + usize::from(self.held.is_some()) == self.slots {
            let oldest = self.unread.iter().position(|unread| !unread.is_in_flight)?;
            if self.policy != Policy::Newest || self.newest() == Some(oldest) {
                return None;
            }
            self.unread.remove(oldest);
        }
        self.last += 1;
        self.unread.push_back(Unread { sequence: self.last, is_lost, is_in_flight: self.is_held_up });
        Some(self.last)
    }

    fn newest(&self) -> Option<usize> {
        self.unread.iter().rposition(|unread| !unread.is_in_flight && !unread.is_lost)
    }

    fn next(&mut self) -> Result<Option<u64>, u64> {
        self.held = None;
        if self.unread.front().is_none_or(|unread| unread.is_in_flight) {
            return Ok(None);
        }
        let Unread { sequence, is_lost, .. } = self.unread.pop_front().expect("just seen");
        if is_lost {
            return Err(sequence);
        }
        self.held = Some(sequence);
        Ok(self.held)
    }

    fn latest(&mut self) -> Result<Option<u64>, u64> {
        if let Some(lost) = self.unread.iter().position(|unread| unread.is_lost && !unread.is_in_flight) {
            return Err(self.unread.remove(lost).expect("just seen").sequence);
        }
        if let Some(newest) = self.newest() {
            self.unread.drain(..newest);
            self.held = self.unread.pop_front().map(|unread| unread.sequence);
        }
        Ok(self.held)
    }

    fn let_go(&mut self) {
        self.is_held_up = false;
        self.unread.iter_mut().for_each(|unread| unread.is_in_flight = false);
    }
}

fn seen(frame: Result<Option<Frame<'_, u32>>, Failed>) -> Result<Option<u64>, u64> {
    match frame {
        Err(Failed { sequence, error }) => {
            assert!(matches!(error, Error::Injected { call: "copy", .. }), "{error}");
            Err(sequence)
        }
        frame => Ok(whole(frame).map(|(sequence, value)| {
            assert_eq!(sequence, u64::from(value));
            sequence
        })),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reader_sees_the_frames_of_a_bounded_queue(
        slots in 1..5_usize,
        policy in prop_oneof![Just(Policy::Newest), Just(EVERY)],
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let mut rig = Rig::on(HostBackend::builder().faults(Faults::new()), slots, policy);
        let mut model = Model { slots, policy, last: 0, unread: VecDeque::new(), held: None, is_held_up: false };
        let mut held = None;
        for &op in &ops {
            match op {
                Op::Start(fails) => {
                    if fails {
                        rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
                    }
                    let started = match rig.start(model.last as u32 + 1) {
                        Ok(sequence) => Some(sequence),
                        Err(Error::Busy { .. }) => None,
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    };
                    rig.backend.set_faults(&Faults::new());
                    prop_assert_eq!(started, model.start(fails));
                    if held.is_none() {
                        rig.landed();
                    }
                }
                Op::Next => prop_assert_eq!(seen(rig.reader.next(Duration::ZERO)), model.next()),
                Op::Latest => prop_assert_eq!(seen(rig.reader.latest()), model.latest()),
                Op::Release => {
                    rig.reader.release();
                    model.held = None;
                }
                Op::Hold => {
                    if held.is_none() {
                        held = Some(Held::new(&rig.backend, &rig.work));
                        model.is_held_up = true;
                    }
                }
                Op::LetGo => {
                    drop(held.take());
                    rig.landed();
                    model.let_go();
                }
            }
        }
        drop(held);
    }
}
