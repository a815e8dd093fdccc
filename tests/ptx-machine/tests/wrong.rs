//! Kernels with a mistake: the fault names its line, and a race's other line.

mod host;

use std::thread;

use ringmem_ptx_machine::{Device, Fault, Image, Kind};

use host::{Block, Memory, run_blocks};

const SEEDS: [u64; 4] = [1, 2, 3, 4];

fn image(body: &str) -> Image {
    let text = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry f(.param .u64 at)\n{{\n\
         .reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 8 .b8 tile[256];\n\
         ld.param.u64 %rd1, [at];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 8;\nadd.s64 %rd3, %rd1, %rd2;\n{body}\nret;\n}}\n"
    );
    Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}"))
}

const FIRST: u32 = 14;

fn run(body: &str, seed: u64, threads: u32) -> Result<Memory, Fault> {
    let (image, memory) = (image(body), Memory::filled(64, 0xbad0_bad0_bad0_bad0));
    Device::new(seed).run(&image, "f", &[memory.address()], &memory, threads, 1).map(|()| memory)
}

#[track_caller]
fn faults(body: &str, kind: Kind, line: u32, says: &str) {
    for seed in SEEDS {
        let fault = run(body, seed, 32).map(drop).expect_err(body);
        assert_eq!((fault.kind, fault.line), (kind, FIRST + line), "{fault}");
        assert!(fault.text.contains(says), "{fault}");
    }
}

#[track_caller]
fn races(body: &str, lines: [u32; 2]) {
    for seed in SEEDS {
        let fault = run(body, seed, 32).map(drop).expect_err(body);
        let lines = lines.map(|line| FIRST + line);
        assert!(fault.kind == Kind::Race && lines.contains(&fault.line), "{fault}");
        assert!(lines.iter().any(|line| fault.text.contains(&format!("at line {line}"))), "{fault}");
    }
}

#[test]
fn an_access_out_of_bounds_is_reported() {
    faults("st.b64 [%rd1+1000000], 1;", Kind::OutOfBounds, 0, "stores 8 bytes at");
    faults("ld.b32 %r2, [0];", Kind::OutOfBounds, 0, "loads 4 bytes at 0x0");
    faults("st.shared.b64 [tile+256], 1;", Kind::OutOfBounds, 0, "outside all allocations");
}

