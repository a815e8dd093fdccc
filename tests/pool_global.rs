//! The process's global pools: one test, because there is one process.
#![cfg(feature = "std")]

#[path = "suite/rig/leak_checked.rs"]
mod leak_checked;

use std::sync::Barrier;
use std::{ptr, thread};

use leak_checked::Clean;
use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem::config::Config;
use ringmem::pool::{self, Pools};

fn both(outcome: Result<&'static Pools, Error>) -> ([String; 2], String) {
    match outcome {
        Err(error @ Error::AlreadyExists { .. }) => {
            let text = error.to_string();
            let Error::AlreadyExists { configs: Some(configs), .. } = error else { unreachable!() };
            (*configs, text)
        }
        other => panic!("another configuration was expected to be refused, not {other:?}"),
    }
}

#[test]
fn global_pools_are_configured_once_for_the_process() {
    let backend = Clean::build(HostBackend::builder().devices(2));
    backend.forgets();
    assert!(matches!(pool::configure(&backend, 0, &Config::host().with_pool_bytes(0)), Err(Error::Config(_))));

    let config = Config::host().with_pool_bytes(8 << 20);
    let together = Barrier::new(8);
    let all: Vec<&Pools> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    together.wait();
                    pool::configure(&backend, 0, &config).expect("the same for all")
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let pools = pool::global().expect("configured");
    assert!(all.iter().all(|one| ptr::eq(*one, pools)));
    assert!(ptr::eq(pool::configure(&backend, 0, &config).expect("the same again"), pools));
    drop(pools.buffer::<u8>(100_000).expect("room"));
    drop(all[0].buffer::<u8>(100_000).expect("room"));
    assert_eq!(backend.counters().device_allocations.count, 1);

    let chosen =
        |backend: &HostBackend, device: u32, config: Config| format!("device {device} of backend {} with {config:?}", backend.id());
    let is = chosen(&backend, 0, config);
    let other = Clean::build(HostBackend::builder());
    for (outcome, asked) in [
        (pool::configure(&backend, 0, &Config::cuda()), chosen(&backend, 0, Config::cuda())),
        (pool::configure(&backend, 1, &config), chosen(&backend, 1, config)),
        (pool::configure(&other, 0, &config), chosen(&other, 0, config)),
    ] {
        let (both, text) = both(outcome);
        assert!(text.contains(&is) && text.contains(&asked) && !text.contains("default"), "{text}");
        assert_eq!(both, [is.clone(), asked]);
    }
    assert!(ptr::eq(pool::global().expect("configured"), pools));
}
