//! Correct kernels must not fault.

mod host;

use ringmem_ptx_machine::{Device, Image};

use host::{Memory, assemble, run_blocks};

const SEEDS: u64 = 12;

fn text(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry f(.param .u64 at)\n{{\n\
         .reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 8 .b8 tile[256];\n\
         ld.param.u64 %rd1, [at];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd2, %r1, 8;\nadd.s64 %rd3, %rd1, %rd2;\n\
         {body}\n$end:\nret;\n}}\n"
    )
}

#[track_caller]
fn computes([groups, threads]: [u32; 2], body: &str, expected: &[(usize, u64)], host: impl Fn(&Memory)) {
    let text = text(body);
    assemble(&text, "sm_90");
    let image = Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}"));
    for seed in 0..SEEDS {
        let memory = Memory::zeroed(192);
        let ended = run_blocks(&image, &memory, seed, groups.into(), threads, || host(&memory));
        assert!(ended.iter().all(Result::is_ok), "seed {seed}: {ended:?}");
        for (at, value) in expected {
            assert_eq!(memory.word(*at), *value, "word {at}, seed {seed}");
        }
    }
}

/// Block 0 passes 42 to block 1.
#[track_caller]
fn passes(store: &str, load: &str, flag: u64) {
    let body = format!(
        "setp.eq.u32 %p1, %r2, 1;\n@%p1 bra $wait;\nsetp.eq.u32 %p1, %r2, 2;\n@%p1 bra $middle;\nst.b64 [%rd1+64], 42;\n{store}\nbra $end;\n\
         $middle:\nld.relaxed.gpu.b64 %rd4, [%rd1];\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra $middle;\nfence.acq_rel.cta;\n\
         atom.relaxed.gpu.add.u64 %rd4, [%rd1], 1;\nbra $end;\n\
         $wait:\n{load}\nsetp.ne.s64 %p1, %rd4, {flag};\n@%p1 bra $wait;\nfence.acq_rel.cta;\nld.b64 %rd5, [%rd1+64];\nst.b64 [%rd1+128], %rd5;"
    );
    computes([flag as u32 + 1, 1], &body, &[(16, 42)], |_| ());
}

#[test]
fn a_lane_that_spins_lets_a_sleeping_lane_go_on() {
    let body = "setp.eq.u32 %p1, %r1, 1;\n@%p1 bra $spin;\nnanosleep.u32 100;\nst.release.cta.b64 [%rd1], 1;\nbra $end;\n\
                $spin:\nld.acquire.cta.b64 %rd4, [%rd1];\nsetp.ne.s64 %p2, %rd4, 1;\n@%p2 bra $spin;";
    computes([1, 2], body, &[(0, 1)], |_| ());
}

#[test]
fn a_reader_of_a_flag_may_clear_it_with_a_weak_store() {
    let wait = "setp.eq.u32 %p1, %r1, 1;\n@%p1 bra $wait;\nst.release.cta.b64 [%rd1], 1;\nbra $end;\n\
                $wait:\nld.relaxed.cta.b64 %rd4, [%rd1];\nsetp.ne.s64 %p2, %rd4, 1;\n@%p2 bra $wait;\nst.b64 [%rd1], 0;";
    computes([1, 2], wait, &[(0, 0)], |_| ());
    let last = "atom.acq_rel.gpu.add.u64 %rd4, [%rd1], 1;\nsetp.ne.s64 %p1, %rd4, 7;\n@%p1 bra $end;\nst.b64 [%rd1], 0;";
    computes([4, 2], last, &[(0, 0)], |_| ());
    let mixed = "setp.eq.u32 %p1, %r1, 0;\n@%p1 atom.relaxed.cta.add.u64 %rd4, [%rd1], 1;\n@!%p1 atom.relaxed.gpu.add.u64 %rd4, [%rd1], 1;\n\
                 setp.ne.s64 %p1, %rd4, 3;\n@%p1 bra $end;\nst.b64 [%rd1], 9;";
    computes([1, 4], mixed, &[(0, 9)], |_| ());
}

#[test]
fn a_narrower_fence_keeps_the_effect_of_a_wider_one() {
    let acquire = "ld.acquire.gpu.b64 %rd4, [%rd1];";
    passes("fence.acq_rel.gpu;\nfence.acq_rel.cta;\nst.relaxed.gpu.b64 [%rd1], 1;", acquire, 1);
    passes("fence.acq_rel.gpu;\nst.release.cta.shared.b64 [tile], 1;\nst.relaxed.gpu.b64 [%rd1], 1;", acquire, 1);
    passes("st.release.gpu.b64 [%rd1], 1;", "ld.relaxed.gpu.b64 %rd4, [%rd1];\nfence.acq_rel.cta;\nfence.acq_rel.gpu;", 1);
    passes("atom.release.gpu.add.u64 %rd4, [%rd1], 1;", acquire, 2);
}