#[test]
fn an_access_past_the_end_of_a_module_variable_is_reported() {
    let ended = |body: &str| {
        let text = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.global .align 8 .b8 first[8];\n.global .align 4 .b32 second = 5;\n\
             .const .align 16 .b8 last[16];\n.visible .entry f()\n{{\n.reg .b64 %rd<9>;\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n"
        );
        let (image, memory) = (Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}")), Memory::zeroed(1));
        Device::new(1).run(&image, "f", &[], &memory, 1, 1).map_err(|fault| (fault.kind, fault.line))
    };
    for inside in ["st.b64 [first], 1;", "st.b8 [first+7], 1;", "ld.b32 %r1, [second];", "ld.v2.b64 {%rd1, %rd2}, [last];"] {
        assert_eq!(ended(inside), Ok(()), "{inside}");
    }
    for outside in
        ["ld.b32 %r1, [first+8];", "st.b8 [first-1], 1;", "ld.b64 %rd1, [second];", "ld.b32 %r1, [second+4];", "st.b8 [last+16], 1;"]
    {
        assert_eq!(ended(outside), Err((Kind::OutOfBounds, 11)), "{outside}");
    }
}

#[test]
fn a_misaligned_vector_access_is_reported() {
    faults("ld.v4.b32 {%r2, %r3, %r4, %r5}, [%rd1+8];", Kind::Misaligned, 0, "not a multiple of 16");
    faults("ld.b64 %rd4, [%rd1+4];", Kind::Misaligned, 0, "not a multiple of 8");
}

#[test]
fn an_unwritten_register_is_reported_when_it_has_an_effect() {
    faults("add.s64 %rd5, %rd4, 1;\nmov.b64 %rd6, %rd5;\nst.b64 [%rd3], %rd6;", Kind::Undefined, 2, "a stored value");
    faults("@%p1 bra $x;\n$x:", Kind::Undefined, 0, "a predicate");
    faults("ld.b64 %rd5, [%rd4];", Kind::Undefined, 0, "an address");
    faults("shfl.sync.idx.b32 %r3, %r1, %r2, 31, -1;", Kind::Undefined, 0, "a shuffle");
    faults("shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;\nst.b32 [%rd3], %r3;", Kind::Undefined, 1, "a stored value");
    assert!(run("add.s64 %rd5, %rd4, 1;\nsetp.eq.s32 %p1, %r1, 99;\n@%p1 st.b64 [%rd3], %rd5;", 1, 32).is_ok());
}

#[test]
fn an_unwritten_register_is_reported_across_a_call() {
    let called = |callee: &str, gives: &str| {
        let text = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.func (.param .b64 result) g(.param .b64 given)\n{{\n.reg .b64 %rd<9>;\n{callee}\nret;\n}}\n\
             .visible .entry f(.param .u64 at)\n{{\n.reg .b64 %rd<9>;\nld.param.u64 %rd1, [at];\n{{\n.param .b64 given;\n.param .b64 result;\n{gives}\n\
             call.uni (result), g, (given);\nld.param.b64 %rd3, [result];\n}}\nst.b64 [%rd1], %rd3;\nret;\n}}\n"
        );
        let (image, memory) = (Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}")), Memory::zeroed(8));
        let ended = Device::new(1).run(&image, "f", &[memory.address()], &memory, 1, 1);
        ended.map(|()| memory.word(0)).map_err(|fault| (fault.kind, fault.text.contains("`st.b64 [%rd1], %rd3;` a stored value")))
    };
    let (returns, gives) = ("ld.param.b64 %rd1, [given];\nst.param.b64 [result], %rd1;", "st.param.b64 [given], 7;");
    assert_eq!(called(returns, gives), Ok(7));
    assert_eq!(called("st.param.b32 [result+4], 1;\nst.param.b32 [result], 2;", ""), Ok(1 << 32 | 2), "the argument has no effect");
    for (callee, gives) in [
        ("", gives),
        ("st.param.b64 [result], %rd1;", gives),
        ("st.param.b32 [result], 7;", gives),
        (returns, ""),
        (returns, "st.param.b64 [given], %rd2;"),
    ] {
        assert_eq!(called(callee, gives), Err((Kind::Undefined, true)), "{callee}, {gives}");
    }
}

#[test]
fn an_unwritten_carry_is_reported_when_it_has_an_effect() {
    let carry = "add.cc.u32 %r4, %r1, @A;\naddc.u32 %r5, %r1, 0;\nst.b32 [%rd3], %r5;";
    assert!(run(&carry.replace("@A", "1"), 1, 32).is_ok());
    faults(&carry.replace("@A", "%r2"), Kind::Undefined, 2, "a stored value");
    faults("addc.u32 %r5, %r1, 0;\nst.b32 [%rd3], %r5;", Kind::Undefined, 1, "a stored value");
}

#[test]
fn a_load_of_unwritten_memory_is_reported() {
    faults("ld.shared.b32 %r2, [tile+8];", Kind::Unwritten, 0, "never written");
    let (image, memory) = (image("ld.b64 %rd4, [%rd3];"), Memory::filled(64, u64::from_ne_bytes([0xcd; 8])));
    let fault = Device::new(1).with_poison(0xcd).run(&image, "f", &[memory.address()], &memory, 32, 1).expect_err("it is poison");
    assert_eq!((fault.kind, fault.line), (Kind::Unwritten, FIRST));
}

