use std::sync::Arc;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::kernel::DevicePointer;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Error, Layout, Machine};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, SharedLayout, WarpLanes, kernels, persistent};

use crate::eventually;

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
struct Number {
    value: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
struct Sum {
    count: u64,
    total: u64,
}

/// Answers with the number of lanes and the sum over all of a message's multiples; refuses, on some lanes, the number 7.
struct Shares;

impl<M: Machine, L: Lanes> Handler<M, L> for Shares {
    type Input = Number;
    type Output = Sum;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Number, Sum, M>) -> u64 {
        let mut refused = 0;
        for index in 0..batch.len() {
            // SAFETY: below the length.
            let number = unsafe { batch.message(index, |number| number.value) };
            let total = lanes.sum(number * u64::from(lanes.lane() + 1));
            let last = lanes.broadcast(if lanes.lane() == 0 { total } else { 0 });
            assert!(total == last && !lanes.barrier_and(lanes.lane() + 1 < lanes.width()) && lanes.barrier_and(true));
            if lanes.lane() == 0 {
                // SAFETY: below the length; only lane 0 exchanges.
                unsafe { batch.exchange(index, |_, sum| *sum = Sum { count: lanes.width().into(), total }) };
            }
            refused += u64::from(number == 7 && lanes.lane().is_multiple_of(40));
        }
        refused
    }
}

/// As many bytes as two lines.
#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 3)]
struct Prime {
    value: u64,
    /// Those before it.
    others: [u64; 15],
}

#[derive(Default)]
struct Search {
    next: u64,
    until: u64,
    last: [u64; 15],
}

struct Total(Sum);

impl<M: Machine, L: Lanes> Handler<M, L> for Total {
    type Input = Number;
    type Output = Sum;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Number, Sum, M>) -> u64 {
        for index in 0..batch.len() {
            // SAFETY: below the length.
            let number = unsafe { batch.message(index, |number| *number) };
            self.0 = Sum { count: self.0.count + 1, total: self.0.total + number.value };
            if lanes.lane() == 0 {
                // SAFETY: below the length; only lane 0 exchanges.
                unsafe { batch.exchange(index, |_, sum| *sum = self.0) };
            }
        }
        0
    }
}

struct Offset(u64);

impl<M: Machine, L: Lanes> Handler<M, L> for Offset {
    type Input = Number;
    type Output = Number;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Number, Number, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            // SAFETY: below the length; the lanes take turns.
            unsafe { batch.exchange(index, |now, then| then.value = now.value + self.0) };
            index += u64::from(lanes.width());
        }
        0
    }
}

/// # Safety
///
/// As [`persistent`].
unsafe fn serve_offset<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, offset: u64) {
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
    // returns, accessed by their protocols only, with one host side and no other kernel.
    unsafe { persistent(machine, lanes, launch, &mut Offset(offset)) }
}

unsafe fn scale_all<M: Machine, L: Lanes>(machine: &M, lanes: &L, data: DevicePointer<f32>, count: u64, by: u64) {
    let Some(first) = machine.at(data.address(), count * 4, 4) else { return };
    let mut index = lanes.group() * u64::from(lanes.width()) + u64::from(lanes.lane());
    while index < count {
        // SAFETY: within the buffer; all groups' lanes take turns.
        let element = unsafe { first.cast::<f32>().add(index as usize).as_mut() };
        *element *= by as f32;
        index += lanes.groups() * u64::from(lanes.width());
    }
}

/// Every lane panics.
const ALL: u64 = 99;

/// Sixteen words for each lane: what it learns of the others.
///
/// # Safety
///
/// There are as many words, which nothing else accesses.
unsafe fn write_lanes<M: Machine, L: WarpLanes>(machine: &M, lanes: &L, words: DevicePointer<u64>, panicking: u64) {
    let number = lanes.group() * u64::from(lanes.width()) + u64::from(lanes.lane());
    let Some(first) = machine.at(words.address() + 128 * number, 128, 8) else { return };
    let write = |at, value| {
        // SAFETY: of this lane's 16.
        unsafe { first.cast::<u64>().add(at).write(value) };
    };
    write(0, u64::from(lanes.lane()));
    write(1, lanes.sum(u64::from(lanes.lane())));
    write(2, lanes.broadcast(100 + u64::from(lanes.lane())));
    write(3, u64::from(lanes.ballot(lanes.lane().is_multiple_of(3))));
    if u64::from(lanes.lane()) == panicking || panicking == ALL {
        std::panic::panic_any(Bomb);
    }
    if lanes.lane() == 31 {
        return;
    }
    write(4, u64::from(lanes.ballot(true)));
    lanes.barrier();
    // SAFETY: the first lane's first word, written before the barrier.
    write(5, unsafe {
        machine.at(words.address() + 128 * (number - u64::from(lanes.lane())), 8, 8).map_or(0, |word| word.cast::<u64>().read())
    });
}

