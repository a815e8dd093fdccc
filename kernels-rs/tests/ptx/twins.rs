//! PTX with one instruction weakened, which the machine or the host must notice.

use std::time::{Duration, Instant};

use ringmem_kernels::IMAGE;
use ringmem_kernels::echo::Echo;
use ringmem_layouts::TelemetryBuffer;
use ringmem_layouts::control::{Command, State};
use ringmem_ptx_machine::{Device as Gpu, Image};

use crate::echo::message;
use crate::memory::Device;
use crate::rig::{LIMIT, Rig, Shape};

const PATIENCE: Duration = Duration::from_millis(1500);
const SEEDS: u64 = 4;

fn ptx() -> &'static str {
    std::str::from_utf8(IMAGE.ptx).expect("PTX is text")
}

fn converse(image: &Image, seed: u64, patience: Duration) -> Result<(), String> {
    for (capacity, count, is_slow) in [(4, 60, false), (64, 150, false), (64, 40, true)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let launch = rig.launch;
        let device = Device::new([memory.range()]);
        let arguments = [launch.controls, launch.epoch.into(), launch.idle_ns, launch.batch];
        let mut run = Ok(());
        let kernel = || run = Gpu::new(seed).run(image, "echo", &arguments, &device, 32, 1);
        let (talk, ended) = rig.run(kernel, |rig| {
            let talk = talk(rig, count, is_slow, patience);
            rig.control.abandon();
            talk
        });
        assert!(ended.is_ok());
        run.map_err(|fault| fault.to_string()).and(talk)?;
    }
    Ok(())
}

fn talk(rig: &mut Rig<'_, Echo, Echo>, count: u64, is_slow: bool, patience: Duration) -> Result<(), String> {
    let mut progress = (Instant::now(), 0);
    let mut last: Option<TelemetryBuffer<u64>> = None;
    let mut wait = |rig: &Rig<'_, Echo, Echo>, answered: u64, what: &dyn Fn() -> String| {
        if progress.1 != answered {
            progress = (Instant::now(), answered);
        }
        if let Ok(seen) = rig.telemetry.snapshot() {
            if last.is_some_and(|last| last.sequence == seen.sequence && last != seen) {
                return Err(format!("a torn record: {last:?}, {seen:?}"));
            }
            last = Some(seen);
        }
        std::thread::yield_now();
        if progress.0.elapsed() > patience { Err(what()) } else { Ok(()) }
    };
    rig.control.command(Command::ACTIVATE);
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        if is_slow {
            let beats = rig.snapshot().heartbeat;
            while sent == answered && rig.snapshot().heartbeat < beats + 4 {
                wait(rig, answered, &|| "no heartbeat".to_owned())?;
            }
        }
        while sent < count && (!is_slow || sent == answered) && rig.sender.push(message(sent)).is_ok() {
            sent += 1;
        }
        match rig.receiver.pop() {
            Ok(answer) if answer == message(answered) => answered += 1,
            Ok(_) => return Err(format!("answer {answered} is wrong")),
            Err(_) => wait(rig, answered, &|| format!("no answer {answered}"))?,
        }
    }
    rig.control.command(Command::DRAIN);
    while rig.state() != Some(State::Terminated) {
        wait(rig, answered, &|| format!("the kernel stays {:?}", rig.state()))?;
    }
    if rig.snapshot().processed != count {
        return Err(format!("{} processed", rig.snapshot().processed));
    }
    Ok(())
}

fn executed() -> Vec<usize> {
    let image = Image::parse(ptx()).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(converse(&image, 0, LIMIT), Ok(()));
    image.executed().map(|line| line as usize - 1).collect()
}

fn twin(at: usize, by: &str) -> Image {
    let lines: Vec<&str> = ptx().lines().enumerate().map(|(number, line)| if number == at { by } else { line }).collect();
    Image::parse(&lines.join("\n")).unwrap_or_else(|fault| panic!("{fault}"))
}

fn assert_found(at: usize, by: &str) {
    let image = twin(at, by);
    let found = (0..SEEDS).find_map(|seed| converse(&image, seed, PATIENCE).err());
    let line = ptx().lines().nth(at).unwrap_or_default();
    assert!(found.is_some(), "line {}: `{}` as `{}` is not found", at + 1, line.trim(), by.trim());
}

fn address(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(address, _)| address)
}

#[test]
fn a_missing_barrier_is_found() {
    let lines: Vec<&str> = ptx().lines().collect();
    let barriers: Vec<usize> = executed().into_iter().filter(|at| lines[*at].contains("bar.warp.sync")).collect();
    assert_eq!(barriers.len(), 2, "one after the poll, one before the publication");
    barriers.into_iter().for_each(|at| assert_found(at, ""));
}

#[test]
fn a_publication_without_its_fence_or_with_a_smaller_scope_is_found() {
    let lines: Vec<&str> = ptx().lines().collect();
    let is_store = |at: usize| lines[at].contains("st.relaxed.sys.b64");
    let publishes = |at: &usize| {
        lines[*at].contains("fence.acq_rel.sys") && is_store(at + 1) && is_store(at + 2) && address(lines[at + 1]) != Some("%rd14")
    };
    let publications: Vec<usize> = executed().into_iter().filter(publishes).collect();
    let both = |at: &usize| {
        address(lines[at + 1]).zip(address(lines[at + 2])).is_some_and(|(output, input)| input.ends_with("+128") && !output.contains('+'))
    };
    let [at] = publications.into_iter().filter(both).collect::<Vec<_>>()[..] else { panic!("one publication") };
    assert_found(at, "");
    assert_found(at, "fence.acq_rel.gpu;");
    for store in [at + 1, at + 2] {
        assert_found(store, &lines[store].replace(".relaxed.sys", ""));
        assert_found(store, &lines[store].replace(".sys", ".gpu"));
    }
}

#[test]
fn a_poll_that_is_weak_relaxed_or_of_a_smaller_scope_is_found() {
    let lines: Vec<&str> = ptx().lines().collect();
    let loads: Vec<usize> = executed().into_iter().filter(|at| lines[*at].contains("ld.acquire.sys.b64")).collect();
    let is_poll = |at: &usize| loads.iter().any(|first| first < at && address(lines[*first]) == address(lines[*at]));
    let polls: Vec<usize> = loads.iter().copied().filter(is_poll).collect();
    let [tail, head] = polls[..] else { panic!("{polls:?}: one of the input's tail, one of the output's head") };
    for poll in [tail, head] {
        assert_found(poll, &lines[poll].replace(".acquire.sys", ""));
        assert_found(poll, &lines[poll].replace(".sys", ".gpu"));
    }
    // A relaxed poll of the head lets the kernel overwrite a slot that the host still reads, which the
    // machine cannot see.
    assert_found(tail, &lines[tail].replace("acquire", "relaxed"));
}