#[test]
fn a_divergent_barrier_is_reported() {
    let half = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $low;\nbar.warp.sync -1;\nbra $end;\n$low:\nvote.sync.any.pred %p2, %p1, -1;\n$end:";
    for seed in SEEDS {
        let fault = run(half, seed, 32).map(drop).expect_err("the halves wait for each other");
        assert!(fault.kind == Kind::Divergent && [FIRST + 2, FIRST + 5].contains(&fault.line), "{fault}");
    }
    faults("setp.lt.u32 %p1, %r1, 16;\n@%p1 bar.warp.sync 0xffff0000;", Kind::Divergent, 1, "is not in the mask");
    assert!(run("setp.lt.u32 %p1, %r1, 16;\n@%p1 exit;\nbar.warp.sync -1;\nst.b64 [%rd3], 1;", 1, 32).is_ok());
    assert!(run("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $low;\nbar.warp.sync -1;\nbra $end;\n$low:\nbar.warp.sync -1;\n$end:", 1, 32).is_ok());
    let aligned = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $low;\nbar.sync 0;\nbra $end;\n$low:\nbar.sync 0;\n$end:";
    faults(aligned, Kind::Divergent, 5, "at line 16");
    assert!(run(&aligned.replace("bar.sync", "barrier.sync"), 1, 32).is_ok());
    assert!(run(&aligned.replace("16;", "32;"), 1, 64).is_ok());
}

#[test]
fn a_launch_that_no_device_accepts_is_reported() {
    let by_value = "@at(.param .align 8 .b8 at[16])";
    for (header, threads, groups) in
        [("", 0, 1), ("", 1025, 1), ("", 32, 0), (".reqntid 64, 1", 32, 1), (".maxntid 16", 32, 1), (by_value, 32, 1), ("", 1024, 1)]
    {
        let parameters = header.strip_prefix("@at").unwrap_or("(.param .u64 at)");
        let directives = if header.starts_with('.') { header } else { "" };
        let text = format!(".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry f{parameters}\n{directives}\n{{ ret; }}\n");
        let (image, memory) = (Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}")), Memory::zeroed(1));
        let ended = Device::new(1).run(&image, "f", &[0], &Block { memory: &memory, group: 0, groups }, threads, 1);
        let expected = if threads == 1024 { Ok(()) } else { Err((Kind::Launch, 4)) };
        assert_eq!(ended.map_err(|fault| (fault.kind, fault.line)), expected, "{header} {threads} {groups}");
    }
}

#[test]
fn a_block_has_the_required_threads_in_each_dimension() {
    for (directive, threads, is_accepted) in [
        (".reqntid 8, 4", [8, 4], true),
        (".reqntid 8, 4, 1", [8, 4], true),
        (".reqntid 32", [32, 1], true),
        (".reqntid 8, 4", [4, 8], false),
        (".reqntid 8, 4", [32, 1], false),
        (".reqntid 32", [8, 4], false),
        (".reqntid 8, 2, 2", [8, 4], false),
        // The limit is of the product.
        (".maxntid 8, 4", [32, 1], true),
        (".maxntid 8, 4", [8, 5], false),
    ] {
        let text = format!(".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry f()\n{directive}\n{{ ret; }}\n");
        let (image, memory) = (Image::parse(&text).unwrap_or_else(|fault| panic!("{fault}")), Memory::zeroed(1));
        let ended = Device::new(1).run(&image, "f", &[], &memory, threads, 1).map_err(|fault| (fault.kind, fault.line));
        let expected = if is_accepted { Ok(()) } else { Err((Kind::Launch, 4)) };
        assert_eq!(ended, expected, "{directive} {threads:?}");
    }
}

#[test]
fn a_fault_ends_all_blocks_of_its_grid() {
    let body = "mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 trap;\n$wait:\nld.acquire.sys.b64 %rd4, [%rd1];\nbra $wait;";
    for ended in run_blocks(&image(body), &Memory::zeroed(8), 1, 3, 32, || ()) {
        assert_eq!(ended.map_err(|fault| (fault.kind, fault.line)), Err((Kind::Trap, FIRST + 2)));
    }
}

#[test]
fn a_trap_is_reported() {
    faults("setp.eq.u32 %p1, %r1, 5;\n@%p1 trap;", Kind::Trap, 1, "lane 5");
}

