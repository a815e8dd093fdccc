//! Checks of the kernels' memory operations in their PTX.
//!
//! 1. Never allowed ([`rules`]): an ordered or atomic access without order or with a scope that excludes the
//!    host; a read-modify-write whose scope includes the host, which is not atomic over the bus; a
//!    non-coherent load; local memory; a missing `RINGMEM_ABI`.
//! 2. The rest is counted per function and compared with a checked-in table ([`against`]).
//!
//! Loom, not this check, shows that the orderings suffice.

use std::collections::BTreeMap;
use std::fmt;

use crate::module::{Function, Operation};
pub use crate::module::{Module, is_panic, readable};
use crate::{Failure, loops};

const COLUMNS: [&str; 15] = [
    "ld.acquire.sys",
    "ld.relaxed.sys",
    "st.relaxed.sys",
    "st.release.sys",
    "fence",
    "atom.sys",
    "atom.gpu",
    "trap",
    "wait",
    "scan",
    "ld.wide",
    "st.wide",
    "bar.warp",
    "bar.block",
    "vote",
];

type Counts = [u64; COLUMNS.len()];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An access whose scope excludes the host, or an atomic without order.
    Scope,
    Shared,
    NonCoherent,
    Local,
    Abi,
    Count,
    Row,
}

#[derive(Debug)]
pub struct Finding {
    pub what: What,
    function: String,
    line: Option<usize>,
    expected: String,
    got: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{}: expected {}, got {}", self.function, self.expected, self.got)
    }
}

pub fn rules(module: &Module) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in &module.functions {
        for operation in &function.operations {
            if let Some((what, expected)) = fault(function, operation) {
                let (function, got) = (function.name.clone(), format!("`{}`", operation.text));
                findings.push(Finding { what, function, line: Some(operation.line), expected: expected.into(), got });
            }
        }
    }
    if module.abi.is_none() {
        let (function, expected, got) = ("RINGMEM_ABI".into(), "a `.visible .global` of 8 bytes with a value".into(), "none".into());
        findings.push(Finding { what: What::Abi, function, line: None, expected, got });
    }
    findings
}

fn fault(function: &Function, operation: &Operation) -> Option<(What, &'static str)> {
    let opcode = operation.opcode();
    let has = |part| opcode.split('.').skip(1).any(|p| p == part);
    let ordered = ["relaxed", "acquire", "release", "acq_rel", "sc"].into_iter().any(has);
    match opcode.split('.').next()? {
        "ld" | "ldu" if opcode.starts_with("ldu") || has("nc") => Some((What::NonCoherent, "a coherent load")),
        "ld" | "st" if ordered && !has("sys") && !(has("shared") && has("cta")) => Some((What::Scope, "scope `.sys`")),
        "fence" if !has("sys") && !has("proxy") => Some((What::Scope, "scope `.sys`")),
        "membar" if !has("sys") => Some((What::Scope, "scope `.sys`")),
        "atom" | "red" if !has("sys") && !has("gpu") => Some((What::Scope, "scope `.gpu`, for a counter in device memory")),
        "atom" | "red" if !ordered => Some((What::Scope, "an order")),
        "atom" | "red" if has("sys") => Some((What::Shared, "loads and stores of what the host may write")),
        // Opcodes begin with a letter: this is a directive. A panic's stack frame costs nothing until it panics.
        "" if opcode == ".local" && (function.entry || !is_panic(&function.name)) => Some((What::Local, "values in registers")),
        _ => None,
    }
}

fn is_wide(opcode: &str) -> bool {
    let parts: Vec<&str> = opcode.split('.').collect();
    let bits = parts.last().map_or("", |kind| kind.trim_start_matches(char::is_alphabetic));
    matches!((parts.iter().find(|part| matches!(**part, "v2" | "v4")), bits), (Some(&"v4"), "32") | (Some(&"v2"), "64") | (None, "128"))
}

