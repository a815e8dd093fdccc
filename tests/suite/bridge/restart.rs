use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::channel::{Channel, Options};
use ringmem::control::Command;
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Single, persistent};

use super::*;

static DEADLY: AtomicU64 = AtomicU64::new(0);

unsafe fn dies(host: &dyn KernelHost, arguments: &[u64]) {
    struct Dies;
    impl<M: Machine, L: Lanes> Handler<M, L> for Dies {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &L, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            for index in 0..batch.len() {
                // SAFETY: below the length; one lane.
                unsafe {
                    batch.exchange(index, |message, answer| {
                        let number = message.words[0];
                        assert!(number == 0 || DEADLY.compare_exchange(number, 0, Relaxed, Relaxed).is_err(), "a kernel of the test dies");
                        *answer = *message;
                    });
                }
            }
            0
        }
    }
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], abi: ABI.hash };
    // SAFETY: a channel launches this kernel: control block, rings and telemetry are live until it returns, with one host side and no other
    // kernel.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut Dies) }
}

fn channel(backend: &Arc<HostBackend>, image: &Image, options: &Options<'_>) -> Channel<Echo, Echo> {
    let module = Module::load(backend, image, &ABI).expect("our ABI");
    // SAFETY: these kernels take no own arguments.
    unsafe { Channel::open_raw(backend, 0, &module, options) }.expect("a channel")
}

/// Each strategy with its default placement, and each that copies with rings in device memory.
fn ways() -> impl Iterator<Item = (TransferStrategy, Option<[Placement; 2]>)> {
    let copied = STRATEGIES.into_iter().filter(|strategy| *strategy != TransferStrategy::Unified);
    STRATEGIES.map(|strategy| (strategy, None)).into_iter().chain(copied.map(|strategy| (strategy, Some([Placement::DEVICE; 2]))))
}

#[test]
fn a_restarted_kernel_loses_and_repeats_no_message() {
    let image = Image { host: &[Entry { name: "dies", arguments: 4, run: dies }], ..IMAGE };
    for (strategy, placement) in ways() {
        let backend = backend();
        let usual =
            Options { strategy: Some(strategy), placement, input_capacity: 16, output_capacity: 8, batch: 4, ..Options::new("dies") };
        let mut channel = channel(&backend, &image, &Options { start: u64::MAX - 50, ..usual });
        let (mut sent, mut received, mut deaths) = (1, 1, 0);
        DEADLY.store(30, Relaxed);
        eventually("all are answered", || {
            sent += u64::from(sent < 200 && channel.try_send(message(sent)).is_ok());
            while let Ok(answer) = channel.try_recv() {
                assert_eq!(answer, message(received), "{strategy:?}");
                received += 1;
            }
            if channel.check().is_err() {
                // SAFETY: this kernel takes no own arguments.
                eventually("it is launched again", || unsafe { channel.restart_raw() }.is_ok());
                deaths += 1;
                DEADLY.store(30 + 40 * deaths, Relaxed);
            }
            received == 200
        });
        assert!(deaths >= 4, "{strategy:?}: {deaths}");
        DEADLY.store(0, Relaxed);
        channel.close().expect("it leaves");
        assert_eq!(backend.counters().kernel_panics, deaths);
    }
}

#[test]
fn input_waiting_counts_messages_the_kernel_has_not_taken() {
    for (strategy, placement) in ways() {
        let backend = backend();
        let mut channel = channel(&backend, &IMAGE, &Options { strategy: Some(strategy), placement, ..Options::new("echo") });
        channel.command(Command::PAUSE).expect("it is acted on");
        for number in 0..10 {
            channel.try_send(message(number)).expect("room");
        }
        for _ in 0..100 {
            channel.check().expect("it runs");
            assert_eq!(channel.input_waiting().expect("no lie"), 10, "{strategy:?}: wherever they are");
        }
        channel.command(Command::ACTIVATE).expect("it is acted on");
        eventually("it has taken them", || {
            let waiting = channel.input_waiting().expect("no lie");
            assert!(waiting <= 10, "{strategy:?}: {waiting}");
            waiting == 0
        });
    }
}
