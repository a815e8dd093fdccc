use ringmem::error::ConfigError;

use ringmem::backend::host::{self, Faults, Verb};
use ringmem::control::{Fault, State};
use ringmem::ring::LayoutError;
use ringmem::{Abi, LAYOUTS};
use ringmem_kernels::histogram::{Chunk, Counted};

use super::*;

#[test]
fn open_rejects_invalid_options_and_allocates_nothing() {
    let backend = backend();
    let fails = |options: Options<'_>| open(&backend, &options).expect_err("an error");
    let usual = || Options::new("echo");
    assert!(matches!(
        fails(Options { input_capacity: 0, ..usual() }),
        Error::Config(ConfigError::Ring(LayoutError::NotAPowerOfTwo { capacity: 0 }))
    ));
    assert!(matches!(
        fails(Options { output_capacity: 3, ..usual() }),
        Error::Config(ConfigError::Ring(LayoutError::NotAPowerOfTwo { capacity: 3 }))
    ));
    assert!(matches!(
        fails(Options { input_capacity: 1 << 60, ..usual() }),
        Error::Config(ConfigError::Ring(LayoutError::TooLarge { .. }))
    ));
    assert!(matches!(fails(Options { input_capacity: 1 << 50, ..usual() }), Error::Map { .. }));
    assert!(matches!(fails(Options::new("ohce")), Error::NotFound { what: "kernel", .. }));
    assert!(matches!(fails(Options { arguments: &[1], ..usual() }), Error::Arguments { expected: 4, got: 5, .. }));
    assert_eq!(backend.counters().pinned_live.bytes, 0);

    let other = Image { abi: Abi::of(LAYOUTS), ..IMAGE };
    assert!(matches!(Module::load(&backend, &other, &ABI), Err(Error::Abi { .. })));
}

#[test]
fn open_returns_the_start_fault_of_the_kernel() {
    let backend = backend();
    let module = load(&backend, &IMAGE);
    // SAFETY: `echo` takes no own arguments.
    let error =
        unsafe { Channel::<Chunk, Counted>::open_raw(&backend, 0, &module, &Options::new("echo")) }.expect_err("rings of other messages");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Ring), faults: 1, .. }), "{error:?}");

    let options = Options { arguments: &[0, 8, 0], ..Options::new("histogram") };
    // SAFETY: the kernel checks that nothing is mapped at null.
    let error = unsafe { Channel::<Chunk, Counted>::open_raw(&backend, 0, &module, &options) }.expect_err("no data");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Address), .. }), "{error:?}");
    assert_eq!(backend.counters().pinned_live.bytes, 0);
}

#[test]
fn open_returns_the_error_of_a_failed_launch() {
    for way in ways() {
        let backend = backend();
        let fails = || backend.set_faults(&Faults::new().on(Verb::Launch, host::Fault::nth(1).when_executed()));
        fails();
        let error = open(&backend, &way).expect_err("no kernel");
        assert!(matches!(error, Error::Injected { call: "launch", number: 1 }), "{way:?}: {error:?}");
        assert_eq!(backend.counters().pinned_live.bytes, 0, "{way:?}");

        let mut channel = open(&backend, &way).expect("a channel");
        channel.drain().expect("it leaves");
        fails();
        let mut error = None;
        eventually("it is launched again", || {
            // SAFETY: `echo` takes no own arguments.
            error = unsafe { channel.restart_raw() }.err();
            !matches!(error, Some(Error::Busy { .. }))
        });
        assert!(matches!(error, Some(Error::Injected { call: "launch", .. })), "{way:?}: {error:?}");
        let error = channel.check().expect_err("no kernel");
        assert!(matches!(error, Error::Kernel { state: Some(State::Created), is_over: true, .. }), "{way:?}: {error:?}");
        // SAFETY: `echo` takes no own arguments.
        unsafe { channel.restart_raw() }.expect("nothing keeps it from another try");
        channel.try_send(message(0)).expect("room");
        assert_eq!(receive(&mut channel), message(0), "{way:?}");
    }
}

#[test]
fn a_kernel_rejects_rings_of_the_other_kind() {
    for (kernel, strategy) in [("echo", TransferStrategy::Flagged), ("echo_flagged", TransferStrategy::Unified)] {
        let refused = open(&backend(), &Options { strategy: Some(strategy), ..Options::new(kernel) });
        let fault = |error: &Error| matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Ring), .. });
        assert!(refused.as_ref().is_err_and(fault), "{kernel}: {refused:?}");
    }
}

#[test]
fn open_fails_without_a_visible_control_block() {
    let backend = HostBackend::builder().system_scope(false).device_memory(1 << 20).build().expect("a backend");
    for way in ways() {
        let refused = open(&backend, &way);
        assert!(
            matches!(&refused, Err(Error::Unsupported { what }) if what.starts_with("a channel on a device that does not see")),
            "{way:?}: {refused:?}"
        );
    }
    assert_eq!((backend.counters().pinned_live.bytes, backend.counters().launches), (0, 0));
}

#[test]
fn open_on_a_full_device_fails_and_other_channels_continue() {
    for way in ways().into_iter().skip(SHARED) {
        let backend = Clean::build(HostBackend::builder().device_memory(4 << 10));
        let small = Options { input_capacity: 8, output_capacity: 8, ..way.clone() };
        let refused = open(&backend, &small);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{way:?}: {refused:?}");
        let counters = backend.counters();
        assert_eq!((counters.device_live.bytes, counters.pinned_live.bytes, counters.launches), (0, 0, 0), "{way:?}");

        let backend = Clean::build(HostBackend::builder().device_memory(8 << 10));
        let mut channel = open(&backend, &small).expect("room for both");
        for id in 0..20 {
            assert!(matches!(open(&backend, &small), Err(Error::OutOfMemory { .. })), "{way:?}");
            channel.try_send(message(id)).expect("room");
            assert_eq!(receive(&mut channel), message(id), "{way:?}");
        }
        channel.drain().expect("it leaves");
        // SAFETY: `echo` takes no own arguments.
        eventually("it is launched again", || unsafe { channel.restart_raw() }.is_ok());
        channel.try_send(message(20)).expect("room");
        assert_eq!(receive(&mut channel), message(20), "{way:?}");
    }
}