#[test]
fn unordered_accesses_of_two_lanes_are_a_race() {
    races("st.b64 [%rd1], %rd2;", [0, 0]);
    races("st.b64 [%rd3], %rd2;\nxor.b64 %rd4, %rd2, 8;\nadd.s64 %rd4, %rd4, %rd1;\nld.b64 %rd5, [%rd4];", [0, 3]);
    let shared = "cvt.u32.u64 %r2, %rd2;\nst.shared.b64 [%r2], 1;\nxor.b32 %r3, %r2, 8;\nld.shared.b64 %rd4, [%r3];";
    for seed in SEEDS {
        let fault = run(shared, seed, 32).map(drop).expect_err("there is no barrier");
        assert!(matches!(fault.kind, Kind::Race | Kind::Unwritten), "{fault}");
    }
    let load = |load: &str| format!("setp.eq.u32 %p1, %r1, 0;\n@%p1 st.relaxed.cta.b64 [%rd1], 1;\n@!%p1 {load}, [%rd1];");
    races(&load("ld.cv.b64 %rd4"), [1, 2]);
    races(&load("ld.relaxed.cta.b32 %r3"), [1, 2]);
    assert!(SEEDS.iter().all(|seed| run(&load("ld.relaxed.cta.b64 %rd4"), *seed, 32).is_ok()));
    assert!(run("cvt.u64.u32 %rd4, %r1;\nadd.s64 %rd4, %rd4, %rd1;\nst.b8 [%rd4], %r1;", 1, 32).is_ok());
    let barrier = "st.b64 [%rd3], %rd2;\nbar.warp.sync -1;\nxor.b64 %rd4, %rd2, 8;\nadd.s64 %rd4, %rd4, %rd1;\nld.b64 %rd5, [%rd4];";
    assert!(SEEDS.iter().all(|seed| run(barrier, *seed, 32).is_ok()));
    let across = barrier.replace("xor.b64 %rd4, %rd2, 8", "xor.b64 %rd4, %rd2, 256");
    assert!(SEEDS.iter().any(|seed| run(&across, *seed, 64).is_err()));
    let block = across.replace("bar.warp.sync -1", "bar.sync 0");
    assert!(SEEDS.iter().all(|seed| run(&block, *seed, 64).is_ok()));
}

#[test]
fn a_strong_access_races_with_an_earlier_one_of_another_size() {
    let body = "setp.gt.u32 %p1, %r1, 1;\n@%p1 exit;\nsetp.eq.u32 %p2, %r1, 1;\n@%p2 bra $wait;\n\
                @FIRST\n@SECOND\nst.relaxed.gpu.b64 [%rd1+64], 1;\nexit;\n\
                $wait:\nld.relaxed.gpu.b64 %rd4, [%rd1+64];\nsetp.ne.s64 %p3, %rd4, 1;\n@%p3 bra $wait;\nst.relaxed.gpu.b64 [%rd1], 2;";
    for (first, second) in [
        ("st.relaxed.gpu.b32 [%rd1], 1;", "st.relaxed.gpu.b64 [%rd1], 1;"),
        ("ld.relaxed.gpu.b32 %r3, [%rd1];", "ld.relaxed.gpu.b64 %rd5, [%rd1];"),
        ("ld.relaxed.gpu.b32 %r3, [%rd1+4];", "atom.relaxed.gpu.add.u64 %rd5, [%rd1], 1;"),
    ] {
        races(&body.replace("@FIRST", first).replace("@SECOND", second), [4, 12]);
        assert!(SEEDS.iter().all(|seed| run(&body.replace("@FIRST", second).replace("@SECOND", second), *seed, 32).is_ok()), "{second}");
    }
}

#[test]
fn a_strong_access_races_with_an_earlier_one_that_its_scope_does_not_reach() {
    // Lane 0 of block 1 is ordered after block 0, lane 1 is not.
    let body = "mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p1, %r2, 1;\n@%p1 bra $second;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 exit;\n\
                st.relaxed.cta.b64 [%rd1], 1;\nst.release.gpu.b64 [%rd1+64], 1;\nexit;\n\
                $second:\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra $last;\n\
                $wait:\nld.acquire.gpu.b64 %rd4, [%rd1+64];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\n\
                st.relaxed.cta.b64 [%rd1], 2;\nst.relaxed.cta.b64 [%rd1+128], 1;\nexit;\n\
                $last:\nld.relaxed.cta.b64 %rd4, [%rd1+128];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $last;\nst.relaxed.cta.b64 [%rd1], 3;";
    for seed in SEEDS {
        let ended = |body: &str| run_blocks(&image(body), &Memory::zeroed(64), seed, 2, 2, || ());
        let faults = ended(body).into_iter().filter_map(Result::err).collect::<Vec<_>>();
        assert!(!faults.is_empty(), "seed {seed}");
        for fault in faults {
            assert_eq!((fault.kind, fault.line), (Kind::Race, FIRST + 22), "{fault}");
            assert!(fault.text.contains(&format!("at line {}", FIRST + 5)), "{fault}");
        }
        assert!(ended(&body.replace("relaxed.cta.b64 [%rd1], ", "relaxed.gpu.b64 [%rd1], ")).iter().all(Result::is_ok), "seed {seed}");
    }
}

