use std::process::Command;

use ringmem::image::KernelHost;
use ringmem_kernels::IMAGE;
use ringmem_kernels::echo::Echo;
use serde_json::Value;

use crate::kernels::{Reply, Run, image, serve};
use crate::program::{Ran, call, execute, finish};

#[test]
fn every_message_returns_once() {
    for messages in [1_u64, 9, 1000, 100_000] {
        let count = messages.to_string();
        for ran in
            [call(&IMAGE, ["demo", "--messages", &count, "--json"]), execute(["demo", "--messages", &count, "--json", "--backend", "auto"])]
        {
            let object = ran.json();
            let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, ["backend", "doubled", "elapsed_ns", "lost", "messages", "messages_per_s", "round_trip_ns", "why", "wrong"]);
            assert_eq!((&object["messages"], &object["lost"], &object["doubled"]), (&messages.into(), &0.into(), &0.into()));
            assert!(object["elapsed_ns"].as_u64().is_some_and(|time| time > 0));
            assert!(object["messages_per_s"].as_f64().is_some_and(|rate| rate > 0.0 && rate.is_finite()));
            let trip = |part: &str| object["round_trip_ns"][part].as_u64().expect("a number");
            assert!(0 < trip("p50") && trip("p50") <= trip("p99"));
        }
    }
}

#[test]
fn the_text_output_counts_returned_messages() {
    let ran = call(&IMAGE, ["demo", "--messages", "5000"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains("5000 messages") && ran.out.contains("0 lost, 0 duplicated"), "{}", ran.out);
}

#[test]
fn the_demo_works_without_shared_rings() {
    for visibility in ["device", "dma"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(["demo", "--messages", "1000", "--json", "--backend", "host"]).env("RINGMEM_VISIBILITY", visibility);
        let ran = finish(program);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let object: Value = serde_json::from_str(&ran.out).expect("one object");
        assert_eq!((&object["messages"], &object["lost"]), (&1000.into(), &0.into()), "{visibility}");
    }
}

const MESSAGES: &str = "1000";
const UNLUCKY: u64 = 500;

fn planted(run: Run) -> Ran {
    call(&image("echo", run), ["demo", "--messages", MESSAGES, "--json"])
}

/// Answers one message with these instead.
///
/// # Safety
///
/// As [`serve`].
unsafe fn but(host: &dyn KernelHost, arguments: &[u64], unlucky: u64, answers: impl Fn(Echo) -> Vec<Echo>) {
    // SAFETY: the caller promises what `serve` requires: `echo`'s arguments, whose memory is live until this returns.
    unsafe {
        serve(
            host,
            arguments,
            |message: Echo| Reply::Say(if message.words[0] == unlucky { answers(message) } else { vec![message] }),
            Vec::new,
        )
    }
}

unsafe fn faithful(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, UNLUCKY, |message| vec![message]) }
}
unsafe fn loses(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, UNLUCKY, |_| vec![]) }
}
unsafe fn doubles(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, UNLUCKY, |message| vec![message, message]) }
}
unsafe fn repeats_its_last_word(host: &dyn KernelHost, arguments: &[u64]) {
    let last = std::cell::Cell::new(Echo { words: [0; 8] });
    let reply = |message: Echo| {
        last.set(message);
        Reply::Say(vec![message])
    };
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `serve` requires that.
    unsafe { serve(host, arguments, reply, || vec![last.get()]) }
}
unsafe fn doubles_the_first(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, 0, |message| vec![message, message]) }
}
unsafe fn changes_a_bit(host: &dyn KernelHost, arguments: &[u64]) {
    let change = |mut message: Echo| {
        message.words[7] ^= 1 << 63;
        vec![message]
    };
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, UNLUCKY, change) }
}
unsafe fn makes_one_up(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `echo`'s arguments, whose memory is live until it returns; `but` requires that.
    unsafe { but(host, arguments, UNLUCKY, |message| vec![message, Echo { words: [u64::MAX; 8] }]) }
}

#[test]
fn the_planted_echo_succeeds_without_a_fault() {
    planted(faithful).json();
}

#[test]
fn lost_doubled_or_changed_messages_are_counted_and_fail() {
    for (run, lost, doubled, wrong) in [
        (loses as Run, 1, 0, 0),
        (doubles, 0, 1, 0),
        (repeats_its_last_word, 0, 1, 0),
        (doubles_the_first, 0, 1, 0),
        (changes_a_bit, 0, 0, 1),
        (makes_one_up, 0, 0, 1),
    ] {
        let ran = planted(run);
        ran.refuses(1, &[&format!("{lost} messages lost"), &format!("{doubled} duplicated"), &format!("{wrong} wrong")]);
        let object: Value = serde_json::from_str(&ran.out).expect("the object is printed all the same");
        assert_eq!((&object["lost"], &object["doubled"], &object["wrong"]), (&lost.into(), &doubled.into(), &wrong.into()));
    }
}
