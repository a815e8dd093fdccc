use std::hint::black_box;
use std::sync::{Mutex, PoisonError};

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Device, Pinned};
use ringmem::mirror::MirroredBuffer;
use ringmem_benches::{Subject, Workload, job, team};

type Mirror = MirroredBuffer<u64, Pinned, Device>;

fn mirror() -> Mirror {
    let backend = HostBackend::builder().device_memory(1 << 20).build().expect("a backend");
    let mut mirror = Mirror::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 64).expect("one backend");
    mirror.device().expect("room");
    mirror
}

fn each<S: Send>(times: u64, mut subject: S, access: impl Fn(&mut S) -> u64 + Send + Copy) -> f64 {
    let work = move || {
        let mut sum = 0;
        for _ in 0..times {
            sum += access(black_box(&mut subject));
        }
        black_box(sum);
    };
    team(times, vec![(Some(0), job(work))])
}

fn host(times: u64) -> f64 {
    each(times, mirror(), |mirror| mirror.host().expect("valid")[0])
}

fn host_mut(times: u64) -> f64 {
    each(times, mirror(), |mirror| {
        let elements = mirror.host_mut().expect("valid");
        elements[0] += 1;
        elements[0]
    })
}

fn device(times: u64) -> f64 {
    each(times, mirror(), |mirror| mirror.device().expect("valid").device_address().map_or(0, |address| address.get()))
}

fn locked(times: u64) -> f64 {
    each(times, Mutex::new(mirror()), |mirror| {
        let shared: &Mutex<Mirror> = mirror;
        let mut mirror = shared.lock().unwrap_or_else(PoisonError::into_inner);
        mirror.host().expect("valid")[0]
    })
}

fn vec(times: u64) -> f64 {
    each(times, vec![0_u64; 64], |elements| elements[0])
}

pub fn workloads() -> Vec<Workload> {
    let subjects: Vec<Subject> = vec![
        ("ringmem, host", host),
        ("ringmem, host_mut", host_mut),
        ("ringmem, device", device),
        ("ringmem, host under a Mutex", locked),
    ];
    vec![Workload { unit: "ns/access", aim_ns: Some(2.0), limit: Some(vec), ..Workload::one("mirror-access", 1.0, subjects) }]
}