fn pass(store: &str, load: &str) -> String {
    format!(
        "setp.gt.u32 %p1, %r1, 1;\n@%p1 exit;\nsetp.eq.u32 %p2, %r1, 1;\n@%p2 bra $wait;\nst.b64 [%rd1+64], 42;\n{store};\nexit;\n\
         $wait:\n{load};\nsetp.ne.s64 %p3, %rd4, 1;\n@%p3 bra $wait;\nld.b64 %rd5, [%rd1+64];\nst.b64 [%rd1+128], %rd5;"
    )
}

fn passes(store: &str, load: &str) -> Result<[u64; 4], Fault> {
    let mut words = [0; 4];
    for (word, seed) in words.iter_mut().zip(SEEDS) {
        *word = run(&pass(store, load), seed, 32)?.word(16);
    }
    Ok(words)
}

#[test]
fn release_and_acquire_order_surrounding_accesses() {
    let (release, acquire) = ("st.release.cta.b64 [%rd1], 1", "ld.acquire.cta.b64 %rd4, [%rd1]");
    assert_eq!(passes(release, acquire), Ok([42; 4]));
    assert_eq!(
        passes("fence.acq_rel.cta;\nst.relaxed.cta.b64 [%rd1], 1", "ld.relaxed.cta.b64 %rd4, [%rd1];\nfence.acq_rel.cta"),
        Ok([42; 4])
    );
    assert_eq!(passes("atom.release.gpu.exch.b64 %rd6, [%rd1], 1", "ld.acquire.gpu.b64 %rd4, [%rd1]"), Ok([42; 4]));
    for (store, load) in [
        ("st.relaxed.cta.b64 [%rd1], 1", acquire),
        (release, "ld.relaxed.cta.b64 %rd4, [%rd1]"),
        ("st.b64 [%rd1], 1", acquire),
        ("st.release.cta.b64 [%rd1+8], 1;\nst.relaxed.cta.b64 [%rd1], 1", acquire),
        (release, "ld.relaxed.cta.b64 %rd4, [%rd1];\nld.acquire.cta.b64 %rd6, [%rd1+8]"),
        ("fence.acquire.cta;\nst.relaxed.cta.b64 [%rd1], 1", acquire),
        (release, "ld.relaxed.cta.b64 %rd4, [%rd1];\nfence.release.cta"),
        ("atom.relaxed.gpu.exch.b64 %rd6, [%rd1], 1", "ld.acquire.gpu.b64 %rd4, [%rd1]"),
    ] {
        let fault = passes(store, load).expect_err(store);
        assert_eq!(fault.kind, Kind::Race, "{store}, {load}: {fault}");
    }
}

fn across_blocks(store: &str, load: &str) -> Result<u64, Fault> {
    let body = pass(store, &format!("st.relaxed.sys.b64 [%rd1+256], 1;\n{load}"))
        .replace("%p1, %r1, 1", "%p1, %r1, 0")
        .replace("%p2, %r1, 1", "%p2, %r2, 1");
    let image = image(&format!("mov.u32 %r2, %ctaid.x;\n{body}"));
    let mut last = Ok(0);
    for seed in SEEDS {
        let (memory, device) = (Memory::zeroed(64), Device::new(seed));
        let arguments = [memory.address()];
        let ended = thread::scope(|scope| {
            let run = |group| {
                let block = Block { memory: &memory, group, groups: 2 };
                let (device, image) = (&device, &image);
                scope.spawn(move || device.run(image, "f", &arguments, &block, 32, 1))
            };
            let second = run(1);
            while memory.word(32) == 0 {
                thread::yield_now();
            }
            let first = run(0).join().expect("no panic");
            [first, second.join().expect("no panic")]
        });
        last = ended.into_iter().collect::<Result<Vec<()>, Fault>>().map(|_| memory.word(16));
        last.as_ref().map_err(Clone::clone)?;
    }
    last
}

