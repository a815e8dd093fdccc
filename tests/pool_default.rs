//! The process's global pools without a configuration: one test, because there is one process.
#![cfg(feature = "std")]

use std::sync::Barrier;
use std::{ptr, thread};

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::config::Config;
use ringmem::pool::{self, Pools};

#[test]
fn global_pools_work_without_a_configuration() {
    let together = Barrier::new(8);
    let all: Vec<&Pools> = thread::scope(|scope| {
        let first_call = || {
            together.wait();
            pool::global().expect("default pools")
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(first_call)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let pools = pool::global().expect("default pools");
    assert!(all.iter().all(|one| ptr::eq(*one, pools)), "one for all threads");
    let mut buffer = pools.buffer::<u32>(1000).expect("room");
    buffer.fill(7).expect("a fill");
    assert_eq!(buffer.to_vec().expect("a copy"), [7; 1000]);
    assert_eq!(buffer.is_device_backed(), !pools.backend().is_simulated());

    let configured = pool::configure(pools.backend(), pools.ordinal(), pools.config()).expect("the arguments of the default");
    assert!(ptr::eq(configured, pools));
    let backend = HostBackend::builder().build().expect("a backend");
    let error = pool::configure(&backend, 0, &Config::metal()).expect_err("the default pools exist");
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert!(error.to_string().contains("the default of the first call of `pool::global`"), "{error}");
    assert!(ptr::eq(pool::global().expect("unchanged"), pools));
}
