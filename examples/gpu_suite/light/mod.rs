//! The part `light`: cost of the link, memory ordering, and the best placement of headers, by bare driver calls.

mod paired;
mod rig;
mod table;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::cuda::cudarc::driver::sys::CUdevice_attribute as Attribute;
use ringmem::backend::{Address, Copy, DeviceAddress};
use ringmem::control::{Fault, State};
use ringmem::{Error, Result};
use ringmem_kernels::IMAGE;
use ringmem_kernels::probe::{BYTES, DEVICE_LINE, HOST_LINE, mode};

use crate::driver::{Gpu, Pinned};
use crate::report::{Failure, Report};
use rig::{CAPACITY, Headers, Rig, Shape};
use table::Table;

const IDLE: Duration = Duration::from_secs(2);
const CLOCKS: Duration = Duration::from_secs(1);
const COPY: usize = 64 << 20;
const MODES: [(&str, u64); 4] =
    [("relaxed", mode::RELAXED), ("barrier + relaxed", mode::PUBLISH), ("release", mode::RELEASE), ("16-byte pair", mode::PAIR)];

/// `scale` divides the work. A failed step is a failed fact, and the next step begins.
pub fn run(report: &mut Report, backend: &Arc<CudaBackend>, scale: u64) -> std::result::Result<(), Failure> {
    let table = &mut Table::new(report);
    let gpu = Gpu::open(backend)?;
    table.step("the device's properties are known", |table| about(table, &gpu));
    table.step("ABI of the loaded image", |table| {
        let abi = gpu.abi()?;
        table.fact("ABI of the loaded image", Some(abi == IMAGE.abi.hash), format!("{abi:016x}, the host's is {:016x}", IMAGE.abi.hash));
        Ok(())
    });
    table.step("kernels raise the clocks", |_| gpu.raise_clocks(CLOCKS / scale as u32));
    table.step("copies", |table| copies(table, &gpu, scale));
    table.step("the link's properties are known", |table| link(table, &gpu));
    let words = gpu.pinned(BYTES as usize)?;
    for (name, mode) in MODES {
        table.step(format!("ping-pong, {name}"), |table| ping_pong(table, &gpu, words, name, mode, scale));
    }
    table.step("launches", |table| launches(table, &gpu, words, scale));
    for (name, mode) in MODES {
        table.step(format!("store by the kernel, {name}"), |table| publishes(table, &gpu, words, name, mode, scale));
    }
    for (name, mode) in [("with a barrier", mode::PUBLISH), ("without a barrier", mode::RELAXED)] {
        let name = format!("order of the kernel's stores, {name}");
        table.step(&name, |table| order_of_stores(table, &gpu, words, &name, mode, scale));
    }
    for (name, mode) in [("with an acquire", mode::PUBLISH), ("without one", mode::RELAXED)] {
        let name = format!("order of the kernel's loads, {name}");
        table.step(&name, |table| order_of_loads(table, &gpu, words, &name, mode, scale));
    }
    table.step("the words of the probes are freed", |_| gpu.free_pinned(words));
    let mut epochs = 1..;
    let mut shape =
        |groups, batch, headers| Shape { groups, batch, headers, start: u64::MAX - 300, epoch: epochs.next().unwrap_or(1), idle: IDLE };
    // First the header placement and the rings that the crate uses, then alternatives.
    headers(table, &gpu, "one shared header", None, &shape(1, 32, Headers::Shared), &shape(1, 128, Headers::Shared), scale);
    let with_flags = shape(1, 32, Headers::Shared);
    table.step("echo, a flag in each word", |table| paired::round_trips(table, &gpu, &with_flags, scale));
    for batch in [1, 8, 32, 128] {
        let compared = (batch > 1).then_some("rate, one warp, batch 1");
        let (name, shape) = (format!("rate, one warp, batch {batch}"), shape(1, batch, Headers::Shared));
        table.step(&name, |table| rate(table, &gpu, &name, &shape, compared, scale));
    }
    table.aimed("messages-warp", "ringmem echo, one warp", "rate, one warp, batch 128", None, 1e3 / 15.0);
    for groups in [1, 8, 64, 132] {
        let compared = (groups > 1).then_some("rate, 1 blocks with a ring each");
        let (name, shape) = (format!("rate, {groups} blocks with a ring each"), shape(groups, 128, Headers::Shared));
        table.step(&name, |table| {
            let fits = gpu.residency(gpu.kernel("echo")?)?;
            if groups > fits {
                table.fact(format!("{groups} blocks with a ring each"), None, format!("only {fits} fit at once"));
                return Ok(());
            }
            rate(table, &gpu, &name, &shape, compared, scale)
        });
        table.aimed("messages-launch", &format!("ringmem echo, {groups} rings"), &name, Some(2.0), 1e3 / 100.0);
    }
    for (name, kind, control) in [
        ("two headers, both here, stream writes", Headers::BothHere, "one shared header"),
        ("a header on each side, stream writes", Headers::OnEachSide, "two headers, both here, stream writes"),
    ] {
        headers(table, &gpu, name, Some(control), &shape(1, 32, kind), &shape(1, 128, kind), scale);
    }
    let (first, second) = (shape(1, 32, Headers::Shared), shape(1, 32, Headers::Shared));
    table.step("a kernel's deadline", |table| deadline(table, &gpu, first, second));
    Ok(gpu.close()?)
}