#[test]
fn a_cta_scoped_release_does_not_reach_another_block() {
    assert_eq!(across_blocks("st.release.gpu.b64 [%rd1], 1", "ld.acquire.gpu.b64 %rd4, [%rd1]"), Ok(42));
    let fault = across_blocks("st.release.cta.b64 [%rd1], 1", "ld.acquire.cta.b64 %rd4, [%rd1]").expect_err("the scope is too small");
    assert_eq!(fault.kind, Kind::Race, "{fault}");
}

#[test]
fn an_ended_block_is_not_ordered_before_others_of_its_grid() {
    let image = image("setp.eq.u32 %p1, %r1, 0;\n@%p1 st.b64 [%rd1], 1;");
    let (memory, device) = (Memory::zeroed(8), Device::new(1));
    let run = |group, grid| device.run(&image, "f", &[memory.address()], &Block { memory: &memory, group, groups: 2 }, 32, grid);
    assert_eq!(run(0, 1), Ok(()));
    assert_eq!(run(1, 1).map_err(|fault| (fault.kind, fault.line)), Err((Kind::Race, FIRST + 1)));
    assert_eq!(run(0, 2), Ok(()));
}

#[test]
fn a_relaxed_load_does_not_order_a_weaker_load_of_the_word() {
    let wait = "st.relaxed.sys.b64 [%rd1], 1;\n$wait:\nld.relaxed.sys.b64 %rd4, [%rd1+512];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\n\
                @LATER";
    let ended = |body: &str, seed| {
        let memory = Memory::zeroed(256);
        let ended = run_blocks(&image(body), &memory, seed, 1, 1, || {
            assert!(memory.waits_for(0, 1));
            memory.set(64, 1);
        });
        ended[0].clone().map_err(|fault| (fault.kind, fault.line))
    };
    for seed in SEEDS {
        for later in ["ld.b64 %rd5, [%rd1+512];", "ld.relaxed.gpu.b64 %rd5, [%rd1+512];", "ld.b8 %r2, [%rd1+512];"] {
            assert_eq!(ended(&wait.replace("@LATER", later), seed), Err((Kind::Race, FIRST + 5)), "{later}");
            assert_eq!(
                ended(&wait.replace("relaxed.sys.b64 %rd4", "acquire.sys.b64 %rd4").replace("@LATER", later), seed),
                Ok(()),
                "{later}"
            );
            assert_eq!(ended(&wait.replace("@LATER", &format!("fence.acq_rel.sys;\n{later}")), seed), Ok(()), "{later}");
        }
        // The host changed the first byte alone.
        assert_eq!(ended(&wait.replace("@LATER", "ld.b32 %r2, [%rd1+516];"), seed), Ok(()));
    }
}

#[test]
fn an_acquire_of_another_word_does_not_order_host_writes() {
    let wait = "st.relaxed.sys.b64 [%rd1], 1;\n$wait:\nld.relaxed.sys.b64 %rd4, [%rd1+512];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\nld.acquire.sys.b64 %rd5, [%rd1+520];\n\
                ld.b64 %rd6, [%rd1+768];";
    let ended = |body: &str, seed| {
        let memory = Memory::zeroed(256);
        let ended = run_blocks(&image(body), &memory, seed, 1, 1, || {
            assert!(memory.waits_for(0, 1));
            memory.set(96, 7);
            memory.set(64, 1);
        });
        ended[0].clone().map_err(|fault| (fault.kind, fault.line))
    };
    for seed in SEEDS {
        assert_eq!(ended(wait, seed), Err((Kind::Race, FIRST + 6)));
        assert_eq!(ended(&wait.replace("[%rd1+520]", "[%rd1+512]"), seed), Ok(()));
    }
}

