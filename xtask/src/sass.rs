//! `cargo xtask ptxas`, second part: counts the machine instructions of one batch on the shortest path from the loop that moves payload, through the
//! publishing fence and the next poll of the rings, back. Counters and clock are the additional instructions of [`TOGETHER`] batches over the kernel
//! without counters.
//!
//! It also checks that a kernel polls its rings while its look at epoch and command is in flight. A machine instruction says in its control bits
//! which of six barriers its result will release and for which barriers it waits. On the shortest path from the loads of the look to the next poll
//! of the rings, no instruction may wait for a barrier of these loads: each wait there is one more round trip over the bus. Before sm_90 a shuffle is
//! a call, which waits for every barrier; those architectures are not checked.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use crate::Failure;

const BATCH: u64 = 128;
const LANES: u64 = 32;
const MESSAGES_PER_LOOP: u64 = 128;
const MOST_WIDE: u64 = 16;
const MOST_ACCOUNTS: u64 = 200;
const PROCESSED: &str = "+0x58]";
const HEARTBEAT: &str = "+0x70]";
const UPDATED: &str = "+0x38]";
const COMMAND: &str = "+0x10]";
/// The command's upper half, its sequence number: all that a look uses.
const SEQUENCE: &str = "+0x14]";
const EPOCH: &str = "+0x18]";
const TOGETHER: u64 = 128;
const COMMAND_POLL_ROUNDS: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Looks,
    IsTimed,
    Tells,
}

impl Beside {
    const fn stops(self) -> &'static [fn(&Block) -> bool] {
        const BEATS: fn(&Block) -> bool = |block| block.count(|text| is_store_of(text, HEARTBEAT)) > 0;
        const COMPARES: fn(&Block) -> bool = |block| block.count(|text| text.contains("MNMX")) > 0;
        const STORES: fn(&Block) -> bool = |block| block.count(|text| is_store_of(text, PROCESSED)) > 0;
        const RECORDS: fn(&Block) -> bool = |block| block.count(|text| is_store_of(text, UPDATED)) > 0;
        match self {
            Self::Nothing => &[],
            Self::Looks => &[BEATS],
            Self::IsTimed => &[BEATS, COMPARES],
            Self::Tells => &[BEATS, STORES, RECORDS],
        }
    }
}

const MOVERS: [(&str, u64); 4] = [("echo", 1), ("echo_flagged", 1), ("echo_bare", 1), ("echo_grouped", 2)];

/// Kernels that look at epoch and command. Not `echo_grouped`: its group 0 loads the counters of all groups before the rings, and the assembler lets both loads
/// share a barrier, so that each sixteenth round of group 0 waits for the look.
const LOOKERS: [&str; 9] = ["burst", "echo", "echo_block", "echo_flagged", "echo_paired", "echo_bare", "histogram", "transform", "reduce"];
/// The architectures whose shuffles are no calls.
const INLINE_SHUFFLES: [&str; 2] = ["sm_90", "sm_100"];

#[derive(Debug, Default)]
struct Instruction {
    text: String,
    /// The upper half of its encoding; 0 if the disassembler did not print it.
    encoding: u64,
}

impl Instruction {
    /// Returns the barrier that its result releases, as a bit.
    const fn sets(&self) -> u64 {
        let barrier = self.encoding >> 46 & 7;
        if self.encoding == 0 || barrier == 7 { 0 } else { 1 << barrier }
    }

    /// Returns the barriers for which it waits, as bits.
    const fn waits(&self) -> u64 {
        self.encoding >> 52 & 0x3f
    }

    fn is_shared_load(&self) -> bool {
        self.text.starts_with("LD") && self.text.contains("STRONG.SYS")
    }
}

#[derive(Debug, Default)]
struct Block {
    instructions: Vec<Instruction>,
    next: Vec<usize>,
}

impl Block {
    fn count(&self, is: impl Fn(&str) -> bool) -> u64 {
        self.instructions.iter().filter(|instruction| is(&instruction.text)).count() as u64
    }