/// Round trips and the rate with these headers. A device without stream writes cannot have some of them.
fn headers(table: &mut Table<'_>, gpu: &Gpu, name: &str, control: Option<&str>, trip: &Shape, batch: &Shape, scale: u64) {
    let compared = control.map(|control| format!("rate, {control}, batch 128"));
    table.step(name, |table| {
        let measured = round_trips(table, gpu, name, trip, control, scale)
            .and_then(|()| rate(table, gpu, &format!("rate, {name}, batch 128"), batch, compared.as_deref(), scale));
        match measured {
            Err(error @ Error::Driver { code: 801, .. }) => table.fact(name, None, error.to_string()),
            measured => measured?,
        }
        Ok(())
    });
}

fn about(table: &Table<'_>, gpu: &Gpu) -> Result<()> {
    let driver = gpu.backend.driver();
    let version = driver.version();
    table.about("driver, newest CUDA", format!("{}.{}", version / 1000, version % 1000 / 10));
    if let Some(first) = driver.gpus()?.first() {
        table.about("device", first.name.clone());
        table.about("compute capability", format!("{}.{}", first.capability.0, first.capability.1));
        table.about("memory, bytes", first.memory);
    }
    table.about("host cores", std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64));
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    table.about("driver", version.lines().next().map_or("unknown", str::trim).to_owned());
    for (name, which) in [
        ("multiprocessors", Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        ("native host atomics", Attribute::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED),
        ("concurrent managed access", Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
        ("host register", Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
        ("pageable memory access", Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
        ("copy engines", Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
        ("kernel timeout", Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT),
    ] {
        table.about(name, gpu.attribute(which));
    }
    Ok(())
}

fn link(table: &Table<'_>, gpu: &Gpu) -> Result<()> {
    let bus = gpu.bus()?;
    for (name, file) in [
        ("PCIe link speed", "current_link_speed"),
        ("PCIe link width", "current_link_width"),
        ("PCIe link speed at most", "max_link_speed"),
        ("PCIe link width at most", "max_link_width"),
    ] {
        let said = std::fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/{file}"));
        table.about(name, said.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()));
    }
    Ok(())
}

fn copies(table: &mut Table<'_>, gpu: &Gpu, scale: u64) -> Result<()> {
    let bytes = (COPY / scale as usize).max(1 << 16);
    let (device, pinned, stream) = (gpu.alloc(bytes)?, gpu.pinned(bytes)?, gpu.stream()?);
    let mut pageable = vec![1_u8; bytes];
    let (on_device, [pageable, on_host]) =
        (Address::Device(DeviceAddress::new(device)), [NonNull::from(&mut *pageable).cast(), pinned.host].map(Address::Host));
    for (place, host) in [("pinned", on_host), ("pageable", pageable)] {
        for (way, to, from) in [("to device", on_device, host), ("to host", host, on_device)] {
            let mut rates = Vec::new();
            for turn in 0..9 {
                let begun = Instant::now();
                // SAFETY: both sides are live, `bytes` long and otherwise unused; the copy is waited for.
                unsafe { stream.copy(&Copy { to, from, bytes: bytes as u64 })? };
                stream.synchronize()?;
                if turn > 0 {
                    rates.push(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9);
                }
            }
            let compared = (place == "pageable").then(|| format!("copy {way}, pinned"));
            table.row(format!("copy {way}, {place}"), "GB/s", &mut rates, compared.as_deref());
        }
    }
    gpu.free(device)?;
    gpu.free_pinned(pinned)
}

fn launches(table: &mut Table<'_>, gpu: &Gpu, words: Pinned, scale: u64) -> Result<()> {
    let (kernel, stream) = (gpu.kernel("publish")?, gpu.stream()?);
    let mut times = Vec::new();
    for _ in 0..(1000 / scale).max(10) {
        let begun = Instant::now();
        // SAFETY: its three arguments; live words.
        unsafe { stream.launch(kernel, 1, &[words.device, 0, 0])? };
        stream.synchronize()?;
        times.push(begun.elapsed().as_nanos() as f64);
    }
    table.row("launch + sync", "ns", &mut times, Some("ping-pong, relaxed"));
    Ok(())
}

fn word(words: Pinned, line: u64, place: u64) -> &'static AtomicU64 {
    // SAFETY: within `BYTES`, aligned, zeroed, accessed as words; freed after the last probe.
    unsafe { words.host.add((line + 8 * place) as usize).cast::<AtomicU64>().as_ref() }
}

fn ping_pong(table: &mut Table<'_>, gpu: &Gpu, words: Pinned, name: &str, mode: u64, scale: u64) -> Result<()> {
    let rounds = (20_000 / scale).max(100);
    let start = u64::MAX - rounds / 2;
    for line in [HOST_LINE, DEVICE_LINE] {
        for place in [0, 1] {
            word(words, line, place).store(start.wrapping_sub(1), Release);
        }
    }
    let stream = gpu.stream()?;
    let arguments = [words.device, start, rounds, u64::try_from(IDLE.as_nanos()).unwrap_or(u64::MAX), mode];
    // SAFETY: its five arguments; the words outlive it.
    unsafe { stream.launch(gpu.kernel("ping_pong")?, 1, &arguments)? };
    let (mut times, mut torn, mut silent) = (Vec::new(), 0_u64, false);
    'rounds: for round in 0..rounds {
        let number = start.wrapping_add(round);
        let begun = Instant::now();
        word(words, HOST_LINE, 0).store(!number, Relaxed);
        word(words, HOST_LINE, 1).store(number, Release);
        while word(words, DEVICE_LINE, 1).load(Acquire) != number {
            if begun.elapsed() > IDLE {
                silent = true;
                break 'rounds;
            }
            std::hint::spin_loop();
        }
        times.push(begun.elapsed().as_nanos() as f64);
        torn += u64::from(mode == mode::PAIR && word(words, DEVICE_LINE, 0).load(Relaxed) != !number);
    }
    stream.synchronize()?;
    let wrong = if silent { format!(", then silence after {} of them", times.len()) } else { String::new() };
    let compared = (mode != mode::RELAXED).then_some("ping-pong, relaxed");
    table.row(format!("ping-pong, {name}"), "ns", &mut times, compared);
    table.fact(
        format!("ping-pong, {name}, across the wrap"),
        // No memory model guarantees untorn pairs.
        Some(!silent),
        format!("{rounds} rounds, {torn} with a payload that did not fit its flag{wrong}"),
    );
    Ok(())
}

fn publishes(table: &mut Table<'_>, gpu: &Gpu, words: Pinned, name: &str, mode: u64, scale: u64) -> Result<()> {
    let count = (20_000 / scale).max(100);
    let (kernel, stream) = (gpu.kernel("publish")?, gpu.stream()?);
    let mut times = Vec::new();
    for _ in 0..9 {
        // SAFETY: its three arguments; live words.
        unsafe { stream.launch(kernel, 1, &[words.device, count, mode])? };
        stream.synchronize()?;
        times.push(word(words, HOST_LINE, 0).load(Acquire) as f64 / count as f64);
    }
    table.row(format!("store by the kernel, {name}"), "ns", &mut times, (mode != mode::RELAXED).then_some("store by the kernel, relaxed"));
    Ok(())
}

fn order_of_stores(table: &mut Table<'_>, gpu: &Gpu, words: Pinned, name: &str, mode: u64, scale: u64) -> Result<()> {
    let count = (500_000 / scale).max(1000);
    let (kernel, stream) = (gpu.kernel("order_of_stores")?, gpu.stream()?);
    let (payload, flag) = (word(words, DEVICE_LINE, 0), word(words, HOST_LINE, 1));
    order(table, name, mode, count, || {
        payload.store(0, Release);
        flag.store(0, Release);
        // SAFETY: its three arguments; the words outlive it.
        unsafe { stream.launch(kernel, 1, &[words.device, count, mode])? };
        let (begun, mut seen, mut early, mut between) = (Instant::now(), 0, 0_u64, 0_u64);
        while seen != count && begun.elapsed() < IDLE * 4 {
            let now = flag.load(Acquire);
            early += u64::from(payload.load(Acquire) < now);
            between += u64::from(now != seen && now != count);
            seen = now;
        }
        stream.synchronize()?;
        Ok(Observed { early, between, is_whole: seen == count })
    })
}

fn order_of_loads(table: &mut Table<'_>, gpu: &Gpu, words: Pinned, name: &str, mode: u64, scale: u64) -> Result<()> {
    let count = (200_000 / scale).max(1000);
    let (kernel, stream) = (gpu.kernel("order_of_loads")?, gpu.stream()?);
    let (payload, flag) = (word(words, DEVICE_LINE, 1), word(words, HOST_LINE, 1));
    let (early, looks) = (word(words, DEVICE_LINE, 0), word(words, HOST_LINE, 0));
    let idle_ns = u64::try_from((IDLE * 2).as_nanos()).unwrap_or(u64::MAX);
    order(table, name, mode, count, || {
        for place in [payload, flag, early, looks] {
            place.store(0, Release);
        }
        let launched = Instant::now();
        // SAFETY: its four arguments; the words outlive it.
        unsafe { stream.launch(kernel, 1, &[words.device, count, idle_ns, mode])? };
        std::thread::sleep(Duration::from_millis(5));
        let begun = Instant::now();
        for number in 1..=count {
            payload.store(number, Release);
            flag.store(number, Release);
            for _ in 0..20 {
                std::hint::spin_loop();
            }
        }
        let stored = begun.elapsed();
        stream.synchronize()?;
        let looks = looks.load(Acquire);
        // The kernel also counts its polls before the first number. It polls at a constant rate, so this share of them was between the numbers, or more if
        // the kernel began late.
        let share = stored.as_secs_f64() / launched.elapsed().as_secs_f64();
        Ok(Observed { early: early.load(Acquire), between: (looks as f64 * share) as u64, is_whole: looks > 0 })
    })
}

/// The observations of a memory-order probe.
struct Observed {
    /// Flags ahead of their payload.
    early: u64,
    /// Polls between the first number and the last; others show nothing about the order.
    between: u64,
    /// Whether the probe reached the last number.
    is_whole: bool,
}

/// Repeats a probe, for a second at most, until it has polled between the numbers often enough to judge the order. Without a barrier any order is right.
fn order(table: &mut Table<'_>, name: &str, mode: u64, count: u64, mut probe: impl FnMut() -> Result<Observed>) -> Result<()> {
    let least = (count / 500).max(10);
    let (mut all, mut tries, begun) = (Observed { early: 0, between: 0, is_whole: true }, 0, Instant::now());
    while all.is_whole && all.between < least && (tries == 0 || begun.elapsed() < IDLE / 2) {
        let Observed { early, between, is_whole } = probe()?;
        all = Observed { early: all.early + early, between: all.between + between, is_whole };
        tries += 1;
    }
    let Observed { early, between, is_whole } = all;
    let holds = match () {
        () if !is_whole || mode == mode::PUBLISH && early > 0 => Some(false),
        () if between < least => None,
        () => Some(true),
    };
    let end = match holds {
        None => format!(": not judged, at least {least} looks are needed"),
        _ if !is_whole => ", and not the last".to_owned(),
        _ => String::new(),
    };
    table.fact(name, holds, format!("{early} flags ahead of their payload in {between} looks between the numbers, {tries} x {count}{end}"));
    Ok(())
}

fn round_trips(table: &mut Table<'_>, gpu: &Gpu, name: &str, shape: &Shape, control: Option<&str>, scale: u64) -> Result<()> {
    let mut rig = Rig::launch(gpu, shape)?;
    let pair = &mut rig.pairs[0];
    let mut times = Vec::new();
    for _ in 0..(10_000 / scale).max(400) {
        times.push(pair.round_trip()?);
    }
    let wrong = pair.wrong;
    let compared = control.map_or("ping-pong, relaxed".to_owned(), |control| format!("echo round trip, {control}"));
    table.row(format!("echo round trip, {name}"), "ns", &mut times, Some(&compared));
    let processed = rig.end(gpu)?;
    let facts = format!("{} messages across the wrap, {wrong} wrong, the kernel counted {processed:?}", times.len());
    table.fact(format!("echo, {name}"), Some(wrong == 0 && processed == [times.len() as u64]), facts);
    Ok(())
}

fn rate(table: &mut Table<'_>, gpu: &Gpu, name: &str, shape: &Shape, compared: Option<&str>, scale: u64) -> Result<()> {
    const TURNS: usize = 5;
    let groups = shape.groups as usize;
    let at_most = groups.min(std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)));
    let share = groups.div_ceil(at_most);
    let threads = groups.div_ceil(share);
    let each = (if shape.batch == 1 { 50_000 } else { 400_000 } / scale / groups.min(8) as u64).max(2 * CAPACITY / scale.min(16));
    let mut rig = Rig::launch(gpu, shape)?;
    let mut rates = Vec::new();
    for _ in 0..TURNS {
        let begun = Instant::now();
        let mut shares = rig.pairs.chunks_mut(share);
        // The driver's calls need this thread's context.
        let own = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares.map(|pairs| scope.spawn(|| rig::pump(pairs, each, 128))).collect();
            let mut outcome = rig::pump(own, each, 128);
            for other in others {
                outcome = outcome.and(other.join().unwrap_or(Err(Error::Closed { what: "stream" })));
            }
            outcome
        })?;
        rates.push((each * groups as u64) as f64 / begun.elapsed().as_secs_f64() / 1e6);
    }
    let wrong: u64 = rig.pairs.iter().map(|pair| pair.wrong).sum();
    let processed = rig.end(gpu)?;
    table.row(name, "M msg/s", &mut rates, compared);
    let expected = each * TURNS as u64;
    let counted = processed.iter().all(|&count| count == expected);
    let facts = format!(
        "{groups} x {expected} messages of 64 bytes by {threads} host threads, {wrong} wrong, counted alike by the kernels: {counted}"
    );
    table.fact(name, Some(wrong == 0 && counted), facts);
    Ok(())
}