kernels! {
    layouts: [Sum; 2];

    persistent fn double(now: &Number, then: &mut Number) {
        then.value = 2 * now.value;
    }

    flagged fn double_flagged(now: &Number, then: &mut Number) {
        double(now, then);
    }

    grouped fn double_grouped(now: &Number, then: &mut Number) {
        double(now, then);
    }

    grouped fn running_grouped(sum: &mut Sum, now: &Number, then: &mut Sum) {
        running(sum, now, then);
    }

    grouped fn total_grouped(Number) -> Sum = Total(Sum { count: 0, total: 0 });

    block fn double_block(now: &Number, then: &mut Number) {
        double(now, then);
    }

    block fn total_block(Number) -> Sum = Total(Sum { count: 0, total: 0 });

    block fn shares(Number) -> Sum = Shares;

    persistent fn running(sum: &mut Sum, now: &Number, then: &mut Sum) {
        *sum = Sum { count: sum.count + 1, total: sum.total + now.value };
        *then = *sum;
    }

    persistent fn total(Number) -> Sum = Total(Sum { count: 0, total: 0 });

    /// Sends the primes below the last number.
    persistent fn primes(search: &mut Search, now: Option<&Number>) -> Option<Prime> {
        if let Some(until) = now {
            search.until = until.value;
        }
        while search.next < search.until {
            let value = search.next;
            search.next += 1;
            if value > 1 && (2..value).take_while(|divisor| divisor * divisor <= value).all(|divisor| !value.is_multiple_of(divisor)) {
                let prime = Prime { value, others: search.last };
                search.last.copy_within(1.., 0);
                search.last[14] = value;
                return Some(prime);
            }
        }
        None
    }

    #[deprecated(note = "it panics")]
    persistent fn last_words(said: &mut u64, now: Option<&Number>) -> Option<Number> {
        *said += 1;
        assert!(now.is_none() && *said < 20, "its last word");
        Some(Number { value: *said })
    }

    persistent fn fragile(now: &Number, then: &mut Number) {
        assert!(now.value != 113, "unlucky");
        *then = *now;
    }

    block fn fragile_block(now: &Number, then: &mut Number) {
        fragile(now, then);
    }

    unsafe persistent fn offset(offset: u64) = serve_offset;

    unsafe grid fn scale(data: DevicePointer<f32>, count: u64, by: u64) = scale_all;

    unsafe grid fn lanes(words: DevicePointer<u64>, panicking: u64) = write_lanes;
}

/// Those whose warps are one thread, and 32.
fn backends() -> [Arc<HostBackend>; 2] {
    [false, true].map(|threads| HostBackend::builder().device_memory(1 << 20).thread_per_lane(threads).build().expect("a backend"))
}

#[test]
fn a_message_function_is_a_kernel_and_a_plain_function() {
    let mut answer = Number { value: 0 };
    double(&Number { value: 21 }, &mut answer);
    assert_eq!(answer.value, 42);
    for (kernel, backend) in [DOUBLE, DOUBLE_FLAGGED].into_iter().flat_map(|kernel| backends().map(|backend| (kernel, backend))) {
        let mut channel = Channel::open(&backend, 0, kernel).expect("a channel");
        for value in 0..100 {
            channel.send(Number { value }).expect("room");
        }
        assert!((0..100).all(|value| channel.recv().expect("an answer").value == 2 * value), "{kernel:?}");
    }
}

#[test]
fn a_kernel_keeps_state_between_messages() {
    for (kernel, backend) in [TOTAL, RUNNING].into_iter().flat_map(|kernel| backends().map(|backend| (kernel, backend))) {
        let mut channel = Channel::open(&backend, 0, kernel).expect("a channel");
        for value in 1..=100 {
            channel.send(Number { value }).expect("room");
        }
        let last = channel.iter().take(100).last().expect("answers");
        assert_eq!(last, Sum { count: 100, total: 5050 }, "{kernel:?}");
    }
}