#[test]
fn a_fence_acquires_any_number_of_relaxed_loads() {
    let many = "setp.eq.u32 %p1, %r1, 63;\n@%p1 bra $wait;\nst.b64 [%rd3+512], 1;\nst.release.cta.b64 [%rd3], 1;\nbra $end;\n\
                $wait:\nmov.b64 %rd5, %rd1;\nmov.b64 %rd7, 0;\nmov.u32 %r3, 0;\n\
                $poll:\nld.relaxed.cta.b64 %rd4, [%rd5];\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra $poll;\n\
                add.s64 %rd5, %rd5, 8;\nadd.s32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 63;\n@%p1 bra $poll;\nfence.acq_rel.cta;\n\
                $sum:\nld.b64 %rd4, [%rd5+8];\nadd.s64 %rd7, %rd7, %rd4;\nadd.s64 %rd5, %rd5, 8;\n\
                sub.s32 %r3, %r3, 1;\nsetp.gt.u32 %p1, %r3, 0;\n@%p1 bra $sum;\nst.b64 [%rd1+1024], %rd7;";
    computes([1, 64], many, &[(128, 63)], |_| ());
    let one = "setp.eq.u32 %p1, %r1, 1;\n@%p1 bra $second;\nsetp.eq.u32 %p1, %r1, 2;\n@%p1 bra $wait;\n\
               st.b64 [%rd1+64], 40;\nst.release.cta.b64 [%rd1], 1;\nbra $end;\n\
               $second:\nst.b64 [%rd1+72], 2;\nfence.acq_rel.cta;\n\
               $poll:\nld.relaxed.cta.b64 %rd4, [%rd1+8];\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra $poll;\nst.relaxed.cta.b64 [%rd1], 2;\nbra $end;\n\
               $wait:\nld.relaxed.cta.b64 %rd4, [%rd1];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\nst.relaxed.cta.b64 [%rd1+8], 1;\n\
               $again:\nld.relaxed.cta.b64 %rd4, [%rd1];\nsetp.ne.s64 %p1, %rd4, 2;\n@%p1 bra $again;\nfence.acq_rel.cta;\n\
               ld.b64 %rd5, [%rd1+64];\nld.b64 %rd6, [%rd1+72];\nadd.s64 %rd5, %rd5, %rd6;\nst.b64 [%rd1+128], %rd5;";
    computes([1, 3], one, &[(16, 42)], |_| ());
}

#[test]
fn a_shuffle_may_read_a_register_that_only_its_source_lane_wrote() {
    let body = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra $join;\natom.add.u32 %r3, [%rd1], 32;\n\
                $join:\nshfl.sync.idx.b32 %r4, %r3, 0, 31, -1;\nst.b32 [%rd3+64], %r4;";
    computes([1, 32], body, &[(0, 32), (8, 0), (39, 0)], |_| ());
}

#[test]
fn a_weak_store_may_follow_a_volatile_store_in_shared_memory() {
    let body = "st.volatile.shared.b64 [tile], 1;\nst.shared.b64 [tile], 2;\nld.shared.b64 %rd4, [tile];\nst.b64 [%rd1], %rd4;";
    computes([1, 1], body, &[(0, 2)], |_| ());
}

#[test]
fn a_flag_may_share_eight_bytes_with_data() {
    let body = "mov.u32 %r3, 1;\n\
                $wait:\nld.acquire.sys.b32 %r4, [%rd1+4];\nsetp.ne.s32 %p1, %r4, %r3;\n@%p1 bra $wait;\n\
                ld.b32 %r5, [%rd1];\nld.b32 %r6, [%rd1+256];\nadd.s32 %r5, %r5, %r6;\nst.b32 [%rd1+384], %r5;\n\
                cvt.u64.u32 %rd4, %r3;\nst.release.sys.b64 [%rd1+512], %rd4;\n\
                $next:\nld.relaxed.sys.b64 %rd5, [%rd1+640];\nsetp.ne.s64 %p1, %rd5, %rd4;\n@%p1 bra $next;\n\
                add.s32 %r3, %r3, 1;\nsetp.le.u32 %p1, %r3, 5;\n@%p1 bra $wait;";
    computes([1, 1], body, &[(48, 55)], |memory| {
        for round in 1..=5 {
            memory.set(32, 10 * round);
            memory.set(0, round << 32 | round);
            memory.set(80, round - 1);
            if !memory.waits_for(64, round) {
                return;
            }
        }
        memory.set(80, 5);
    });
}

#[test]
fn a_later_store_to_adjacent_bytes_does_not_delay_released_ones() {
    let body = "setp.eq.u32 %p1, %r1, 1;\n@%p1 bra $wait;\nst.b32 [%rd1+256], 7;\nst.release.cta.b64 [%rd1+512], 1;\nst.b32 [%rd1+260], 9;\n\
                $hold:\nld.relaxed.sys.b64 %rd4, [%rd1+384];\nsetp.eq.s64 %p1, %rd4, 0;\n@%p1 bra $hold;\nbra $end;\n\
                $wait:\nld.acquire.cta.b64 %rd4, [%rd1+512];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\nst.release.sys.b64 [%rd1], 1;";
    computes([1, 2], body, &[(64, 1)], |memory| {
        let is_seen = memory.waits_for(0, 1);
        let low = memory.word(32) as u32;
        memory.set(48, 1);
        assert!(is_seen && low == 7, "{low}");
    });
}

#[test]
fn recorded_stores_are_in_program_order_until_they_are_taken() {
    let body = "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $end;\nst.relaxed.sys.b64 [%rd1], 1;\nst.relaxed.sys.b64 [%rd1+8], 2;\nst.relaxed.sys.b32 [%rd1+4], 3;\n\
                fence.acq_rel.sys;\natom.relaxed.sys.add.u64 %rd4, [%rd1], 4;";
    let image = Image::parse(&text(body)).unwrap_or_else(|fault| panic!("{fault}"));
    let (device, memory) = (Device::new(1), Memory::zeroed(8));
    let run = || device.run(&image, "f", &[memory.address()], &memory, 2, 1).unwrap_or_else(|fault| panic!("{fault}"));
    device.record(memory.address());
    run();
    assert_eq!(device.recorded(memory.address()), [1, 3 << 32, 3 << 32 | 5]);
    run();
    assert!(device.recorded(memory.address()).is_empty());
}
