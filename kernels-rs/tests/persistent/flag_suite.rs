//! The tests of each kind of ring whose messages carry flags.

macro_rules! suite {
    ($kind:ident, $kernel:literal, $persistent:ident, $send:ident, batches $batches:expr, warps $warps:expr) => {
        pub struct Rings<'a> {
            pub sender: Producer<'a, Echo, Host>,
            pub receiver: Consumer<'a, Echo, Host>,
        }

        const fn own(shape: Shape) -> OwnRings {
            OwnRings { kind: RingFlags::$kind, shape }
        }

        pub fn memory(shape: Shape) -> Bytes {
            own(shape).memory()
        }

        impl<'a> Rings<'a> {
            pub fn new(memory: &'a Bytes, shape: Shape, rig: &Rig<'_, Echo, Echo>) -> Self {
                let [(input, input_len), (output, output_len)] = own(shape).format(memory, rig);
                // SAFETY: as long as its layout; the kernel is the peer.
                let sender = unsafe { Producer::from_raw(input, input_len) }.expect("just formatted");
                // SAFETY: as long as its layout; the kernel is the only producer.
                let receiver = unsafe { Consumer::from_raw(output, output_len) }.expect("just formatted");
                Self { sender, receiver }
            }

            fn converse(&mut self, count: u64, burst: u64) {
                let mut sent = 0;
                for answered in 0..count {
                    until("there is an answer", || {
                        sent += $send(&mut self.sender, sent..count.min(sent + burst));
                        self.receiver.pop().is_ok_and(|answer| answer == message(answered))
                    });
                }
            }
        }

        #[test]
        fn each_batch_size_answers_messages_in_order() {
            for batch in $batches {
                for (capacity, start) in [(1, 0), (2, u64::MAX), (64, 0), (256, u64::MAX - 100)] {
                    let shape = Shape { batch, input: capacity, output: capacity, start };
                    let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
                    let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
                    let mut rings = Rings::new(&of_rings, shape, &rig);
                    let device = Device::new([of_rig.range(), of_rings.range()]);
                    rig.run_image($kernel, &[], &device, |rig| {
                        rig.command(Command::ACTIVATE);
                        rings.converse(300, 7);
                        rig.command(Command::DRAIN);
                    });
                    assert_eq!(rig.end(), (State::Terminated, 0, None));
                    assert_eq!((rig.snapshot().processed, rings.receiver.pop()), (300, Err(PopError::Empty)));
                }
            }
        }

        #[test]
        fn a_warp_answers_messages_in_order() {
            for (batch, capacity, burst) in $warps {
                let shape = Shape { batch, input: capacity, output: capacity, start: u64::MAX - 9 };
                let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
                let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
                let mut rings = Rings::new(&of_rings, shape, &rig);
                let device = Device::new([of_rig.range(), of_rings.range()]);
                // SAFETY: all outlive it; the only peer.
                let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| unsafe {
                    $persistent(machine, lanes, launch, &mut echo::Handle::<true>)
                };
                let panicked = with_a_warp(&mut rig, &device, kernel, |rig| {
                    rig.command(Command::ACTIVATE);
                    rings.converse(200, burst);
                    rig.command(Command::DRAIN);
                    rig.until_state(State::Terminated);
                });
                assert_eq!((panicked, rig.end(), rings.receiver.pop()), (0, (State::Terminated, 0, None), Err(PopError::Empty)));
            }
        }

        #[test]
        fn a_drain_completes_with_a_small_output_ring() {
            let shape = Shape { batch: 8, input: 64, output: 2, start: 0 };
            let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
            let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
            let mut rings = Rings::new(&of_rings, shape, &rig);
            let device = Device::new([of_rig.range(), of_rings.range()]);
            (0..20).for_each(|id| rings.sender.push(message(id)).expect("room for twenty"));
            rig.run_image($kernel, &[], &device, |rig| {
                rig.command(Command::DRAIN);
                rig.until_beats(50);
                (0..20).for_each(|id| until("there is an answer", || rings.receiver.pop().is_ok_and(|answer| answer == message(id))));
            });
            assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 20));
        }

        #[test]
        fn another_ring_kind_is_a_ring_fault() {
            let shape = Shape::default();
            let memory = shape.memory::<Echo, Echo>();
            let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
            rig.run_image($kernel, &[], &Device::new([memory.range()]), |_| {});
            assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Ring)));
        }
    };
}

pub(crate) use suite;
