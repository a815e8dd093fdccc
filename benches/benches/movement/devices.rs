use ringmem::backend::host::{HostBackend, Link};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, HostReadable, Memory, Pinned};
use ringmem::peer::{Options, Peers, Strategy};
use ringmem_benches::{LINK_MODEL, Subject, Workload};

const BYTES: usize = 64 << 20;

fn link() -> Link {
    let link = Link::default();
    assert_eq!(link.pinned, link.peer, "else a ratio would say nothing");
    link
}

fn between(rounds: u64, reached: bool, at_once: bool) -> f64 {
    let backend = HostBackend::builder().devices(2).device_memory(BYTES as u64 + 4096).peer(0, 1).link(link()).build().expect("a backend");
    let mut peers = Peers::new(Pinned::new(&backend, 0)).expect("streams");
    if reached {
        peers.enable(0, 1).expect("it can");
    }
    let from = GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
    let mut to = GpuBuffer::<u8>::new(Device::new(&backend, 1), BYTES).expect("room");
    let strategy = match peers.strategy(0, 1, BYTES as u64) {
        Strategy::Staged { chunk, .. } if !at_once => Strategy::Staged { chunk, depth: 1 },
        chosen => chosen,
    };
    let (rounds, now) = (rounds.clamp(1, 2), || backend.model_now().expect("a model"));
    let before = now();
    for _ in 0..rounds {
        peers.copy_with(&from, &mut to, Options { strategy: Some(strategy), ..Options::default() }, |_| {}).expect("no fault");
    }
    (now() - before) as f64 / rounds as f64
}

fn upload<M: Memory<Visibility: HostReadable>>(rounds: u64, memory: fn(&std::sync::Arc<HostBackend>) -> M) -> f64 {
    let backend = HostBackend::builder().device_memory(BYTES as u64 + 4096).link(link()).build().expect("a backend");
    let from = Buffer::<u8, M>::new(memory(&backend), BYTES).expect("room");
    let mut to = GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
    let (rounds, now) = (rounds.clamp(1, 2), || backend.model_now().expect("a model"));
    let before = now();
    for _ in 0..rounds {
        to.as_view_mut().copy_from_view(from.as_view()).expect("as long");
    }
    (now() - before) as f64 / rounds as f64
}

fn direct(rounds: u64) -> f64 {
    between(rounds, true, true)
}

fn staged(rounds: u64) -> f64 {
    between(rounds, false, true)
}

fn way_after_way(rounds: u64) -> f64 {
    between(rounds, false, false)
}

fn pinned(rounds: u64) -> f64 {
    upload(rounds, |backend| Pinned::new(backend, 0))
}

fn pageable(rounds: u64) -> f64 {
    upload(rounds, |backend| Host::new(backend, 0))
}

pub fn workloads() -> Vec<Workload> {
    let modelled =
        |name, aim, subjects: Vec<Subject>| Workload { unit: "ns/64 MiB", source: LINK_MODEL, ..Workload::one(name, aim, subjects) };
    vec![
        modelled("peer-vs-staged", 0.5, vec![("ringmem, past the host", direct), ("over it, way after way", way_after_way)]),
        modelled("staged-pipelined", 17.0 / 32.0, vec![("ringmem, both ways at once", staged), ("way after way", way_after_way)]),
        modelled("pinned-vs-pageable", 0.501, vec![("ringmem, pinned", pinned), ("pageable", pageable)]),
    ]
}
