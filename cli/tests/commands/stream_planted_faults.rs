//! Kernels with planted faults, which `stream` must detect.

use ringmem::control::Fault;
use ringmem::image::KernelHost;
use ringmem::{Abi, Image, LAYOUTS};
use ringmem_kernels::IMAGE;
use ringmem_kernels::histogram::{Chunk, Counted};

use crate::bytes::{file, noise, text};
use crate::kernels::{Count, Reply, Run, counting, image, serve_counts};
use crate::program::{Ran, alone, call, until};

const UNLUCKY: u64 = 5;
const CHUNK: usize = 4096;

fn stream(image: &Image) -> Ran {
    let file = file(&noise(16 * CHUNK - 3));
    call(image, ["stream", text(file.path()), "--json", "--chunk-size", "4096", "--staging", "3"])
}

fn planted(run: Run) -> Ran {
    stream(&image("histogram", run))
}

// SAFETY, for every kernel here: each forwards the guarantees for `histogram`.

unsafe fn faithful(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, |count, chunk| count.add(chunk)) }
}

unsafe fn faithful_by_hand(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, |count, chunk| Reply::Say(vec![count.add(chunk)]), Vec::new) }
}

#[test]
fn the_planted_kernels_succeed_without_a_fault() {
    for run in [faithful as Run, faithful_by_hand] {
        let object = planted(run).json();
        assert_eq!((&object["verified"], &object["chunks"]), (&true.into(), &16.into()));
    }
}