/// Runs one lane. The host changes words after the lane has set word 0.
fn next_to_data(body: &str, seed: u64, host: impl Fn(&Memory)) -> Result<(), (Kind, u32)> {
    let memory = Memory::zeroed(256);
    let ended = run_blocks(&image(body), &memory, seed, 1, 1, || {
        assert!(memory.waits_for(0, 1));
        host(&memory);
    });
    ended[0].clone().map_err(|fault| (fault.kind, fault.line))
}

#[test]
fn a_flag_that_shares_eight_bytes_with_data_orders_it_only_by_an_acquire() {
    let wait = "ld.b32 %r4, [%rd1+516];\nst.relaxed.sys.b64 [%rd1], 1;\n\
                $wait:\nld.relaxed.sys.b32 %r3, [%rd1+512];\nsetp.ne.s32 %p1, %r3, 1;\n@%p1 bra $wait;\nld.b32 %r4, [%rd1+516];";
    let host = |memory: &Memory| {
        memory.set(64, 7 << 32);
        memory.set(64, 7 << 32 | 1);
    };
    for seed in SEEDS {
        assert_eq!(next_to_data(wait, seed, host), Err((Kind::Race, FIRST + 6)));
        assert_eq!(next_to_data(&wait.replace("relaxed.sys.b32", "acquire.sys.b32"), seed, host), Ok(()));
    }
}

#[test]
fn data_that_a_poll_of_its_flag_found_changed_stays_unordered_when_the_flag_changes() {
    let wait = "ld.b32 %r4, [%rd1+516];\nst.relaxed.sys.b64 [%rd1], 1;\n\
                $data:\nld.relaxed.sys.b64 %rd4, [%rd1+768];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $data;\n\
                ld.relaxed.sys.b32 %r3, [%rd1+512];\nst.relaxed.sys.b64 [%rd1+128], 1;\n\
                $wait:\nld.relaxed.sys.b32 %r3, [%rd1+512];\nsetp.ne.s32 %p1, %r3, 1;\n@%p1 bra $wait;\nld.b32 %r4, [%rd1+516];";
    let host = |memory: &Memory| {
        memory.set(64, 7 << 32);
        memory.set(96, 1);
        assert!(memory.waits_for(16, 1));
        memory.set(64, 7 << 32 | 1);
    };
    for seed in SEEDS {
        assert_eq!(next_to_data(wait, seed, host), Err((Kind::Race, FIRST + 12)));
        let acquires = wait.replace("$wait:\nld.relaxed", "$wait:\nld.acquire");
        assert_eq!(next_to_data(&acquires, seed, host), Ok(()));
    }
}

#[test]
fn an_acquire_of_an_old_flag_does_not_order_data_in_the_same_eight_bytes() {
    let wait = "ld.acquire.sys.b32 %r3, [%rd1+512];\nld.b32 %r4, [%rd1+516];\nst.relaxed.sys.b64 [%rd1], 1;\n\
                $wait:\nld.relaxed.sys.b64 %rd4, [%rd1+768];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\n\
                ld.acquire.sys.b32 %r3, [%rd1+512];\nld.b32 %r4, [%rd1+516];";
    let host = |memory: &Memory| {
        memory.set(64, 7 << 32);
        memory.set(96, 1);
    };
    for seed in SEEDS {
        assert_eq!(next_to_data(wait, seed, host), Err((Kind::Race, FIRST + 8)));
        assert_eq!(next_to_data(&wait.replace("relaxed.sys.b64 %rd4", "acquire.sys.b64 %rd4"), seed, host), Ok(()));
    }
}