    /// Returns the place after the loads of a look, and their barriers: epoch and command, which nothing acquires.
    fn look(&self) -> Option<(usize, u64)> {
        let of = |word: &str| self.instructions.iter().position(|one| one.is_shared_load() && one.text.contains(word));
        let loads = [of(EPOCH)?, of(SEQUENCE).or_else(|| of(COMMAND))?];
        let after = loads.into_iter().max()? + 1;
        let acquires = self.instructions[after..].iter().any(|one| one.text.starts_with("CCTL.IVALL"));
        (!acquires).then(|| (after, loads.iter().fold(0, |barriers, &at| barriers | self.instructions[at].sets())))
    }
}

#[derive(Debug, Default)]
pub struct Code {
    blocks: Vec<Block>,
}

fn is_wide(text: &str, access: &str) -> bool {
    let opcode = text.split(' ').next().unwrap_or_default();
    opcode.starts_with(access) && opcode.contains(".128") && !opcode.contains("STRONG")
}

fn is_fence(text: &str) -> bool {
    text.starts_with("MEMBAR")
}

fn is_store_of(text: &str, place: &str) -> bool {
    text.starts_with("ST") && text.contains("STRONG.SYS") && text.contains(place)
}

/// Returns the place of a block's poll of the rings.
fn poll(block: &Block) -> Option<usize> {
    let at = block.instructions.iter().position(Instruction::is_shared_load)?;
    // The path of the command's poll bypasses the rings.
    let at_rings = !block.instructions.iter().any(|one| one.is_shared_load() && one.text.contains(COMMAND));
    (at_rings && block.instructions[at..].iter().any(|one| one.text.starts_with("CCTL.IVALL"))).then_some(at)
}

pub fn parse(text: &str) -> Result<BTreeMap<String, Code>, Failure> {
    let mut kernels = BTreeMap::new();
    for section in text.split("\n.text.").skip(1) {
        let (name, body) = section.split_once(':').ok_or("a section without a name")?;
        let body = body.split("\n\t.section").next().unwrap_or_default();
        kernels.insert(name.trim().to_owned(), Code::parse(body)?);
    }
    if kernels.is_empty() { Err("the disassembler names no kernel".into()) } else { Ok(kernels) }
}