unsafe fn wrong_byte(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| {
        if chunk.id == UNLUCKY {
            count.flip(chunk);
        }
        count.add(chunk)
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

#[test]
fn a_wrong_byte_in_device_memory_is_detected() {
    planted(wrong_byte).refuses(1, &["wrong", "checksum", "host computed"]);
}

unsafe fn words_in_another_order(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| {
        if chunk.id == UNLUCKY {
            count.swap(chunk);
        }
        count.add(chunk)
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

#[test]
fn swapped_words_are_detected() {
    planted(words_in_another_order).refuses(1, &["wrong", "checksum"]);
}

unsafe fn counted_twice(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| {
        if chunk.id == UNLUCKY {
            count.add(chunk);
        }
        count.add(chunk)
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

#[test]
fn a_chunk_counted_twice_is_detected() {
    planted(counted_twice).refuses(1, &["wrong", &format!("{} bytes", 17 * CHUNK - 3), &(16 * CHUNK - 3).to_string()]);
}

unsafe fn not_counted(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, |count, chunk| if chunk.id == UNLUCKY { count.say(chunk) } else { count.add(chunk) }) }
}

#[test]
fn an_uncounted_chunk_is_detected() {
    planted(not_counted).refuses(1, &["wrong", &format!("{} bytes", 15 * CHUNK - 3)]);
}

unsafe fn repeats_an_answer(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| {
        let answer = count.add(chunk);
        Counted { id: if chunk.id == UNLUCKY { UNLUCKY - 1 } else { answer.id }, ..answer }
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

unsafe fn sends_one_answer_twice(host: &dyn KernelHost, arguments: &[u64]) {
    let reply = |count: &mut Count, chunk: Chunk| {
        let answer = count.add(chunk);
        Reply::Say(vec![answer; if chunk.id == UNLUCKY { 2 } else { 1 }])
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, reply, Vec::new) }
}

#[test]
fn a_duplicate_answer_is_detected() {
    planted(repeats_an_answer).refuses(1, &["chunk 4", "twice", "chunk 5"]);
    // No answer is awaited before the next chunk is sent: the duplicate is reported against chunk 5.
    let ran = planted(sends_one_answer_twice);
    ran.refuses(1, &["answer for chunk 5"]);
}

unsafe fn has_a_last_word(host: &dyn KernelHost, arguments: &[u64]) {
    let last = Counted { id: 15, status: 0, bytes: 0, checksum: 0 };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, |count, chunk| Reply::Say(vec![count.add(chunk)]), || vec![last]) }
}

#[test]
fn an_answer_after_the_last_is_detected() {
    planted(has_a_last_word).refuses(1, &["unexpected answer for chunk 15"]);
}

unsafe fn skips_an_answer(host: &dyn KernelHost, arguments: &[u64]) {
    let reply = |count: &mut Count, chunk: Chunk| {
        let answer = count.add(chunk);
        Reply::Say(if chunk.id == UNLUCKY { vec![] } else { vec![answer] })
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, reply, Vec::new) }
}

#[test]
fn a_missing_answer_is_detected() {
    planted(skips_an_answer).refuses(1, &["chunk 6", "too early", "chunk 5"]);
}

unsafe fn refuses(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| Counted { status: u64::from(chunk.id == UNLUCKY), ..count.add(chunk) };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

#[test]
fn a_rejected_chunk_is_reported() {
    planted(refuses).refuses(1, &["refused chunk 5", "4096 bytes"]);
}

unsafe fn panics(host: &dyn KernelHost, arguments: &[u64]) {
    let answer = |count: &mut Count, chunk: Chunk| {
        assert!(chunk.id != UNLUCKY, "the test's kernel panics");
        count.add(chunk)
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `counting` requires
    // that.
    unsafe { counting(host, arguments, answer) }
}

#[test]
fn a_panicking_kernel_is_reported() {
    planted(panics).refuses(1, &["kernel", "Faulted", "panic"]);
}

unsafe fn faults(host: &dyn KernelHost, arguments: &[u64]) {
    let reply = |count: &mut Count, chunk: Chunk| match chunk.id {
        UNLUCKY => Reply::Fault(Fault::Message),
        _ => Reply::Say(vec![count.add(chunk)]),
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, reply, Vec::new) }
}

#[test]
fn a_faulted_kernel_is_reported_with_its_fault() {
    planted(faults).refuses(1, &["kernel", "Faulted", "a message with an invalid request"]);
}

unsafe fn vanishes(host: &dyn KernelHost, arguments: &[u64]) {
    let reply = |count: &mut Count, chunk: Chunk| match chunk.id {
        UNLUCKY => Reply::Vanish,
        _ => Reply::Say(vec![count.add(chunk)]),
    };
    // SAFETY: the program launches this kernel with `histogram`'s arguments, whose memory is live until it returns; `serve_counts` requires
    // that.
    unsafe { serve_counts(host, arguments, reply, Vec::new) }
}

unsafe fn never_begins(_: &dyn KernelHost, _: &[u64]) {}

#[test]
fn a_kernel_that_exits_silently_is_reported() {
    planted(vanishes).refuses(1, &["kernel", "Active"]);
    planted(never_begins).refuses(1, &["kernel", "Created"]);
}

#[test]
fn an_image_with_other_layouts_fails_in_one_line() {
    const OTHER: Abi = Abi::of(LAYOUTS);
    let ran = stream(&Image { abi: OTHER, ..IMAGE });
    ran.refuses(1, &["layouts", &format!("{:#018x}", OTHER.hash), &format!("{:#018x}", IMAGE.abi.hash), "Chunk"]);
    assert_eq!(ran.out, "");
}

#[test]
fn an_image_without_the_kernel_is_an_error() {
    stream(&image("echo", never_begins)).refuses(1, &["histogram", "echo"]);
}

#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("the list").count()
}

#[test]
#[cfg(target_os = "linux")]
fn no_thread_remains_after_any_outcome() {
    alone("stream_planted_faults::no_thread_remains_after_any_outcome", || {
        let before = threads();
        for (run, code) in [
            (faithful as Run, 0),
            (wrong_byte, 1),
            (refuses, 1),
            (panics, 1),
            (faults, 1),
            (vanishes, 1),
            (never_begins, 1),
            (skips_an_answer, 1),
        ] {
            assert_eq!(planted(run).code, code);
            until("every thread has gone", || threads() == before);
        }
        assert_eq!(call(&IMAGE, ["demo", "--messages", "2000"]).code, 0);
        until("every thread has gone", || threads() == before);
        assert_eq!(call(&IMAGE, ["stream", "/nowhere"]).code, 1);
        assert_eq!(threads(), before);
    });
}