#[test]
fn a_kernel_sends_messages_of_its_own() {
    let is_prime = |value: &u64| *value > 1 && (2..*value).all(|divisor| !value.is_multiple_of(divisor));
    let expected: Vec<u64> = (0..2000).filter(is_prime).collect();
    let mut search = Search::default();
    assert_eq!(primes(&mut search, None), None, "a plain function");
    assert_eq!(primes(&mut search, Some(&Number { value: 3 })).map(|prime| prime.value), Some(2));
    for backend in backends() {
        let mut channel = Channel::builder(PRIMES).output_capacity(16).batch(3).open(&backend, 0).expect("a channel");
        let mut found = Vec::new();
        for value in [100, 100, 1000, 2000] {
            channel.send(Number { value }).expect("room");
            let count = expected.iter().take_while(|prime| **prime < value).count();
            while found.len() < count {
                let prime = channel.recv().expect("a prime");
                assert!(found.iter().rev().zip(prime.others.iter().rev()).all(|(a, b)| a == b), "{prime:?} after {found:?}");
                found.push(prime.value);
            }
        }
        assert_eq!(found, expected);
        assert_eq!(channel.close().expect("it ends").control.processed, 4);
    }
}

#[test]
fn a_panic_without_a_message_ends_the_kernel() {
    for backend in backends() {
        #[allow(deprecated, reason = "its attribute is tried")]
        let mut channel = Channel::builder(LAST_WORDS).output_capacity(4).batch(2).open(&backend, 0).expect("a channel");
        let mut heard = Vec::new();
        let error = loop {
            match channel.recv() {
                Ok(word) => heard.push(word.value),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("panic"), "{error}");
        assert!((18..20).contains(&heard.len()) && heard.iter().copied().eq(1..=heard.len() as u64), "{heard:?}");
    }
}

#[test]
fn groups_answer_in_order_each_with_its_own_state() {
    for backend in backends() {
        let mut channel = Channel::builder(DOUBLE_GROUPED).groups(3).batch(4).open(&backend, 0).expect("a channel");
        for value in 0..500 {
            channel.send(Number { value }).expect("room");
        }
        assert!((0..500).all(|value| channel.recv().expect("an answer").value == 2 * value));
        assert_eq!(channel.close().expect("it ends").control.processed, 500);

        for kernel in [RUNNING_GROUPED, TOTAL_GROUPED] {
            let mut channel = Channel::builder(kernel).groups(3).batch(4).open(&backend, 0).expect("a channel");
            for value in 1..=100 {
                channel.send(Number { value }).expect("room");
            }
            let answers: Vec<Sum> = channel.iter().take(100).collect();
            // Each group counts what it has answered: as often as one of them has answered n, the n-th of its messages comes once.
            let firsts = answers.iter().filter(|sum| sum.count == 1).count() as u64;
            let most = answers.iter().map(|sum| sum.count).max().expect("answers");
            assert!((1..=3).contains(&firsts) && most <= 100 && most * firsts >= 100, "{firsts} states, {most} messages in one");
        }
    }
}

#[test]
fn a_kernel_with_arguments_is_launched_with_their_types() {
    for backend in backends() {
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our layouts");
        let options = ringmem::channel::Options { arguments: &[1000], ..ringmem::channel::Options::new(OFFSET.name()) };
        // SAFETY: its argument is a number.
        let mut channel = unsafe { Channel::<Number, Number>::open_raw(&backend, 0, &module, &options) }.expect("a channel");
        channel.send(Number { value: 1 }).expect("room");
        assert_eq!(channel.recv().expect("an answer").value, 1001);
    }
}

#[test]
fn a_grid_kernel_processes_a_buffer() {
    for backend in backends() {
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our layouts");
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut data = GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.5; 1000]).expect("room");
        let first = DevicePointer::new(data.device_address().expect("it has bytes").get());
        // SAFETY: the buffer has that many elements, and is waited for.
        let launched = unsafe { stream.start(&module, &SCALE, (first, 1000, 3), 4) }.expect("queued");
        launched.wait().expect("it ends");
        assert_eq!(data.to_vec().expect("a copy"), [4.5; 1000]);
        data.zero().expect("idle");
    }
}