#[test]
fn a_store_next_to_data_keeps_the_time_when_the_data_was_seen() {
    let wait = "ld.b32 %r4, [%rd1+516];\nst.relaxed.sys.b32 [%rd1+512], 1;\nfence.acq_rel.sys;\nst.relaxed.sys.b64 [%rd1], 1;\n\
                $wait:\nld.relaxed.sys.b64 %rd4, [%rd1+768];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;\nld.b32 %r4, [%rd1+516];";
    let host = |memory: &Memory| {
        memory.set(64, 7 << 32 | 1);
        memory.set(96, 1);
    };
    for store in ["st.relaxed.sys.b32 [%rd1+512], 1;", "st.b32 [%rd1+512], 1;", "atom.relaxed.sys.add.u32 %r5, [%rd1+512], 1;"] {
        let wait = wait.replace("st.relaxed.sys.b32 [%rd1+512], 1;", store);
        for seed in SEEDS {
            assert_eq!(next_to_data(&wait, seed, host), Err((Kind::Race, FIRST + 8)), "{store}");
            assert_eq!(next_to_data(&wait.replace("relaxed.sys.b64 %rd4", "acquire.sys.b64 %rd4"), seed, host), Ok(()), "{store}");
        }
    }
}

#[test]
fn an_acquiring_update_does_not_order_what_the_host_writes_afterwards() {
    let wait = "st.relaxed.sys.b64 [%rd1], 1;\n$first:\nld.relaxed.sys.b64 %rd4, [%rd1+768];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $first;\n\
                atom.acquire.sys.global.add.u64 %rd5, [%rd1+512], 1;\nst.relaxed.sys.b64 [%rd1+128], 1;\n\
                $second:\nld.relaxed.sys.b64 %rd4, [%rd1+1024];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $second;\nld.b64 %rd6, [%rd1+512];";
    let ended = |body: &str, seed| {
        let memory = Memory::zeroed(256);
        let ended = run_blocks(&image(body), &memory, seed, 1, 1, || {
            assert!(memory.waits_for(0, 1));
            memory.set(64, 5);
            memory.set(96, 1);
            assert!(memory.waits_for(16, 1));
            assert_eq!(memory.word(64), 6, "an update of system scope is visible");
            memory.set(64, 9);
            memory.set(128, 1);
        });
        ended[0].clone().map_err(|fault| (fault.kind, fault.line))
    };
    for seed in SEEDS {
        assert_eq!(ended(wait, seed), Err((Kind::Race, FIRST + 11)));
        assert_eq!(ended(&wait.replace("ld.relaxed.sys.b64 %rd4, [%rd1+1024]", "ld.acquire.sys.b64 %rd4, [%rd1+1024]"), seed), Ok(()));
    }
}

#[test]
fn a_weak_store_to_a_word_of_system_scope_is_reported_whatever_loads_precede_it() {
    let first = "ld.relaxed.sys.b64 %rd5, [%rd1];";
    for between in ["", "ld.b64 %rd4, [%rd1];\n", "ld.relaxed.sys.b64 %rd4, [%rd1];\n", "ld.relaxed.gpu.b64 %rd4, [%rd1];\n"] {
        let line = 1 + u32::from(!between.is_empty());
        let body = format!("{first}\n{between}st.b64 [%rd1], 2;");
        for seed in SEEDS {
            let fault = run(&body, seed, 1).map(drop).expect_err(&body);
            assert_eq!((fault.kind, fault.line), (Kind::Race, FIRST + line), "{between}: {fault}");
        }
    }
}

#[test]
fn a_weak_store_beside_a_published_word_stays_hidden() {
    // The host learns of the weak store by a word that carries no order.
    let body = "st.relaxed.sys.b32 [%rd1], 1;\nfence.acq_rel.sys;\nst.relaxed.sys.b64 [%rd1+128], 1;\nst.b32 [%rd1+4], 2;\nst.relaxed.sys.b64 [%rd1+64], 1;\n\
                $wait:\nld.relaxed.sys.b64 %rd4, [%rd1+512];\nsetp.ne.s64 %p1, %rd4, 1;\n@%p1 bra $wait;";
    for seed in 0..32 {
        let memory = Memory::zeroed(256);
        let ended = run_blocks(&image(body), &memory, seed, 1, 1, || {
            assert!(memory.waits_for(8, 1) && memory.waits_for(16, 1));
            let seen = memory.word(0);
            memory.set(64, 1);
            assert_eq!(seen, 1, "the weak store is visible without a fence, seed {seed}");
        });
        assert_eq!(ended[0], Ok(()));
    }
}