fn deadline(table: &mut Table<'_>, gpu: &Gpu, mut first: Shape, second: Shape) -> Result<()> {
    first.idle = Duration::from_millis(400);
    let rig = Rig::launch(gpu, &first)?;
    let begun = Instant::now();
    let outcome = rig.pairs[0].wait_for(State::Terminated);
    let took = begun.elapsed();
    let by_deadline = matches!(outcome, Err(Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Deadline), .. }));
    table.fact("ended by its deadline of 400 ms", Some(by_deadline), format!("after {} ms", took.as_millis()));
    rig.end(gpu)?;

    let mut rig = Rig::launch(gpu, &second)?;
    rig::pump(&mut rig.pairs, 1000, 32)?;
    let wrong = rig.pairs[0].wrong;
    table.fact("another under a new epoch", Some(wrong == 0), format!("1000 messages, {wrong} wrong"));
    let idle = Instant::now();
    while rig.pairs[0].control.snapshot().processed != 1000 && idle.elapsed() < IDLE / 4 {
        std::thread::yield_now();
    }
    // No command from here on: only its epoch's end makes the kernel exit early.
    let begun = Instant::now();
    rig.pairs[0].control.abandon();
    rig.wait()?;
    let took = begun.elapsed();
    let seen = rig.pairs[0].control.snapshot();
    let silent = (seen.kernel_state(), seen.command_seen, seen.error, seen.processed) == (Some(State::Active), 1, 0, 1000);
    let facts = format!("after {} us, its last state {:?}, {} messages", took.as_micros(), seen.kernel_state(), seen.processed);
    table.fact("left when its epoch was over", Some(silent && took < IDLE / 2), facts);
    rig.end(gpu)?;
    Ok(())
}