impl Code {
    fn parse(body: &str) -> Result<Self, Failure> {
        let mut blocks = vec![Block::default()];
        let mut labels = BTreeMap::new();
        let mut jumps = Vec::new();
        let mut falls = true;
        let mut is_instruction = false;
        for line in body.lines().map(str::trim) {
            // The second half of an instruction's encoding has a line of its own.
            if let Some(half) = line.strip_prefix("/* 0x").and_then(|rest| rest.strip_suffix(" */")) {
                let encoding = u64::from_str_radix(half, 16).map_err(|_| format!("an encoding that is no number: {line}"))?;
                if let Some(last) = blocks.iter_mut().rev().find_map(|block| block.instructions.last_mut()).filter(|_| is_instruction) {
                    last.encoding = encoding;
                }
                continue;
            }
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with('.')) {
                open(&mut blocks, falls);
                falls = true;
                labels.insert(label.to_owned(), blocks.len() - 1);
                continue;
            }
            // `/*0a10*/   @!P0 BRA `(.L_x_1) ;`, and lines with only an encoding.
            let Some(text) = line.strip_prefix("/*").and_then(|rest| rest.split_once("*/")).map(|(_, rest)| rest.trim()) else { continue };
            let Some((text, _)) = text.split_once(';') else { continue };
            let (predicated, text) = match text.trim().strip_prefix('@') {
                Some(rest) => (true, rest.split_once(' ').map_or("", |(_, text)| text.trim())),
                None => (false, text.trim()),
            };
            is_instruction = text != "NOP";
            if !is_instruction {
                continue;
            }
            let last = blocks.len() - 1;
            blocks[last].instructions.push(Instruction { text: text.to_owned(), encoding: 0 });
            let opcode = text.split(' ').next().unwrap_or_default();
            // Only a diverged warp takes `BRA.DIV`: never after a barrier.
            let leaves = matches!(opcode, "EXIT" | "RET" | "BRX" | "KILL");
            // A call of a label in the kernel that never returns is a far branch.
            let is_far = opcode == "CALL.REL.NOINC" && text.contains("`(.L_");
            if opcode == "BRA" || opcode == "BRA.U" || is_far || leaves {
                if let Some(target) = text.split_once("`(").and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label) {
                    jumps.push((last, target.to_owned()));
                }
                open(&mut blocks, predicated);
                falls = true;
            }
        }
        for (from, target) in jumps {
            let to = *labels.get(&target).ok_or_else(|| format!("a branch to {target}, which is nowhere"))?;
            blocks[from].next.push(to);
        }
        Ok(Self { blocks })
    }

    fn way(&self, from: usize, to: impl Fn(&Block) -> bool) -> Option<(u64, Vec<usize>)> {
        let mut best = BTreeMap::new();
        let mut queue = BinaryHeap::from([Reverse((0, from, Vec::new()))]);
        while let Some(Reverse((length, at, path))) = queue.pop() {
            if !path.is_empty() && to(&self.blocks[at]) {
                return Some((length, path));
            }
            for &next in &self.blocks[at].next {
                let longer = length + self.blocks[next].instructions.len() as u64;
                if best.get(&next).is_none_or(|&known| longer < known) {
                    best.insert(next, longer);
                    queue.push(Reverse((longer, next, [&path[..], &[next]].concat())));
                }
            }
        }
        None
    }

    /// Returns the instructions between the look at epoch and command and the next poll of the rings that wait for the look; `None` without a look,
    /// its barriers or a path to a poll.
    fn waits_for_look(&self) -> Option<Vec<&str>> {
        let (from, (after, barriers)) = self.blocks.iter().enumerate().find_map(|(at, block)| Some((at, block.look()?)))?;
        let (_, path) = self.way(from, |block| poll(block).is_some())?;
        let last = &self.blocks[*path.last()?];
        let between = self.blocks[from].instructions[after..]
            .iter()
            .chain(path[..path.len() - 1].iter().flat_map(|&at| &self.blocks[at].instructions))
            .chain(&last.instructions[..poll(last)?]);
        let waits = between.filter(|one| one.waits() & barriers != 0).map(|one| &*one.text).collect();
        (barriers != 0).then_some(waits)
    }

    fn payload_loop(&self) -> Option<(u64, u64, u64, usize)> {
        let loads = |block: &Block| block.count(|text| is_wide(text, "LD"));
        let stores = |block: &Block| block.count(|text| is_wide(text, "ST"));
        let first = self.blocks.iter().position(|block| loads(block) > 0)?;
        let own = |block: &Block| core::ptr::eq(block, &self.blocks[first]);
        let (length, path) = self.way(first, own)?;
        let all = |count: &dyn Fn(&Block) -> u64| path.iter().map(|&at| count(&self.blocks[at])).sum();
        Some((length, all(&loads), all(&stores), first))
    }

    fn rest(&self, payload: usize, beside: Beside) -> Option<(u64, u64)> {
        let own = |block: &Block| core::ptr::eq(block, &self.blocks[payload]);
        let (mut length, mut path) = self.way(payload, |block| !own(block) && block.count(is_fence) > 0)?;
        for stop in beside.stops() {
            let (more, way) = self.way(*path.last()?, stop)?;
            length += more;
            path.extend(way);
        }
        let through = |look: &Block| {
            let (to, mut way) = self.way(*path.last()?, |block| core::ptr::eq(block, look))?;
            let (back, rest) = self.way(*way.last()?, own)?;
            way.extend(rest);
            Some((to + back, way))
        };
        let (more, way) = self.blocks.iter().filter(|block| poll(block).is_some()).filter_map(through).min()?;
        path.extend(way);
        let fences = path.iter().map(|&at| self.blocks[at].count(is_fence)).sum();
        Some((length + more - self.blocks[payload].instructions.len() as u64, fences))
    }
}

fn open(blocks: &mut Vec<Block>, falls: bool) {
    let next = blocks.len();
    if falls {
        blocks[next - 1].next.push(next);
    }
    blocks.push(Block::default());
}

