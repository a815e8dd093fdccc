use std::hint::black_box;

use ringmem_benches::Workload;
use ringmem_layouts::control::{Capabilities, Command, DeviceSide, HostSide, Launch, Shared};
use ringmem_layouts::telemetry::{self, Recorder};
use ringmem_layouts::{CacheLineAligned, HostWord};
use zerocopy::FromZeros;

use crate::each;

fn telemetry(messages: u64, publish: bool) -> f64 {
    let buffer = telemetry::Shared::<HostWord>::new_zeroed();
    // SAFETY: no other writer.
    let mut recorder = unsafe { Recorder::new(black_box(&buffer)) };
    let took = each(messages, |number| {
        recorder.count(1, 0, black_box(number & 1023));
        if publish {
            recorder.publish(1, 2, number);
        } else {
            black_box(&mut recorder);
        }
    });
    recorder.publish(0, 0, 1);
    assert_eq!(buffer.snapshot().expect("nobody writes").processed, messages);
    took
}

fn record(messages: u64) -> f64 {
    telemetry(messages, false)
}

fn published(messages: u64) -> f64 {
    telemetry(messages, true)
}

fn snapshot(messages: u64) -> f64 {
    let buffer = telemetry::Shared::<HostWord>::new_zeroed();
    each(messages, |_| {
        black_box(black_box(&buffer).snapshot().expect("nobody writes"));
    })
}

fn with_block(work: impl FnOnce(&mut HostSide<'_, HostWord>, &mut DeviceSide<'_, HostWord>) -> f64) -> f64 {
    let block = CacheLineAligned::new(Shared::<HostWord>::new_zeroed());
    let launch = Launch {
        abi: 1,
        capabilities: Capabilities::SYSTEM_SCOPE,
        epoch: 1,
        input_ring: 0,
        output_ring: 0,
        second_headers: [None; 2],
        telemetry: 0,
    };
    // SAFETY: no kernel runs, and no other writer.
    let mut host = unsafe { HostSide::prepare(black_box(block.get()), &launch) };
    // SAFETY: no other kernel.
    let mut device = unsafe { DeviceSide::attach(black_box(block.get()), 1) };
    work(&mut host, &mut device)
}

fn poll_command(messages: u64) -> f64 {
    with_block(|host, device| {
        let given = host.command(Command::ACTIVATE);
        each(messages, |_| assert_eq!(black_box(&mut *device).command().0, given))
    })
}

fn poll_state(messages: u64) -> f64 {
    with_block(|host, device| each(messages, |_| assert_eq!(black_box(&mut *host).state(), Some(device.state()))))
}

pub fn workloads() -> Vec<Workload> {
    let one = |name, unit, aim, subjects| Workload { unit, aim_ns: Some(aim), ..Workload::one(name, 1.0, subjects) };
    vec![
        one("telemetry-record", "ns/record", 3.0, vec![("ringmem", record), ("ringmem published", published), ("ringmem read", snapshot)]),
        one("control-poll", "ns/look", 2.0, vec![("ringmem command", poll_command), ("ringmem state", poll_state)]),
    ]
}