fn counts(function: &Function, module: &Module) -> Counts {
    let panics = module.panics();
    let mut counts = Counts::default();
    for operation in &function.operations {
        let opcode = operation.opcode();
        let has = |part| opcode.split('.').skip(1).any(|p| p == part);
        let column = match opcode.split('.').next().unwrap_or_default() {
            "ld" | "st" if has("shared") => continue,
            "ld" if has("acquire") => 0,
            "ld" if has("relaxed") => 1,
            "st" if has("relaxed") => 2,
            "st" if has("release") => 3,
            "fence" | "membar" => 4,
            "atom" | "red" if has("sys") => 5,
            "atom" | "red" => 6,
            "trap" => 7,
            "ld" if is_wide(opcode) => 10,
            "st" if is_wide(opcode) => 11,
            "bar" if has("warp") => 12,
            "bar" | "barrier" => 13,
            "vote" => 14,
            "call" if operation.callee().is_some_and(|name| panics.contains(&*name)) => 7,
            _ => continue,
        };
        counts[column] += 1;
    }
    let loops = loops::of(function);
    [counts[8], counts[9]] = [loops.waits, loops.scans];
    counts
}

#[derive(Debug)]
pub struct Table(BTreeMap<String, Counts>);

impl Table {
    pub fn of(module: &Module) -> Self {
        Self(module.functions.iter().map(|function| (function.name.clone(), counts(function, module))).collect())
    }

    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let columns: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().skip(1).collect();
        if columns != COLUMNS {
            return Err(format!("the table's columns are {columns:?}, expected {COLUMNS:?}: `cargo xtask ptx-check --bless`").into());
        }
        let mut rows = BTreeMap::new();
        for line in lines {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            let counts: Result<Vec<u64>, _> = words.map(str::parse).collect();
            let counts = counts.ok().and_then(|counts| counts.try_into().ok()).ok_or_else(|| format!("not a row of the table: {line}"))?;
            if rows.insert(name, counts).is_some() {
                return Err(format!("twice in the table: {line}").into());
            }
        }
        Ok(Self(rows))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Memory operations per kernel in the PTX beside this file; `cargo xtask ptx-check --bless` writes it.")?;
        writeln!(f, "# atom.gpu: only on counters in device memory. trap: traps, and calls of functions that trap.")?;
        writeln!(f, "# ld.wide, st.wide: 16 bytes at once. bar.warp, bar.block: between the accesses of different lanes.")?;
        writeln!(
            f,
            "# Loops that look at shared words: wait reads the clock too, scan has to end by itself; kernels-rs/src/lib.rs lists them."
        )?;
        let width = self.0.keys().map(String::len).chain(["function".len()]).max().unwrap_or_default();
        write!(f, "{:width$}", "function")?;
        COLUMNS.iter().try_for_each(|column| write!(f, "  {column}"))?;
        writeln!(f)?;
        for (name, counts) in &self.0 {
            write!(f, "{name:width$}")?;
            counts.iter().zip(COLUMNS).try_for_each(|(count, column)| write!(f, "  {count:>width$}", width = column.len()))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

pub fn against(module: &Module, table: &Table) -> Vec<Finding> {
    let got = Table::of(module);
    let mut findings = Vec::new();
    let mut find = |what, function: &String, expected: String, got: String| {
        findings.push(Finding { what, function: function.clone(), line: None, expected, got });
    };
    for (name, got) in &got.0 {
        let Some(expected) = table.0.get(name) else {
            find(What::Row, name, "a row in the table".into(), "none".into());
            continue;
        };
        for ((column, expected), got) in COLUMNS.iter().zip(expected).zip(got) {
            if expected != got {
                find(What::Count, name, format!("{expected} x {column}"), got.to_string());
            }
        }
    }
    for name in table.0.keys().filter(|name| !got.0.contains_key(*name)) {
        find(What::Row, name, "a function in the PTX".into(), "none".into());
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(body: &str) -> Module {
        let abi = ".visible .global .align 8 .b8 RINGMEM_ABI[8] = {1, 0, 0, 0, 0, 0, 0, 0};";
        let trap = ".func _RNvNtCsaB1_4core9panicking9panic_fmt()\n{\n\t.local .b8 depot[8];\n\ttrap; exit;\n}";
        let helper = ".func helper()\n{\n\tcall.uni _RNvNtCsaB1_4core9panicking9panic_fmt, ();\n\tret;\n}";
        Module::parse(&format!("{abi}\n.visible .entry kernel(\n\t.param .u64 p\n)\n{{\n{body}\n\tret;\n}}\n{trap}\n{helper}\n")).unwrap()
    }

    const GOOD: &str = "
	ld.acquire.sys.global.b64 	%rd14, [%rd1];
	ld.relaxed.sys.b64 	%rd47, [%rd1];
	fence.acq_rel.sys;
	st.relaxed.sys.global.b64 	[%rd2], %rd4;
	st.release.sys.b64 	[%rd2], %rd4;";

    #[track_caller]
    fn only(module: &Module, what: What) -> String {
        match &rules(module)[..] {
            [finding] if finding.what == what => finding.to_string(),
            others => panic!("expected one {what:?}, got {others:?}"),
        }
    }

    #[test]
    fn a_valid_kernel_passes_its_own_table() {
        let module = module(GOOD);
        assert!(rules(&module).is_empty());
        let table = Table::of(&module);
        assert_eq!(table.0["kernel"], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let again = Table::parse(&table.to_string()).unwrap();
        assert_eq!(again.0, table.0);
        assert!(against(&module, &again).is_empty());
    }

    #[test]
    fn a_wrong_fetch_add_scope_is_an_error() {
        let found = only(&module("\tatom.global.add.u64 \t%rd7, [%rd2], 1;"), What::Scope);
        assert_eq!(
            found,
            "line 6: kernel: expected scope `.gpu`, for a counter in device memory, got `atom.global.add.u64 %rd7, [%rd2], 1`"
        );
        only(&module("\tatom.add.u64 \t%rd7, [%rd2], 1;"), What::Scope);
        only(&module("\tred.global.add.u64 \t[%rd2], 1;"), What::Scope);
        only(&module("\tatom.sys.global.add.u64 \t%rd7, [%rd2], 1;"), What::Scope);
        only(&module("\tatom.relaxed.cta.add.u64 \t%rd7, [%rd2], 1;"), What::Scope);
    }

    #[test]
    fn system_scope_read_modify_writes_are_errors() {
        only(&module("\tatom.acq_rel.sys.cas.b64 \t%rd3, [%rd1], %rd2, %rd4;"), What::Shared);
        only(&module("\tred.relaxed.sys.global.add.u64 \t[%rd2], 1;"), What::Shared);
    }

    #[test]
    fn ordered_accesses_below_system_scope_are_errors() {
        only(&module("\tld.acquire.gpu.b64 \t%rd7, [%rd2];"), What::Scope);
        only(&module("\tst.relaxed.cta.b64 \t[%rd2], %rd7;"), What::Scope);
        only(&module("\tst.relaxed.gpu.shared.b64 \t[%rd2], %rd7;"), What::Scope);
        only(&module("\tfence.acq_rel.gpu;"), What::Scope);
        only(&module("\tmembar.gl;"), What::Scope);
    }

    #[test]
    fn a_blocks_own_memory_has_the_blocks_scope() {
        let own = module("\tst.relaxed.cta.shared.u64 \t[%r1], %rd7;\n\tld.relaxed.cta.shared.u64 \t%rd7, [%r1];");
        assert!(rules(&own).is_empty());
        assert!(against(&own, &Table::of(&module(""))).is_empty(), "no peer sees it");
    }

    #[test]
    fn a_non_coherent_load_is_an_error() {
        only(&module("\tld.global.nc.b64 \t%rd7, [%rd2];"), What::NonCoherent);
        only(&module("\t@%p1 ld.global.nc.v2.b64 \t{%rd7, %rd8}, [%rd2];"), What::NonCoherent);
        only(&module("\tldu.global.b64 \t%rd7, [%rd2];"), What::NonCoherent);
    }

    #[test]
    fn local_memory_in_a_kernel_is_an_error() {
        let found = only(&module("\t.local .align 8 .b8 \t__local_depot2[32];"), What::Local);
        assert!(found.contains("kernel: expected values in registers"), "{found}");
    }

    #[test]
    fn a_missing_abi_symbol_is_an_error() {
        only(&Module::parse(".visible .entry kernel()\n{\n\tret;\n}\n").unwrap(), What::Abi);
    }

    #[test]
    fn a_count_mismatch_has_both_counts() {
        let table = Table::of(&module(GOOD));
        let weaker = module(&GOOD.replace("ld.acquire.sys.global", "ld.relaxed.sys.global"));
        let found: Vec<String> = against(&weaker, &table).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["kernel: expected 1 x ld.acquire.sys, got 0", "kernel: expected 1 x ld.relaxed.sys, got 2"]);
    }

    #[test]
    fn a_gpu_scope_counter_passes_only_if_listed() {
        let counter = module(&format!("{GOOD}\n\tred.relaxed.gpu.add.u64 \t[%rd2], 1;"));
        assert!(rules(&counter).is_empty());
        let found = against(&counter, &Table::of(&module(GOOD)));
        assert_eq!(found[0].to_string(), "kernel: expected 0 x atom.gpu, got 1");
        assert!(against(&counter, &Table::of(&counter)).is_empty());
    }

    #[test]
    fn a_split_16_byte_access_is_an_error() {
        let body =
            "\tld.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];\n\tst.global.v2.b64 \t[%rd2], {%rd3, %rd4};\n\tld.v2.b32 \t{%r1, %r2}, [%rd1];";
        let wide = module(body);
        assert_eq!(Table::of(&wide).0["kernel"][10..12], [1, 1]);
        let narrow = module(&body.replace("v4.b32", "v4.b16").replace("st.global.v2.b64", "st.global.b64"));
        let found: Vec<String> = against(&narrow, &Table::of(&wide)).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["kernel: expected 1 x ld.wide, got 0", "kernel: expected 1 x st.wide, got 0"]);
    }

    #[test]
    fn a_lost_barrier_or_vote_is_an_error() {
        let whole = module("\tbar.warp.sync -1;\n\tvote.sync.ballot.b32 \t%r1, %p1, -1;\n\tbar.sync 0;");
        assert_eq!(Table::of(&whole).0["kernel"][12..], [1, 1, 1]);
        let found: Vec<String> = against(&module(""), &Table::of(&whole)).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["bar.warp", "bar.block", "vote"].map(|lost| format!("kernel: expected 1 x {lost}, got 0")));
    }

    #[test]
    fn traps_and_calls_to_traps_are_counted() {
        let table = Table::of(&module(GOOD));
        for body in ["\ttrap;", "\tcall.uni _RNvNtCsaB1_4core9panicking9panic_fmt, ();", "\tcall.uni helper, ();"] {
            let found: Vec<String> = against(&module(&format!("{GOOD}\n{body}")), &table).iter().map(ToString::to_string).collect();
            assert_eq!(found, ["kernel: expected 0 x trap, got 1"], "{body}");
        }
    }

    #[test]
    fn a_wait_without_clock_is_an_error() {
        let timed = "$L1:\n\tld.acquire.sys.b64 %rd1, [%rd2];\n\tmov.u64 %rd3, %globaltimer;\n\t@%p1 bra $L1;";
        let without = module(&timed.replace("\tmov.u64 %rd3, %globaltimer;\n", ""));
        let found: Vec<String> = against(&without, &Table::of(&module(timed))).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["kernel: expected 1 x wait, got 0", "kernel: expected 0 x scan, got 1"]);
    }

    #[test]
    fn unmatched_kernels_and_rows_are_errors() {
        let (module, mut table) = (module(GOOD), Table::of(&module(GOOD)));
        let counts = table.0.remove("kernel").unwrap();
        table.0.insert("gone".into(), counts);
        let found: Vec<String> = against(&module, &table).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["kernel: expected a row in the table, got none", "gone: expected a function in the PTX, got none"]);
    }

    #[test]
    fn a_damaged_table_is_an_error() {
        assert!(Table::parse("").is_err());
        let good = Table::of(&module(GOOD)).to_string();
        assert!(Table::parse(&good.replace("atom.gpu", "atom.any")).is_err());
        let row = good.lines().find(|line| line.starts_with("kernel")).unwrap();
        assert!(Table::parse(&format!("{good}{row}\n")).unwrap_err().to_string().contains("twice"));
        assert!(Table::parse(&good.replace(row, "kernel 1 2")).is_err());
    }
}
