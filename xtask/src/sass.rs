//! `cargo xtask ptxas`, second part: counts the machine instructions of one batch on the shortest path from the loop that moves payload, through the
//! publishing fence and the next poll of the rings, back. Counters and clock are the additional instructions of [`TOGETHER`] batches over the kernel
//! without counters.

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

const MOVERS: [(&str, u64); 5] = [("echo", 1), ("echo_split", 1), ("echo_flagged", 1), ("echo_bare", 1), ("echo_aggregated", 2)];

#[derive(Debug, Default)]
struct Block {
    instructions: Vec<String>,
    next: Vec<usize>,
}

impl Block {
    fn count(&self, is: impl Fn(&str) -> bool) -> u64 {
        self.instructions.iter().filter(|text| is(text)).count() as u64
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

fn looks(block: &Block) -> bool {
    let is_load = |text: &&String| text.starts_with("LD") && text.contains("STRONG.SYS");
    let loads = block.instructions.iter().position(|text| is_load(&text));
    // The path of the command's poll bypasses the rings.
    let at_rings = !block.instructions.iter().any(|text| is_load(&text) && text.contains(COMMAND));
    at_rings && loads.is_some_and(|at| block.instructions[at..].iter().any(|text| text.starts_with("CCTL.IVALL")))
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
        for line in body.lines().map(str::trim) {
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
            if text == "NOP" {
                continue;
            }
            let last = blocks.len() - 1;
            blocks[last].instructions.push(text.to_owned());
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
        let (more, way) = self.blocks.iter().filter(|block| looks(block)).filter_map(through).min()?;
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