fn lanes_write(backend: &Arc<HostBackend>, panicking: u64, words: usize) -> Result<Vec<u64>, Error> {
    let module = Module::load(backend, &IMAGE, &ABI).expect("our layouts");
    let stream = Stream::new(backend, 0).expect("a stream");
    let data = GpuBuffer::<u64>::from_slice(Device::new(backend, 0), &vec![7; words]).expect("room");
    let first = DevicePointer::new(data.device_address().expect("it has bytes").get());
    // SAFETY: as many words as two warps write, waited for.
    let launched = unsafe { stream.start(&module, &LANES, (first, panicking), 2) }.expect("queued");
    launched.wait()?;
    data.to_vec()
}

#[test]
fn lanes_of_a_simulated_warp_exchange_values() {
    let [one, warp] = backends();
    let words = lanes_write(&one, u64::MAX, 2 * 16).expect("it ends");
    for lane in words.chunks(16) {
        assert_eq!(lane[..6], [0, 0, 100, 1, 1, 0], "a warp of one lane");
    }
    let words = lanes_write(&warp, u64::MAX, 2 * 32 * 16).expect("it ends");
    let thirds = (0..32).step_by(3).fold(0_u64, |all, lane| all | 1 << lane);
    for (number, lane) in words.chunks(16).enumerate() {
        let index = number as u64 % 32;
        assert_eq!(lane[..4], [index, 31 * 32 / 2, 100, thirds]);
        // The last has ended, and is not waited for.
        let after = if index == 31 { [7, 7] } else { [u64::from(u32::MAX >> 1), 0] };
        assert_eq!(lane[4..6], after, "lane {index}");
    }
}

#[test]
fn a_panic_of_a_lane_is_the_kernels_and_ends_no_other_lane() {
    let [_, warp] = backends();
    for (lane, panics) in [(5, 2), (ALL, 4)] {
        let error = lanes_write(&warp, lane, 2 * 32 * 16).expect_err("a lane of each warp, or all of them");
        assert!(matches!(error, Error::KernelPanicked { name: "lanes" }), "{error}");
        assert_eq!(warp.counters().kernel_panics, panics, "one for each warp");
    }
}

/// A panic whose payload panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in a drop");
    }
}

#[test]
fn warps_of_a_block_answer_together() {
    for (backend, lanes) in backends().into_iter().zip([1, 96]) {
        let mut channel = Channel::builder(DOUBLE_BLOCK).warps(3).open(&backend, 0).expect("a channel");
        for value in 0..500 {
            channel.send(Number { value }).expect("room");
        }
        assert!((0..500).all(|value| channel.recv().expect("an answer").value == 2 * value));
        assert_eq!(channel.close().expect("it ends").control.processed, 500);

        let mut channel = Channel::builder(TOTAL_BLOCK).warps(3).open(&backend, 0).expect("a channel");
        for value in 1..=100 {
            channel.send(Number { value }).expect("room");
        }
        assert_eq!(channel.iter().take(100).last().expect("answers"), Sum { count: 100, total: 5050 });

        let mut channel = Channel::builder(SHARES).warps(3).open(&backend, 0).expect("a channel");
        for value in 0..20 {
            channel.send(Number { value }).expect("room");
        }
        for value in 0..20 {
            let total = value * lanes * (lanes + 1) / 2;
            assert_eq!(channel.recv().expect("an answer"), Sum { count: lanes, total });
        }
        assert_eq!(channel.close().expect("it ends").telemetry.dropped, lanes.div_ceil(40), "what each lane has refused");
    }
}

