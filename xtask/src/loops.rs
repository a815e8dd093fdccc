//! Loops in a function's PTX that poll shared words.
//!
//! A loop is a strongly connected component, without its inner loops; removing its entry finds those.

use std::collections::{BTreeMap, BTreeSet};

use crate::module::{Function, Operation};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loops {
    pub waits: u64,
    pub scans: u64,
}

pub fn of(function: &Function) -> Loops {
    let next: Vec<Vec<usize>> = (0..function.operations.len()).map(|at| successors(function, at)).collect();
    let mut found = Loops::default();
    judge(function, &next, (0..next.len()).collect(), &mut found);
    found
}

fn successors(function: &Function, at: usize) -> Vec<usize> {
    let operation = &function.operations[at];
    let target = |label: &str| function.labels.get(label.trim()).copied();
    let opcode = operation.opcode();
    let jumps: Vec<usize> = match opcode.split('.').next().unwrap_or_default() {
        "bra" => operation.text.rsplit(' ').next().and_then(target).into_iter().collect(),
        "brx" => {
            let table = operation.text.rsplit(' ').next().and_then(target).and_then(|at| function.operations.get(at));
            let labels = table.map_or("", |table| table.text.trim_start_matches(".branchtargets"));
            labels.split(',').filter_map(target).collect()
        }
        "ret" | "exit" | "trap" => Vec::new(),
        _ => return within(function, at + 1).collect(),
    };
    let falls = operation.predicated.then_some(at + 1).into_iter().flat_map(|next| within(function, next));
    jumps.into_iter().filter(|to| *to < function.operations.len()).chain(falls).collect()
}

fn within(function: &Function, at: usize) -> impl Iterator<Item = usize> {
    (at < function.operations.len()).then_some(at).into_iter()
}

fn judge(function: &Function, next: &[Vec<usize>], nodes: BTreeSet<usize>, found: &mut Loops) {
    for mut cycle in cycles(next, &nodes) {
        let entered = |at: &&usize| (0..next.len()).any(|from| !cycle.contains(&from) && next[from].contains(*at));
        let entry = cycle.iter().find(entered).or(cycle.first()).copied();
        let whole = cycle.clone();
        if let Some(entry) = entry {
            cycle.remove(&entry);
        }
        let inside: BTreeSet<usize> = cycles(next, &cycle).into_iter().flatten().collect();
        let own = |is: fn(&Operation) -> bool| whole.difference(&inside).any(|&at| is(&function.operations[at]));
        if own(looks) {
            *(if own(reads_clock) { &mut found.waits } else { &mut found.scans }) += 1;
        }
        judge(function, next, cycle, found);
    }
}

fn looks(operation: &Operation) -> bool {
    let mut parts = operation.opcode().split('.');
    // Only the kernel writes a block's own memory.
    let is_shared = operation.opcode().contains(".shared");
    parts.next() == Some("ld") && !is_shared && parts.any(|part| part == "acquire" || part == "relaxed" || part == "volatile")
}

fn reads_clock(operation: &Operation) -> bool {
    operation.text.contains("%globaltimer")
}

fn cycles(next: &[Vec<usize>], nodes: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let inside = |at: usize| next[at].iter().copied().filter(|to| nodes.contains(to));
    for &at in nodes {
        inside(at).for_each(|to| before.entry(to).or_default().push(at));
    }
    let (mut seen, mut left) = (BTreeSet::new(), Vec::new());
    for &root in nodes {
        let mut stack = vec![(root, false)];
        while let Some((at, done)) = stack.pop() {
            if done {
                left.push(at);
            } else if seen.insert(at) {
                stack.push((at, true));
                stack.extend(inside(at).filter(|to| !seen.contains(to)).map(|to| (to, false)));
            }
        }
    }
    let (mut taken, mut all) = (BTreeSet::new(), Vec::new());
    for root in left.into_iter().rev() {
        let (mut part, mut stack) = (BTreeSet::new(), vec![root]);
        while let Some(at) = stack.pop() {
            if taken.insert(at) {
                part.insert(at);
                stack.extend(before.get(&at).into_iter().flatten());
            }
        }
        if part.len() > 1 || part.first().is_some_and(|&at| next[at].contains(&at)) {
            all.push(part);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;

    fn of_body(body: &str) -> Loops {
        let module = Module::parse(&format!(".visible .entry k()\n{{\n{body}\n\tret;\n}}\n")).unwrap();
        of(&module.functions[0])
    }

    #[test]
    fn polling_loops_that_read_the_clock_are_waits() {
        let poll = "$L1:\n\tld.acquire.sys.b64 %rd1, [%rd2];\n\t@%p1 bra $L1;";
        assert_eq!(of_body(poll), Loops { waits: 0, scans: 1 });
        assert_eq!(of_body(&poll.replace("acquire.sys", "relaxed.cta.shared")), Loops::default());
        let timed = "$L1:\n\tld.acquire.sys.b64 %rd1, [%rd2];\n\tmov.u64 %rd3, %globaltimer;\n\t@%p1 bra $L1;";
        assert_eq!(of_body(timed), Loops { waits: 1, scans: 0 });
        assert_eq!(of_body("$L1:\n\tld.b64 %rd1, [%rd2];\n\t@%p1 bra $L1;"), Loops::default(), "of its own memory");
        assert_eq!(of_body("\tld.acquire.sys.b64 %rd1, [%rd2];\n\t@%p1 bra $L1;\n$L1:\n\tadd.u64 %rd1, %rd1, 1;"), Loops::default());
    }

    #[test]
    fn a_nested_loop_is_classified_alone() {
        let inner = "$L2:\n\tld.relaxed.sys.b64 %rd1, [%rd2];\n\t@%p1 bra $L2;";
        let outer = format!("$L1:\n\tmov.u64 %rd3, %globaltimer;\n\tld.acquire.sys.b64 %rd4, [%rd2];\n{inner}\n\tbra.uni $L1;");
        assert_eq!(of_body(&outer), Loops { waits: 1, scans: 1 }, "the outer one's clock does not end the inner one");
        let without = outer.replace("ld.acquire.sys.b64 %rd4, [%rd2]", "add.u64 %rd4, %rd4, 1");
        assert_eq!(of_body(&without), Loops { waits: 0, scans: 1 });
    }

    #[test]
    fn branch_target_tables_are_followed() {
        let table =
            "$L0:\n\tld.acquire.sys.b64 %rd1, [%rd2];\n\t$L_brx_0: .branchtargets\n\t\t$L0,\n\t\t$L1;\n\tbrx.idx %r1, $L_brx_0;\n$L1:";
        assert_eq!(of_body(table), Loops { waits: 0, scans: 1 });
    }
}
