//! `ringmem doctor`: what this machine has, and what to do about what is short.

use std::process::Command;

use ringmem_kernels::IMAGE;

use crate::program::{call, finish};

#[test]
fn the_doctor_says_what_there_is() {
    let said = call(&IMAGE, ["doctor", "--json"]).json();
    for (key, values) in
        [("visibility", &["system", "device", "dma"][..]), ("strategy", &["unified", "async", "dma-polling"]), ("backend", &["host"])]
    {
        assert!(values.contains(&said[key].as_str().expect("text")), "{key}: {said}");
    }
    assert!(said["why"].as_str().is_some_and(|why| !why.is_empty()), "{said}");
    assert!(said["devices"].as_array().is_some_and(|devices| devices.len() == 1), "{said}");
    assert!(said["limits"].as_array().is_some_and(|limits| limits.iter().any(|limit| limit["name"] == "pinned")), "{said}");

    let lines = call(&IMAGE, ["doctor"]).out;
    for line in ["visibility  ", "strategy    ", "backend     host, 1 device simulated", "CUDA        ", "pinned "] {
        assert!(lines.contains(line), "{lines}");
    }
}

#[test]
fn the_environment_is_obeyed_with_a_warning() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.arg("doctor").env("RINGMEM_VISIBILITY", "dma");
    let lines = finish(program).out;
    assert!(lines.starts_with("visibility  dma: the environment says so"), "{lines}");
    assert!(lines.contains("RINGMEM_VISIBILITY=dma: it is not what was detected"), "{lines}");
    assert!(lines.contains("strategy    dma-polling"), "{lines}");
}