#[test]
fn a_panic_of_a_handler_ends_the_kernel_of_a_channel() {
    for (kernel, backend) in [FRAGILE, FRAGILE_BLOCK].into_iter().flat_map(|kernel| backends().map(|backend| (kernel, backend))) {
        let warps = if kernel.name() == "fragile" { 1 } else { 4 };
        let mut channel = Channel::builder(kernel).warps(warps).open(&backend, 0).expect("a channel");
        for value in 0..128 {
            let _ = channel.try_send(Number { value });
        }
        let error = loop {
            match channel.recv() {
                Ok(answer) => assert!(answer.value < 113, "{answer:?}"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("panic"), "{error}");
        eventually("no lane waits for the one that panicked", || backend.counters().kernel_panics == 1);
    }
}

#[test]
fn a_launch_of_more_threads_than_a_process_should_have_is_refused() {
    for (backend, most) in backends().into_iter().zip([4096, 128]) {
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our layouts");
        let stream = Stream::new(&backend, 0).expect("a stream");
        // SAFETY: without elements, the kernel accesses nothing.
        let started = |groups| unsafe { stream.start(&module, &SCALE, (DevicePointer::new(0), 0, 1), groups) };
        for groups in [most + 1, 100_000, u32::MAX] {
            let error = started(groups).map(drop).expect_err("too many");
            assert!(matches!(error, Error::Size { asked, most: limit, .. } if (asked, limit) == (groups.into(), most.into())), "{error}");
        }
        started(100).expect("queued").wait().expect("it ends");
    }
}

#[test]
fn the_abi_contains_each_layout_once() {
    let of = |name: &str| ABI.layouts.iter().filter(|layout| layout.name == name).count();
    assert_eq!((of("Number"), of("Sum")), (1, 1));
    assert!(ABI.layouts.contains(&<[Sum; 2] as Layout>::DESCRIPTOR));
    assert_eq!(IMAGE.abi, ABI);
    assert_eq!(
        IMAGE.host.iter().map(|entry| entry.name).collect::<Vec<_>>(),
        [
            "double",
            "double_flagged",
            "double_grouped",
            "running_grouped",
            "total_grouped",
            "double_block",
            "total_block",
            "shares",
            "running",
            "total",
            "primes",
            "last_words",
            "fragile",
            "fragile_block",
            "offset",
            "scale",
            "lanes"
        ]
    );
}

/// The same kernel, with three kinds of groups.
mod of_warps {
    pub mod one {
        use super::super::{Number, double, kernels};

        kernels! {
            pub persistent fn same(now: &Number, then: &mut Number) {
                double(now, then);
            }
        }
    }

    pub mod groups {
        use super::super::{Number, double, kernels};

        kernels! {
            pub grouped fn same(now: &Number, then: &mut Number) {
                double(now, then);
            }
        }
    }

    pub mod block {
        use super::super::{Number, double, kernels};

        kernels! {
            pub block fn same(now: &Number, then: &mut Number) {
                double(now, then);
            }
        }
    }
}

#[test]
fn the_abi_has_the_kinds_of_kernels_of_several_warps() {
    let [one, groups, block] = [of_warps::one::ABI, of_warps::groups::ABI, of_warps::block::ABI];
    assert_eq!((one.layouts, one.layouts), (groups.layouts, block.layouts));
    assert!(one.hash != groups.hash && one.hash != block.hash && groups.hash != block.hash, "PTX of one is refused for another");
}

mod a_constant_with_the_name_of_an_argument {
    #![allow(dead_code, non_upper_case_globals)]

    use super::{DevicePointer, Lanes, Machine, kernels};

    const number: u64 = 5;

    kernels! {
        pub unsafe grid fn write(first: DevicePointer<u64>, number: u64) = write_number;
    }

    unsafe fn write_number<M: Machine, L: Lanes>(machine: &M, lanes: &L, first: DevicePointer<u64>, value: u64) {
        if let Some(word) = machine.at(first.address(), 8, 8).filter(|_| lanes.lane() == 0) {
            // SAFETY: mapped, and one lane writes.
            unsafe { word.cast::<u64>().write(value) };
        }
    }
}

#[test]
fn a_constant_is_no_pattern_of_an_argument() {
    use a_constant_with_the_name_of_an_argument::{ABI, IMAGE, WRITE};
    for backend in backends() {
        let (module, stream) = (Module::load(&backend, &IMAGE, &ABI).expect("the same ABI"), Stream::new(&backend, 0).expect("a stream"));
        let word = GpuBuffer::<u64>::from_slice(Device::new(&backend, 0), &[0]).expect("room");
        // SAFETY: the word lives until the launch is complete, and nothing else uses it.
        unsafe { stream.start(&module, &WRITE, (word.device_pointer().expect("a word"), 4), 1) }.expect("queued").wait().expect("it ends");
        assert_eq!(word.to_vec().expect("a copy"), [4]);
    }
}