#[derive(Debug, PartialEq, Eq)]
pub struct Cost {
    loads: u64,
    stores: u64,
    per_loop: u64,
    rest: u64,
    fences: u64,
}

impl Cost {
    fn of(code: &Code, beside: Beside) -> Option<Self> {
        let (per_loop, loads, stores, payload) = code.payload_loop()?;
        let (rest, fences) = code.rest(payload, beside)?;
        Some(Self { loads, stores, per_loop, rest, fences })
    }

    const fn batch(&self) -> u64 {
        BATCH / MESSAGES_PER_LOOP * self.per_loop + self.rest
    }

    const fn of_lanes(&self) -> u64 {
        BATCH / MESSAGES_PER_LOOP * self.per_loop * LANES + self.rest
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loads, stores, per_loop, rest, fences } = self;
        write!(f, "{loads:>10} {stores:>11} {per_loop:>12} {rest:>12} {fences:>6} {:>12}", self.batch())
    }
}

pub fn report(architecture: &str, text: &str) -> Result<Vec<String>, Failure> {
    let kernels = parse(text)?;
    let mut faults = Vec::new();
    let mut bare = None;
    for (name, fences) in MOVERS {
        let code = kernels.get(name).ok_or_else(|| format!("no kernel {name} for {architecture}"))?;
        let Some(cost) = Cost::of(code, Beside::Nothing) else {
            faults.push(format!(
                "{name} for {architecture}: expected a loop of wide accesses, a fence and a look at the rings, got no way through them"
            ));
            continue;
        };
        println!("{name:20} {architecture:>7} {cost}");
        if cost.loads > MOST_WIDE || cost.stores > MOST_WIDE {
            let (loads, stores) = (cost.loads, cost.stores);
            faults.push(format!(
                "{name} for {architecture}: expected {MOST_WIDE} wide loads and stores for 64 bytes a lane, got {loads} and {stores}"
            ));
        }
        if cost.fences > fences {
            faults.push(format!("{name} for {architecture}: expected {fences} fences a batch, got {}", cost.fences));
        }
        if name == "echo_bare" {
            bare = Some(cost.batch());
        }
    }
    for name in LOOKERS.iter().filter(|_| INLINE_SHUFFLES.contains(&architecture)) {
        match kernels.get(*name).and_then(Code::waits_for_look) {
            None => {
                faults.push(format!("{name} for {architecture}: expected a look at epoch and command before a poll of the rings, got none"))
            }
            Some(waits) if !waits.is_empty() => faults.push(format!(
                "{name} for {architecture}: expected no wait for the look at epoch and command before the poll of the rings, got {waits:?}"
            )),
            Some(_) => {}
        }
    }
    let echo = |beside| Cost::of(kernels.get("echo")?, beside);
    let ways = || Some([echo(Beside::Nothing)?, echo(Beside::Looks)?, echo(Beside::IsTimed)?, echo(Beside::Tells)?]);
    if let (Some(ways), Some(bare)) = (ways(), bare) {
        let one = &ways[0];
        let [_, looks, is_timed, tells] = [0, 1, 2, 3].map(|at| ways[at].batch().saturating_sub(one.batch()));
        let more = (TOGETHER / COMMAND_POLL_ROUNDS - 1) * looks + is_timed + tells;
        let each = one.batch().saturating_sub(bare);
        let share = |one: u64| ((TOGETHER * each + more) * 10_000).div_ceil((TOGETHER * one + more).max(1));
        let (warp, lanes) = (share(one.batch()), share(one.of_lanes()));
        println!(
            "{:20} {architecture:>7} {each} instructions of {}; {looks} more before a look, {is_timed} where it is timed, {tells} where {TOGETHER} are written down: \
             {}.{:02} % of the warp's, {}.{:02} % of its lanes'",
            "counters and clock",
            one.batch(),
            warp / 100,
            warp % 100,
            lanes / 100,
            lanes % 100
        );
        for (whose, share) in [("the warp's", warp), ("the lanes'", lanes)] {
            if share > MOST_ACCOUNTS {
                faults.push(format!(
                    "echo for {architecture}: expected counters to be at most {MOST_ACCOUNTS} hundredths of a percent of {whose} instructions, got {share}"
                ));
            }
        }
    } else {
        faults.push(format!("echo for {architecture}: expected ways that are timed and written down, got none"));
    }
    Ok(faults)
}

