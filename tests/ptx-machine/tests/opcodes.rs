//! With `RINGMEM_PTXAS` set, NVIDIA's assembler must accept the opcodes.

mod host;

use std::collections::BTreeSet;
use std::fmt::Write;

use ringmem_ptx_machine::{Device, Image};

use host::{Memory, assemble};

const F1: u64 = 0x3f80_0000;
const F2: u64 = 0x4000_0000;
const F_MINUS_2_5: u64 = 0xc020_0000;
const F_NAN: u64 = 0x7fff_ffff;
const D1: u64 = 0x3ff0_0000_0000_0000;
const D3: u64 = 0x4008_0000_0000_0000;
const D_MINUS_2_5: u64 = 0xc004_0000_0000_0000;
const ALL: u64 = u64::MAX;
const ALL32: u64 = 0xffff_ffff;
const MIN32: u64 = 0x8000_0000;
const MIN64: u64 = 1 << 63;

/// Instructions that write register 9, arguments in registers 1 to 3, and the result. `%p1` is true if `a` is odd.
const CASES: &[(&str, [u64; 3], u64)] = &[
    ("mov.b64 %rd9, %rd1;", [7, 0, 0], 7),
    ("mov.u32 %r9, 4294967295;", [0; 3], ALL32),
    ("mov.b64 %rd9, {%r1, %r2};", [1, 2, 0], 0x2_0000_0001),
    ("mov.b64 {%r9, %r8}, %rd1;", [0x5_0000_0003, 0, 0], 3),
    ("mov.b64 {%r8, %r9}, %rd1;", [0x5_0000_0003, 0, 0], 5),
    ("mov.b32 %r9, {%rs1, %rs2};", [0x1234, 0xabcd, 0], 0xabcd_1234),
    ("mov.pred %p9, -1;", [0; 3], 1),
    ("mov.b16 %rs9, 0xfffe;", [0; 3], 0xfffe),
    ("add.s64 %rd9, %rd1, %rd2;", [ALL, 2, 0], 1),
    ("add.s32 %r9, %r1, %r2;", [ALL32, 2, 0], 1),
    ("add.s16 %rs9, %rs1, %rs2;", [0xffff, 2, 0], 1),
    ("add.s32 %r9, %r1, -3;", [2, 0, 0], ALL32),
    ("sub.s64 %rd9, %rd1, %rd2;", [1, 2, 0], ALL),
    ("sub.s32 %r9, %r1, %r2;", [1, 2, 0], ALL32),
    ("add.cc.u64 %rd8, %rd1, %rd1;\n addc.u64 %rd9, %rd2, %rd3;", [MIN64, 5, 6], 12),
    ("add.cc.u32 %r8, %r1, %r1;\n addc.cc.u32 %r7, %r2, %r2;\n addc.u32 %r9, %r3, 0;", [MIN32, ALL32, 6], 7),
    ("sub.cc.u64 %rd8, %rd1, %rd2;\n subc.u64 %rd9, %rd3, 0;", [1, 2, 10], 9),
    ("sub.cc.u32 %r8, %r1, %r2;\n subc.u32 %r9, %r3, 0;", [2, 2, 10], 10),
    ("mul.lo.s32 %r9, %r1, %r2;", [0x10001, 0x10001, 0], 0x20001),
    ("mul.lo.s64 %rd9, %rd1, %rd2;", [ALL, 3, 0], ALL - 2),
    ("mul.hi.u64 %rd9, %rd1, %rd2;", [MIN64, 6, 0], 3),
    ("mul.hi.s64 %rd9, %rd1, %rd2;", [ALL, 5, 0], ALL),
    ("mul.hi.u32 %r9, %r1, %r2;", [MIN32, 6, 0], 3),
    ("mul.wide.u32 %rd9, %r1, %r2;", [ALL32, ALL32, 0], 0xffff_fffe_0000_0001),
    ("mul.wide.s32 %rd9, %r1, %r2;", [ALL32, 5, 0], ALL - 4),
    ("mul.wide.u16 %r9, %rs1, %rs2;", [0xffff, 0xffff, 0], 0xfffe_0001),
    ("mad.lo.s64 %rd9, %rd1, %rd2, %rd3;", [3, 4, 5], 17),
    ("mad.lo.s32 %r9, %r1, %r2, %r3;", [0x10000, 0x10000, 5], 5),
    ("mad.wide.u32 %rd9, %r1, %r2, %rd3;", [ALL32, 2, 3], 0x2_0000_0001),
    ("mad.hi.u32 %r9, %r1, %r2, %r3;", [MIN32, 6, 4], 7),
    ("div.u32 %r9, %r1, %r2;", [ALL32, 16, 0], 0x0fff_ffff),
    ("div.s32 %r9, %r1, %r2;", [ALL32 - 6, 2, 0], ALL32 - 2),
    ("div.s64 %rd9, %rd1, %rd2;", [ALL - 6, 2, 0], ALL - 2),
    ("rem.u64 %rd9, %rd1, %rd2;", [100, 7, 0], 2),
    ("rem.s64 %rd9, %rd1, %rd2;", [ALL - 6, 4, 0], ALL - 2),
    ("min.u64 %rd9, %rd1, %rd2;", [ALL, 1, 0], 1),
    ("min.s64 %rd9, %rd1, %rd2;", [ALL, 1, 0], ALL),
    ("min.u32 %r9, %r1, %r2;", [ALL32, 1, 0], 1),
    ("max.u64 %rd9, %rd1, %rd2;", [ALL, 1, 0], ALL),
    ("max.s64 %rd9, %rd1, %rd2;", [ALL, 1, 0], 1),
    ("max.u32 %r9, %r1, %r2;", [ALL32, 1, 0], ALL32),
    ("max.s32 %r9, %r1, %r2;", [ALL32, 1, 0], 1),
    ("and.b64 %rd9, %rd1, %rd2;", [0xff0, 0x0ff, 0], 0xf0),
    ("and.b16 %rs9, %rs1, %rs2;", [0x1_0ff0, 0x1_00ff, 0], 0xf0),
    ("or.b32 %r9, %r1, %r2;", [0xf0, 0x0f, 0], 0xff),
    ("or.b64 %rd9, %rd1, %rd2;", [MIN64, 0x0f, 0], MIN64 | 0x0f),
    ("xor.b64 %rd9, %rd1, -1;", [1, 0, 0], ALL - 1),
    ("xor.b16 %rs9, %rs1, %rs2;", [0xff00, 0x0ff0, 0], 0xf0f0),
    ("not.b32 %r9, %r1;", [1, 0, 0], ALL32 - 1),
    ("not.b64 %rd9, %rd1;", [0, 0, 0], ALL),
    ("not.pred %p9, %p1;", [1, 0, 0], 0),
    ("and.pred %p9, %p1, %p1;", [1, 0, 0], 1),
    ("setp.eq.b32 %p8, %r2, 2;\n or.pred %p9, %p1, %p8;", [0, 2, 0], 1),
    ("xor.pred %p9, %p1, %p1;", [1, 0, 0], 0),
    ("neg.s32 %r9, %r1;", [1, 0, 0], ALL32),
    ("neg.s64 %rd9, %rd1;", [MIN64, 0, 0], MIN64),
    ("abs.s64 %rd9, %rd1;", [ALL - 4, 0, 0], 5),
    ("shl.b32 %r9, %r1, %r2;", [3, 31, 0], MIN32),
    ("shl.b32 %r9, %r1, %r2;", [3, 32, 0], 0),
    ("shl.b64 %rd9, %rd1, %r2;", [3, 63, 0], MIN64),
    ("shl.b64 %rd9, %rd1, 64;", [3, 0, 0], 0),
    ("shr.u64 %rd9, %rd1, %r2;", [MIN64, 63, 0], 1),
    ("shr.u64 %rd9, %rd1, %r2;", [MIN64, 70, 0], 0),
    ("shr.s64 %rd9, %rd1, %r2;", [MIN64, 63, 0], ALL),
    ("shr.s64 %rd9, %rd1, %r2;", [MIN64, 99, 0], ALL),
    ("shr.s32 %r9, %r1, %r2;", [MIN32, 4, 0], 0xf800_0000),
    ("shr.u32 %r9, %r1, %r2;", [MIN32, 4, 0], 0x0800_0000),
    ("popc.b32 %r9, %r1;", [0xff0f, 0, 0], 12),
    ("popc.b64 %r9, %rd1;", [ALL, 0, 0], 64),
    ("clz.b32 %r9, %r1;", [1, 0, 0], 31),
    ("clz.b64 %r9, %rd1;", [0, 0, 0], 64),
    ("brev.b32 %r9, %r1;", [1, 0, 0], MIN32),
    ("brev.b64 %rd9, %rd1;", [2, 0, 0], 1 << 62),
    ("shf.l.wrap.b32 %r9, %r1, %r2, %r3;", [MIN32, 1, 33], 3),
    ("shf.r.wrap.b32 %r9, %r1, %r2, %r3;", [2, 1, 1], 0x8000_0001),
    ("shf.r.clamp.b32 %r9, %r1, %r2, %r3;", [2, 1, 40], 1),
    ("shf.l.clamp.b32 %r9, %r1, %r2, %r3;", [5, 1, 40], 5),
    ("bfe.u32 %r9, %r1, 4, 8;", [0xabcd, 0, 0], 0xbc),
    ("bfe.s32 %r9, %r1, 4, 8;", [0x0800, 0, 0], 0xffff_ff80),
    ("bfe.s32 %r9, %r1, 28, 8;", [MIN32, 0, 0], 0xffff_fff8),
    ("bfe.u64 %rd9, %rd1, 60, 4;", [MIN64, 0, 0], 8),
    ("bfi.b32 %r9, %r1, %r2, 8, 8;", [0xab, 0xffff_ffff, 0], 0xffff_abff),
    ("bfi.b64 %rd9, %rd1, %rd2, 60, 8;", [0xff, 1, 0], 0xf000_0000_0000_0001),
    ("prmt.b32 %r9, %r1, %r2, 0x7610;", [0x4433_2211, 0x8877_6655, 0], 0x8877_2211),
    ("prmt.b32 %r9, %r1, %r2, 0x8888;", [0x80, 0, 0], ALL32),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0x96;", [0xf0, 0xcc, 0xaa], 0x96),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0x80;", [0xf0, 0xcc, 0xaa], 0x80),
    ("setp.eq.b64 %p9, %rd1, %rd2;", [5, 5, 0], 1),
    ("setp.ne.b32 %p9, %r1, %r2;", [5, 5, 0], 0),
    ("setp.ne.b64 %p9, %rd1, %rd2;", [MIN64, 0, 0], 1),
    ("setp.ne.b16 %p9, %rs1, %rs2;", [0x1_0005, 5, 0], 0),
    ("setp.eq.b16 %p9, %rs1, %rs2;", [0x1_0005, 5, 0], 1),
    ("setp.ge.s64 %p9, %rd1, %rd2;", [ALL, 1, 0], 0),
    ("setp.gt.s64 %p9, %rd1, %rd2;", [1, ALL, 0], 1),
    ("setp.eq.b32 %p9, %r1, %r2;", [MIN64 | 5, 5, 0], 1),
    ("setp.gt.u32 %p9, %r1, %r2;", [ALL32, 1, 0], 1),
    ("setp.gt.u64 %p9, %rd1, %rd2;", [5, 5, 0], 0),
    ("setp.ge.u64 %p9, %rd1, %rd2;", [ALL, 1, 0], 1),
    ("setp.le.u64 %p9, %rd1, %rd2;", [5, 5, 0], 1),
    ("setp.lt.u64 %p9, %rd1, %rd2;", [ALL, 1, 0], 0),
    ("setp.lt.s64 %p9, %rd1, %rd2;", [ALL, 1, 0], 1),
    ("setp.gt.s32 %p9, %r1, %r2;", [1, ALL32, 0], 1),
    ("setp.ge.u32 %p9, %r1, 4;", [4, 0, 0], 1),
    ("setp.hi.u32 %p9, %r1, 4;", [5, 0, 0], 1),
    ("setp.lt.s16 %p9, %rs1, %rs2;", [0xffff, 0, 0], 1),
    ("setp.lt.and.u64 %p9, %rd1, %rd2, %p1;", [1, 2, 0], 1),
    ("setp.lt.or.u64 %p9, %rd2, %rd1, !%p1;", [1, 2, 0], 0),
    ("setp.lt.u64 %p8|%p9, %rd1, %rd2;", [1, 2, 0], 0),
    ("setp.lt.f32 %p9, %f1, %f2;", [F_MINUS_2_5, F1, 0], 1),
    ("setp.ne.f32 %p9, %f1, %f2;", [F_NAN, F1, 0], 0),
    ("setp.neu.f32 %p9, %f1, %f2;", [F_NAN, F1, 0], 1),
    ("setp.nan.f32 %p9, %f1, %f2;", [F_NAN, F1, 0], 1),
    ("setp.num.f64 %p9, %fd1, %fd1;", [D1, 0, 0], 1),
    ("setp.geu.f64 %p9, %fd1, %fd2;", [D1, D3, 0], 0),
    ("selp.b64 %rd9, %rd1, %rd2, %p1;", [3, 4, 0], 3),
    ("selp.b32 %r9, %r1, %r2, %p1;", [2, 4, 0], 4),
    ("selp.b16 %rs9, %rs1, %rs2, %p1;", [2, 0x1_0004, 0], 4),
    ("cvt.u64.u32 %rd9, %r1;", [ALL, 0, 0], ALL32),
    ("cvt.s64.s32 %rd9, %r1;", [MIN32, 0, 0], 0xffff_ffff_8000_0000),
    ("cvt.u32.u64 %r9, %rd1;", [0x7_0000_0009, 0, 0], 9),
    ("cvt.s32.s8 %r9, %r1;", [0x80, 0, 0], 0xffff_ff80),
    ("cvt.s8.s32 %r9, %r1;", [0x80, 0, 0], 0xffff_ff80),
    ("cvt.s16.u64 %rd9, %rd1;", [0x1_8000, 0, 0], 0xffff_ffff_ffff_8000),
    ("cvt.rzi.s16.f32 %r9, %f1;", [F_MINUS_2_5, 0, 0], ALL32 - 1),
    ("cvt.rn.sat.f32.u32 %f9, %r1;", [2, 0, 0], F1),
    ("cvt.rn.sat.f32.s32 %f9, %r1;", [ALL32, 0, 0], 0),
    ("cvt.u16.u32 %rs9, %r1;", [0x1_2345, 0, 0], 0x2345),
    ("cvt.u32.u16 %r9, %rs1;", [0x1_8000, 0, 0], 0x8000),
    ("cvt.sat.u8.s32 %r9, %r1;", [300, 0, 0], 255),
    ("cvt.rn.f32.u32 %f9, %r1;", [2, 0, 0], F2),
    ("cvt.rn.f64.s64 %fd9, %rd1;", [3, 0, 0], D3),
    ("cvt.rzi.s32.f32 %r9, %f1;", [F_MINUS_2_5, 0, 0], ALL32 - 1),
    ("cvt.rni.s32.f64 %r9, %fd1;", [D_MINUS_2_5, 0, 0], ALL32 - 1),
    ("cvt.rmi.s32.f32 %r9, %f1;", [F_MINUS_2_5, 0, 0], ALL32 - 2),
    ("cvt.rpi.s64.f64 %rd9, %fd1;", [D_MINUS_2_5, 0, 0], ALL - 1),
    ("cvt.rzi.u32.f32 %r9, %f1;", [F_MINUS_2_5, 0, 0], 0),
    ("cvt.rzi.u32.f32 %r9, %f1;", [0x5000_0000, 0, 0], ALL32),
    ("cvt.f64.f32 %fd9, %f1;", [F_MINUS_2_5, 0, 0], D_MINUS_2_5),
    ("cvt.rn.f32.f64 %f9, %fd1;", [D_MINUS_2_5, 0, 0], F_MINUS_2_5),
    ("cvt.rmi.f32.f32 %f9, %f1;", [F_MINUS_2_5, 0, 0], 0xc040_0000),
    ("cvt.sat.f32.f32 %f9, %f1;", [F2, 0, 0], F1),
    ("add.rn.f32 %f9, %f1, %f2;", [F1, F1, 0], F2),
    ("add.f32 %f9, %f1, %f2;", [F1, F_NAN, 0], F_NAN),
    ("sub.rn.f64 %fd9, %fd1, %fd2;", [D3, D1, 0], F2 << 32),
    ("add.rn.f64 %fd9, %fd1, %fd2;", [D1, D1, 0], F2 << 32),
    ("mul.rn.f32 %f9, %f1, %f2;", [F2, F_MINUS_2_5, 0], 0xc0a0_0000),
    ("div.rn.f32 %f9, %f1, %f2;", [F1, 0x4040_0000, 0], 0x3eaa_aaab),
    ("div.rn.f64 %fd9, %fd1, %fd2;", [D1, F2 << 32, 0], 0x3fe0_0000_0000_0000),
    ("fma.rn.f32 %f9, %f1, %f2, %f3;", [0x3f80_0001, 0x3f7f_ffff, 0xbf80_0000], 0x337f_fffe),
    ("fma.rn.f64 %fd9, %fd1, %fd2, %fd3;", [D3, D3, D1], 0x4024_0000_0000_0000),
    ("mad.rn.f32 %f9, %f1, %f2, %f3;", [F2, F2, F1], 0x40a0_0000),
    ("mad.rn.f64 %fd9, %fd1, %fd2, %fd3;", [D3, D3, D1], 0x4024_0000_0000_0000),
    ("add.f32 %f9, %f1, 0f3F800000;", [F1, 0, 0], F2),
    ("add.f64 %fd9, %fd1, 0d3FF0000000000000;", [D1, 0, 0], F2 << 32),
    ("min.f32 %f9, %f1, %f2;", [F_NAN, F2, 0], F2),
    ("max.f32 %f9, %f1, %f2;", [F1, F_NAN, 0], F1),
    ("min.f32 %f9, %f1, %f2;", [0, MIN32, 0], MIN32),
    ("max.f64 %fd9, %fd1, %fd2;", [D_MINUS_2_5, D1, 0], D1),
    ("neg.f32 %f9, %f1;", [F1, 0, 0], 0xbf80_0000),
    ("abs.f64 %fd9, %fd1;", [D_MINUS_2_5, 0, 0], 0x4004_0000_0000_0000),
    ("sqrt.rn.f32 %f9, %f1;", [0x4080_0000, 0, 0], F2),
    ("rcp.rn.f32 %f9, %f1;", [F2, 0, 0], 0x3f00_0000),
    ("copysign.f32 %f9, %f1, %f2;", [F_MINUS_2_5, F1, 0], 0xbf80_0000),
    ("mov.u32 %r9, %laneid;", [0; 3], 0),
    ("mov.u64 %rd9, %gridid;", [0; 3], 1),
    ("mov.u32 %r9, %ntid.x;", [0; 3], 32),
    ("mov.u32 %r9, %ctaid.y;", [0; 3], 0),
    ("mov.u32 %r9, %lanemask_gt;", [0; 3], ALL32 - 1),
    ("st.b32 [%rd4], %r1;\n ld.b32 %r9, [%rd4];", [ALL, 0, 0], ALL32),
    ("st.b8 [%rd4+3], %r1;\n ld.s8 %r9, [%rd4+3];", [0x80, 0, 0], 0xffff_ff80),
    ("st.b16 [%rd4+2], %rs1;\n ld.u16 %r9, [%rd4+2];", [0x1_8000, 0, 0], 0x8000),
    ("st.v2.b64 [%rd4], {%rd1, %rd2};\n ld.v4.b32 {_, %r8, %r9, _}, [%rd4];", [1, 2, 0], 2),
    ("st.b32 [%rd4], %r1;\n ld.b8 %rs9, [%rd4+1];", [0x8765_4321, 0, 0], 0x43),
    ("st.v4.b32 [%rd4], {%r1, %r2, %r3, %r1};\n ld.v2.b64 {%rd8, %rd9}, [%rd4];", [1, 2, 3], 0x1_0000_0003),
    ("st.relaxed.sys.v2.u64 [%rd4], {%rd1, %rd2};\n ld.relaxed.sys.v2.u64 {%rd8, %rd9}, [%rd4];", [1, 2, 0], 2),
    ("st.release.sys.b64 [%rd4], %rd1;\n fence.acq_rel.sys;\n ld.relaxed.sys.b64 %rd9, [%rd4];", [5, 0, 0], 5),
    ("st.relaxed.sys.b64 [%rd4], %rd1;\n ld.acquire.sys.b64 %rd9, [%rd4];", [5, 0, 0], 5),
    ("st.release.gpu.b32 [%rd4], %r1;\n fence.sc.gpu;\n ld.relaxed.gpu.b32 %r9, [%rd4];", [5, 0, 0], 5),
    ("st.volatile.b32 [%rd4], %r1;\n membar.sys;\n ld.volatile.b32 %r9, [%rd4];", [5, 0, 0], 5),
    ("st.b64 [%rd4], %rd1;\n atom.add.u64 %rd9, [%rd4], %rd2;", [5, 6, 0], 5),
    ("st.b64 [%rd4], %rd1;\n red.add.u64 [%rd4], %rd2;\n ld.b64 %rd9, [%rd4];", [5, 6, 0], 11),
    (
        "cvta.to.global.u64 %rd8, %rd4;\n st.b64 [%rd4], %rd1;\n red.release.gpu.global.add.u64 [%rd8], %rd2;\n ld.b64 %rd9, [%rd4];",
        [5, 6, 0],
        11,
    ),
    (
        "cvta.to.global.u64 %rd8, %rd4;\n st.b64 [%rd4], %rd1;\n atom.relaxed.gpu.global.cas.b64 %rd7, [%rd8], %rd1, %rd2;\n ld.b64 %rd9, [%rd4];",
        [5, 6, 0],
        6,
    ),
    ("st.b32 [%rd4], %r1;\n atom.relaxed.sys.cas.b32 %r8, [%rd4], %r1, %r2;\n ld.b32 %r9, [%rd4];", [5, 6, 0], 6),
    ("st.b32 [%rd4], %r1;\n atom.acq_rel.gpu.cas.b32 %r9, [%rd4], %r2, %r3;", [5, 6, 7], 5),
    ("st.b32 [%rd4], %r1;\n atom.exch.b32 %r8, [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [5, 6, 0], 6),
    ("st.b32 [%rd4], %r1;\n red.max.s32 [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [ALL32, 6, 0], 6),
    ("st.b32 [%rd4], %r1;\n red.min.u32 [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [ALL32, 6, 0], 6),
    ("st.b32 [%rd4], %r1;\n red.and.b32 [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [6, 3, 0], 2),
    ("st.b32 [%rd4], %r1;\n red.or.b32 [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [6, 3, 0], 7),
    ("st.b32 [%rd4], %r1;\n red.xor.b32 [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [6, 3, 0], 5),
    ("st.b32 [%rd4], %r1;\n atom.inc.u32 %r8, [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [6, 6, 0], 0),
    ("st.b32 [%rd4], %r1;\n atom.dec.u32 %r8, [%rd4], %r2;\n ld.b32 %r9, [%rd4];", [0, 6, 0], 6),
    ("st.f32 [%rd4], %f1;\n atom.add.f32 %f8, [%rd4], %f1;\n ld.f32 %f9, [%rd4];", [F1, 0, 0], F2),
    ("st.shared.b32 [tile+4], %r1;\n ld.shared.b32 %r9, [tile+4];", [9, 0, 0], 9),
    ("st.relaxed.cta.shared.u64 [tile+8], %rd1;\n ld.relaxed.cta.shared.u64 %rd9, [tile+8];", [1 << 40, 0, 0], 1 << 40),
    ("mov.u64 %rd8, tile;\n cvta.shared.u64 %rd8, %rd8;\n st.b32 [%rd8], %r1;\n ld.shared.b32 %r9, [tile];", [9, 0, 0], 9),
    ("st.local.b64 [own+8], %rd1;\n ld.local.b32 %r9, [own+8];", [9, 0, 0], 9),
    ("mov.u64 %rd8, own;\n cvta.local.u64 %rd8, %rd8;\n st.b64 [%rd8], %rd1;\n ld.local.b64 %rd9, [own];", [9, 0, 0], 9),
    ("ld.global.b64 %rd9, [table+8];", [0; 3], 0x0102),
    ("cvta.to.global.u64 %rd8, %rd4;\n st.global.b32 [%rd8+4], %r1;\n ld.global.b32 %r9, [%rd8+4];", [9, 0, 0], 9),
    ("ld.param.b32 %r9, [a+4];", [0x5_0000_0003, 0, 0], 5),
    ("bra $after;\n mov.u32 %r9, 1;\n$after:\n mov.u32 %r9, 2;", [0; 3], 2),
    ("mov.u32 %r9, 2;\n bra.uni $after;\n mov.u32 %r9, 1;\n$after:", [0; 3], 2),
    (
        "targets: .branchtargets $zero, $one, $zero;\n brx.idx %r1, targets;\n$zero:\n mov.u32 %r9, 7;\n bra $after;\n$one:\n mov.u32 %r9, 8;\n$after:",
        [1, 0, 0],
        8,
    ),
    ("mov.u32 %r9, 1;\n{\n.reg .b32 %r9;\n mov.u32 %r9, 2;\n}", [0; 3], 1),
    (
        "mov.u32 %r9, 0;
{
again:
 add.s32 %r9, %r9, 1;
 setp.lt.s32 %p8, %r9, 3;
 @%p8 bra again;
}
{
again:
 add.s32 %r9, %r9, 10;
 setp.lt.s32 %p8, %r9, 20;
 @%p8 bra again;
}",
        [0; 3],
        23,
    ),
    ("mov.u32 %r9, 1;\n@%p1 mov.u32 %r9, 2;\n@!%p1 mov.u32 %r9, 3;", [1, 0, 0], 2),
    (
        "{\n.param .b64 given;\n.param .b64 result;\nst.param.b64 [given], %rd1;\ncall.uni (result), twice, (given);\nld.param.b64 %rd9, [result];\n}",
        [21, 0, 0],
        42,
    ),
    ("activemask.b32 %r8;\n and.b32 %r9, %r8, 1;", [0; 3], 1),
    ("nanosleep.u32 20;\n mov.u32 %r9, 4;", [0; 3], 4),
];

/// Instructions of several lanes, and lane 5's result. Lane `l` has `l` in `%r1`.
const TOGETHER: &[(&str, u64)] = &[
    ("shfl.sync.idx.b32 %r9, %r1, 7, 31, -1;", 7),
    ("shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;", 4),
    ("shfl.sync.up.b32 %r9, %r1, 2, 0, -1;", 3),
    ("shfl.sync.up.b32 %r9, %r1, 9, 0, -1;", 5),
    ("shfl.sync.down.b32 %r9, %r1, 2, 31, -1;", 7),
    ("shfl.sync.idx.b32 %r9|%p8, %r1, 2, 0x1c03, -1;", 6),
    ("shfl.sync.down.b32 %r8|%p8, %r1, 30, 31, -1;\n selp.b32 %r9, 1, 0, %p8;", 0),
    ("setp.lt.u32 %p8, %r1, 3;\n vote.sync.ballot.b32 %r9, %p8, -1;", 7),
    ("setp.lt.u32 %p8, %r1, 3;\n vote.sync.any.pred %p9, %p8, -1;\n selp.b32 %r9, 1, 0, %p9;", 1),
    ("setp.lt.u32 %p8, %r1, 3;\n vote.sync.all.pred %p9, !%p8, -1;\n selp.b32 %r9, 1, 0, %p9;", 0),
    ("setp.lt.u32 %p8, %r1, 99;\n vote.sync.uni.pred %p9, %p8, -1;\n selp.b32 %r9, 1, 0, %p9;", 1),
    (
        "shl.b32 %r8, %r1, 2;\n mov.u32 %r7, tile;\n add.s32 %r8, %r8, %r7;\n st.shared.b32 [%r8], %r1;\n bar.warp.sync -1;\n ld.shared.b32 %r9, [tile+36];",
        9,
    ),
    (
        "shl.b32 %r8, %r1, 2;\n mov.u32 %r7, tile;\n add.s32 %r8, %r8, %r7;\n st.shared.b32 [%r8], %r1;\n bar.sync 0;\n ld.shared.b32 %r9, [tile+40];",
        10,
    ),
];

const HEAD: &str = ".version 7.0
.target sm_75
.address_size 64
.global .align 8 .b64 table[2] = {1, 258};
.func (.param .b64 doubled) twice(.param .b64 number)
{
 .reg .b64 %rd<3>;
 ld.param.b64 %rd1, [number];
 add.s64 %rd2, %rd1, %rd1;
 st.param.b64 [doubled], %rd2;
 ret;
}
";

fn kind(case: &str) -> &str {
    ["%rd9", "%rs9", "%r9", "%fd9", "%f9", "%p9"].into_iter().find(|name| case.contains(name)).expect("a case writes register 9")
}

fn text() -> String {
    let mut text = HEAD.to_owned();
    let cases = CASES.iter().map(|case| (case.0, true)).chain(TOGETHER.iter().map(|case| (case.0, false)));
    for (number, (case, is_single)) in cases.enumerate() {
        let store = match if is_single { kind(case) } else { "%r9" } {
            "%rs9" => "cvt.u64.u16 %rd5, %rs9;",
            "%r9" => "cvt.u64.u32 %rd5, %r9;",
            "%f9" => "mov.b32 %r6, %f9;\n cvt.u64.u32 %rd5, %r6;",
            "%fd9" => "mov.b64 %rd5, %fd9;",
            "%p9" => "selp.b64 %rd5, 1, 0, %p9;",
            _ => "mov.b64 %rd5, %rd9;",
        };
        let lane = if is_single { 0 } else { 5 };
        let first = if is_single { "@%p7 bra $done;\n cvt.u32.u64 %r1, %rd1;" } else { "mov.u32 %r1, %laneid;" };
        write!(
            text,
            ".visible .entry case_{number}(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c)
{{
 .reg .pred %p<10>;
 .reg .b16 %rs<10>;
 .reg .b32 %r<10>;
 .reg .b64 %rd<10>;
 .reg .f32 %f<10>;
 .reg .f64 %fd<10>;
 .shared .align 8 .b8 tile[128];
 .local .align 8 .b8 own[16];
 mov.u32 %r4, %laneid;
 setp.ne.u32 %p7, %r4, {lane};
 ld.param.u64 %rd6, [out];
 add.s64 %rd4, %rd6, 16;
 ld.param.u64 %rd1, [a];
 ld.param.u64 %rd2, [b];
 ld.param.u64 %rd3, [c];
 {first}
 cvt.u32.u64 %r2, %rd2;
 cvt.u32.u64 %r3, %rd3;
 cvt.u16.u64 %rs1, %rd1;
 cvt.u16.u64 %rs2, %rd2;
 mov.b32 %f1, %r1;
 mov.b32 %f2, %r2;
 mov.b32 %f3, %r3;
 mov.b64 %fd1, %rd1;
 mov.b64 %fd2, %rd2;
 mov.b64 %fd3, %rd3;
 and.b64 %rd5, %rd1, 1;
 setp.ne.s64 %p1, %rd5, 0;
 {case}
 {store}
 @%p7 bra $done;
 st.b64 [%rd6], %rd5;
$done:
 ret;
}}
"
        )
        .expect("a string");
    }
    text.replace("\n  ", "\n ")
}

#[test]
fn every_opcode_computes_the_isa_result() {
    let image = Image::parse(&text()).unwrap_or_else(|fault| panic!("{fault}"));
    let expected = CASES.iter().copied().chain(TOGETHER.iter().map(|(case, expected)| (*case, [0; 3], *expected)));
    let mut wrong = Vec::new();
    for (number, (case, [a, b, c], expected)) in expected.enumerate() {
        let memory = Memory::zeroed(64);
        let ended = Device::new(3).run(&image, &format!("case_{number}"), &[memory.address(), a, b, c], &memory, 32, 1);
        let found = memory.word(0);
        if ended.is_err() || found != expected {
            wrong.push(format!("{case} with {a:#x}, {b:#x}, {c:#x}: {found:#x} instead of {expected:#x}, {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ptxas_accepts_every_case() {
    assemble(&text(), "sm_75");
}

fn opcodes(text: &str) -> BTreeSet<&str> {
    let statements = text.lines().flat_map(|line| line.split([';', '{', '}']));
    let firsts = statements.filter_map(|statement| statement.split_whitespace().find(|word| !word.starts_with('@')));
    firsts.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()) && !word.ends_with([',', ':'])).collect()
}

#[test]
fn every_opcode_of_the_image_has_a_case() {
    let text = text();
    let cases = opcodes(&text);
    let without: Vec<&str> =
        opcodes(include_str!("../../../kernels-rs/ptx/ringmem.ptx")).into_iter().filter(|opcode| !cases.contains(opcode)).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn an_unimplemented_opcode_is_named_with_its_line() {
    for opcode in [
        "tex.2d.v4.f32.f32 {%f1, %f1, %f1, %f1}, [t, {%f1, %f1}];",
        "add.rz.f32 %f1, %f1, %f1;",
        "sin.approx.f32 %f1, %f1;",
        "frob %f1;",
        "mul.sat.f32 %f1, %f1, %f1;",
        "fma.rn.sat.f32 %f1, %f1, %f1, %f1;",
        "add.f32 %f1, %f1, 0d3FF0000000000000;",
        "min.relu.s32 %r1, -5, -7;",
        "neg.sat.f32 %f1, %f1;",
        "mul.lo.f32 %f1, %f1, %f1;",
        "mul.s32 %r1, %r1, %r1;",
        "add.other.s32 %r1, %r1, %r1;",
        "setp.lt.other.f32 %p1, %f1, %f1;",
        "bar.sync.other 0;",
        "exit.other;",
    ] {
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f()\n{{\n .reg .f32 %f<2>; .reg .b32 %r<2>; .reg .pred %p<2>;\n {opcode}\n ret;\n}}\n"
        );
        let fault = Image::parse(&text).expect_err("it is not implemented");
        let name = opcode.split([' ', ';']).next().unwrap_or_default();
        assert!(fault.line == 7 && fault.text.contains(name), "{fault}");
    }
}
