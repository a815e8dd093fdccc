use ringmem_benches::{Subject, Workload};

use crate::{blocks, copies};

pub fn workloads() -> Vec<Workload> {
    let beside = |name, ours, bare| {
        let subjects: Vec<Subject> = vec![("ringmem Buffer", ours), ("backend", bare)];
        Workload { unit: "instructions/call", ..Workload::one(name, 1.15, subjects) }
    };
    vec![
        beside("buffer-alloc-drop", blocks::plain, blocks::bare),
        beside("copy-from-64", copies::copy_from, copies::bare_from),
        beside("copy-to-64", copies::copy_to, copies::bare_to),
        beside("fill-64", copies::fill, copies::bare_fill),
    ]
}