pub fn head() -> String {
    let columns = format!(
        "{:>10} {:>11} {:>12} {:>12} {:>6} {:>12}",
        "wide loads", "wide stores", "per 128 msg", "rest of it", "fences", "batch of 128"
    );
    format!("{:20} {:>7} {columns}", "SASS, one batch", "arch")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
	.section	.text.echo,\"ax\",@progbits
.text.echo:
        /*0000*/                   S2R R0, SR_LANEID ;                /* 0x1 */
.L_x_1:
        /*0010*/               @P2 BRA `(.L_x_2) ;
        /*0020*/              @!P0 LD.E.64.STRONG.SYS R22, desc[UR8][R50.64] ;
        /*0030*/              @!P0 CCTL.IVALL ;
.L_x_2:
        /*0040*/               @P1 EXIT ;
.L_x_3:
        /*0050*/              @!P0 LD.E.128 R20, desc[UR8][R30.64] ;
        /*0060*/                   ST.E.128 desc[UR8][R70.64], R20 ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/               @P2 BRA `(.L_x_5) ;
        /*0090*/                   MEMBAR.ALL.SYS ;
        /*00a0*/                   ST.E.64.STRONG.SYS desc[UR8][R44.64], R12 ;
.L_x_5:
        /*00b0*/               @P2 BRA `(.L_x_1) ;
        /*00b4*/                   ST.E.64.STRONG.SYS desc[UR8][R54.64+0x70], R20 ;
        /*00b8*/               @P4 BRA `(.L_x_1) ;
        /*00bc*/                   VIMNMX.U32 R80, R80, R7, !PT ;
        /*00be*/               @P5 BRA `(.L_x_1) ;
        /*00c0*/                   ST.E.64.STRONG.SYS desc[UR8][R54.64+0x58], R20 ;
        /*00d0*/               @P3 BRA `(.L_x_1) ;
        /*00e0*/                   ST.E.64.STRONG.SYS desc[UR8][R58.64+0x38], R22 ;
        /*00f0*/                   BRA `(.L_x_1) ;
.L_x_6:
        /*0100*/                   BRA `(.L_x_6);
        /*0110*/                   NOP;
	.section	.text.other,\"ax\",@progbits
.text.other:
        /*0000*/                   EXIT ;
";

    #[test]
    fn cost_counts_loop_fence_and_remaining_instructions() {
        let kernels = parse(SAID).unwrap();
        assert_eq!(kernels.keys().collect::<Vec<_>>(), ["echo", "other"]);
        let cost = Cost::of(&kernels["echo"], Beside::Nothing).unwrap();
        assert_eq!(cost, Cost { loads: 1, stores: 1, per_loop: 3, rest: 1 + 2 + 1 + 1 + 2 + 1, fences: 1 });
        let more = |beside| Cost::of(&kernels["echo"], beside).unwrap().rest - cost.rest;
        let ways = [Beside::Looks, Beside::IsTimed, Beside::Tells].map(more);
        assert_eq!(ways, [2, 4, 2 + 2 + 2 + 2], "the beat; the comparison; the counter, and the record: each with a branch");
        assert!(Cost::of(&kernels["other"], Beside::Nothing).is_none());
    }

    /// Of `echo` on sm_90 by ptxas 13.5: a look on barrier 5, a shuffle on barrier 0 and its use; `between`; a poll.
    fn looking(between: &str) -> Code {
        let lines = [
            "/*3440*/ LD.E.STRONG.SYS R79, desc[UR8][R116.64+0x18] ; /* 0x00001808744f7980 */\n/* 0x000768000c115900 */",
            "/*3450*/ LD.E.STRONG.SYS R78, desc[UR8][R116.64+0x14] ; /* 0x00001408744e7980 */\n/* 0x000764000c115900 */",
            ".L_x_1:\n/*34d0*/ SHFL.IDX PT, R34, R80, RZ, 0x1f ; /* 0x00001fff50227589 */\n/* 0x00082400000e0000 */",
            "/*34f0*/ ISETP.NE.U32.AND P0, PT, R34, RZ, PT ; /* 0x000000ff2200720c */\n/* 0x001fe40003f05070 */",
            between,
            "/*35f0*/ @!P0 LD.E.64.STRONG.SYS R30, desc[UR8][R112.64] ;\n/*3600*/ @!P0 CCTL.IVALL ;",
        ];
        Code::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn a_wait_for_the_look_before_the_poll_is_found() {
        assert_eq!(looking("").waits_for_look(), Some(vec![]));
        // The copy of the epoch.
        let copy = "/*3f30*/ IMAD.MOV.U32 R137, RZ, RZ, R30 ; /* 0x000000ffff897224 */\n/* 0x020fe400078e001e */";
        assert_eq!(looking(copy).waits_for_look(), Some(vec!["IMAD.MOV.U32 R137, RZ, RZ, R30"]));
        assert_eq!(parse(SAID).unwrap()["echo"].waits_for_look(), None, "no look");
        let movers = MOVERS.iter().map(|(name, _)| SAID.replace("text.echo", &format!("text.{name}"))).collect::<String>();
        let none = "reduce for sm_90: expected a look at epoch and command before a poll of the rings, got none";
        assert!(report("sm_90", &movers).unwrap().iter().any(|fault| fault == none));
    }

    #[test]
    fn extra_fences_and_narrow_accesses_are_errors() {
        let whole = |text: &str| {
            let one = text.split("\n\t.section\t.text.other").next().unwrap();
            MOVERS.iter().map(|(name, _)| one.replace("text.echo", &format!("text.{name}"))).collect::<String>()
        };
        let faults = |text: &str| -> Vec<String> {
            let is_share = |fault: &String| fault.contains("expected counters to be");
            report("sm_0", text).unwrap().into_iter().filter(|fault| !is_share(fault)).collect()
        };
        assert_eq!(faults(&whole(SAID)), Vec::<String>::new());
        let twice = SAID.replace("ST.E.64.STRONG.SYS desc[UR8][R44.64], R12 ;", "MEMBAR.ALL.SYS ;");
        assert!(faults(&whole(&twice))[0].contains("expected 1 fences a batch, got 2"));
        let narrow = SAID.replace("LD.E.128", "LD.E.64");
        assert!(faults(&whole(&narrow))[0].contains("got no way through them"));
        let more = SAID.replace("        /*0060*/", &("        /*0060*/ LD.E.128 R1, [R2] ;\n".repeat(16) + "        /*0060*/"));
        assert!(faults(&whole(&more))[0].contains("got 17 and 1"));
        let long = SAID.replace("        /*0080*/", &("        /*0080*/ IADD3 R1, R1, 0x1, RZ ;\n".repeat(150) + "        /*0080*/"));
        assert_eq!(report("sm_0", &whole(&long)).unwrap(), Vec::<String>::new());
        let more = whole(&long).replacen("/*00b0*/", "/*00b0*/ IADD3 R1, R1, 0x1, RZ ;\n        /*00b0*/", 1);
        assert_eq!(report("sm_0", &more).unwrap(), Vec::<String>::new());
        let more = more.replacen("/*00b0*/", &"/*00b0*/ IADD3 R1, R1, 0x1, RZ ;\n        /*00b0*/".repeat(3), 1);
        let faults = report("sm_0", &more).unwrap();
        assert!(faults[0].contains("at most 200 hundredths of a percent of the warp's instructions, got 2"), "{faults:?}");
        let untold = whole(SAID).replacen("R54.64+0x58]", "R54.64+0x50]", 1);
        assert!(report("sm_0", &untold).unwrap()[0].contains("expected ways that are timed and written down, got none"));
        assert!(report("sm_0", "").is_err());
    }
}
