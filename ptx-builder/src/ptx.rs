//! [`Ptx`] and the facts that its text states.
//!
//! A driver compiles PTX when the program loads it. Faults that a compiler accepts and a driver refuses are found here, at build time, by
//! reading the text: debug sections, unresolved functions, a module without kernels. Stack frames are no faults, but they restrict launches, so
//! they are reported with their kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The compiled PTX.
#[derive(Clone, Debug)]
pub struct Ptx {
    /// The file, in the target directory.
    pub path: PathBuf,
    /// Its contents.
    pub text: String,
    /// The source files of the crate, its workspace and path dependencies; the manifests and the lock file that select the dependencies.
    pub sources: Vec<PathBuf>,
    /// The kernels in the text, in its order.
    pub kernels: Vec<Kernel>,
}

/// A kernel in PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// The name of its entry.
    pub name: String,
    /// The bytes of local memory that each thread's stack frame takes, with the deepest frames of the functions that it calls. A kernel with local
    /// memory may have to wait for running kernels when it is launched first.
    pub local_bytes: u64,
}

/// Functions that each driver defines for PTX.
const OF_THE_DRIVER: [&str; 4] = ["__assertfail", "free", "malloc", "vprintf"];

/// Returns the kernels of a module, or what a driver refuses in it.
pub(crate) fn checked(text: &str, processor: &str, version: u32) -> Result<Vec<Kernel>, Vec<String>> {
    let module = Module::parse(text);
    let mut faults = Vec::new();
    match module.version {
        Some((major, minor)) if major * 10 + minor >= version => {}
        Some((major, minor)) => {
            faults.push(format!("its `.version` is {major}.{minor}, expected {}.{} or later", version / 10, version % 10));
        }
        None => faults.push("it has no `.version`".to_owned()),
    }
    match module.target.split_first() {
        Some((architecture, options)) => {
            if *architecture != processor {
                faults.push(format!("its `.target` is {architecture}, expected {processor}"));
            }
            if options.contains(&"debug") {
                faults.push("it has debug information, which needs a later version of PTX: compile with `debug = false`".to_owned());
            }
        }
        None => faults.push("it has no `.target`".to_owned()),
    }
    let unresolved: Vec<&str> = module.externs.iter().copied().filter(|name| !OF_THE_DRIVER.contains(name)).collect();
    if !unresolved.is_empty() {
        let is_memory = unresolved.iter().any(|name| ["bcmp", "memcmp", "memcpy", "memmove", "memset", "strlen"].contains(name));
        let advice = if is_memory { ". Compare and copy arrays and slices element by element" } else { "" };
        faults.push(format!("nothing defines {}: no linker resolves symbols of PTX{advice}", unresolved.join(", ")));
    }
    if module.kernels.is_empty() {
        faults
            .push("it has no kernel: declare one with `kernels!`, in the library and without a `cfg` that excludes the device".to_owned());
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut frames = Frames::default();
    let kernels = module.kernels.iter().copied();
    Ok(kernels.map(|name| Kernel { name: name.to_owned(), local_bytes: frames.of(&module, name).0 }).collect())
}

#[derive(Default)]
struct Module<'a> {
    version: Option<(u32, u32)>,
    /// The processor, then options such as `debug`.
    target: Vec<&'a str>,
    kernels: Vec<&'a str>,
    functions: BTreeMap<&'a str, Function<'a>>,
    externs: Vec<&'a str>,
}

#[derive(Default)]
struct Function<'a> {
    local_bytes: u64,
    calls: BTreeSet<&'a str>,
}

impl<'a> Module<'a> {
    /// Reads the directives as LLVM prints them: each begins a line. A call may continue on the next lines.
    fn parse(text: &'a str) -> Self {
        let mut module = Self::default();
        let mut current = "";
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n').or_else(|| (!rest.is_empty()).then_some((rest, ""))) {
            let begin = rest;
            rest = after;
            let line = line.split_once("//").map_or(line, |(code, _)| code).trim();
            let (first, others) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match first {
                ".version" => module.version = number(others),
                ".target" => module.target = others.split(',').map(str::trim).collect(),
                // The launch sizes dynamic shared memory.
                ".extern" if has_word(others, ".shared") => {}
                ".extern" => module.externs.extend(declared(others)),
                ".local" => module.functions.entry(current).or_default().local_bytes += bytes(others),
                _ if first.starts_with('.') && (has_word(line, ".entry") || has_word(line, ".func")) => {
                    let Some(name) = declared(line) else { continue };
                    current = name;
                    if has_word(line, ".entry") {
                        module.kernels.push(name);
                    }
                }
                _ => {
                    if let Some(callee) = line.find("call").and_then(|at| callee(&begin[begin.find(line).unwrap_or(0) + at..])) {
                        module.functions.entry(current).or_default().calls.insert(callee);
                    }
                }
            }
        }
        module
    }
}

/// The local memory of call chains.
#[derive(Default)]
struct Frames<'a> {
    /// The functions of the chain that is being followed, with their depths.
    above: BTreeMap<&'a str, usize>,
    /// Those that are complete: a function that many call is followed once, as there may be exponentially many chains.
    known: BTreeMap<&'a str, u64>,
}

impl<'a> Frames<'a> {
    /// The bytes of a function's frame and of the deepest frames below it, and the least depth of a function above that was called again, which counts once:
    /// then the bytes are of this chain alone.
    fn of(&mut self, module: &Module<'a>, name: &'a str) -> (u64, Option<usize>) {
        let Some(function) = module.functions.get(name) else { return (0, None) };
        if let Some(&known) = self.known.get(name) {
            return (known, None);
        }
        if let Some(&depth) = self.above.get(name) {
            return (0, Some(depth));
        }
        let depth = self.above.len();
        self.above.insert(name, depth);
        let (mut below, mut again) = (0, None);
        for callee in &function.calls {
            let (bytes, of_callee) = self.of(module, callee);
            below = below.max(bytes);
            again = [again, of_callee].into_iter().flatten().min();
        }
        self.above.remove(name);
        let bytes = function.local_bytes.saturating_add(below);
        let again = again.filter(|&of_above| of_above < depth);
        if again.is_none() {
            self.known.insert(name, bytes);
        }
        (bytes, again)
    }
}

fn has_word(line: &str, word: &str) -> bool {
    line.split_whitespace().any(|found| found == word)
}

fn number(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn identifier(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !(letter.is_alphanumeric() || "_$".contains(letter))).unwrap_or(text.len());
    (end > 0).then_some(&text[..end])
}

/// The name that a declaration of a function or a variable declares: `.func (.param .b32 r) memcmp(`, `.global .align 8 .b8 name[8];`.
fn declared(line: &str) -> Option<&str> {
    for keyword in [".entry", ".func"] {
        if let Some((_, after)) = line.split_once(keyword) {
            return identifier(without_results(after));
        }
    }
    identifier(line.split_whitespace().last()?)
}

/// Skips the parameter that a function returns, in parentheses.
fn without_results(text: &str) -> &str {
    let text = text.trim_start();
    let inner = text.strip_prefix('(').and_then(|inner| inner.split_once(')'));
    inner.map_or(text, |(_, after)| after.trim_start().trim_start_matches(',').trim_start())
}

/// The function of `call.uni (retval0), name, (param0);`; none for a call through a register.
fn callee(text: &str) -> Option<&str> {
    let after = text.strip_prefix("call")?;
    let after = match after.chars().next()? {
        '.' => after.split_once(char::is_whitespace)?.1,
        space if space.is_whitespace() => after,
        _ => return None,
    };
    identifier(without_results(after))
}

/// The size of `.align 8 .b8 __local_depot0[128];`.
fn bytes(declaration: &str) -> u64 {
    let element = declaration.split_whitespace().filter_map(|word| word.strip_prefix('.')).find_map(|word| {
        let bits = word.strip_prefix(['b', 'u', 's', 'f'])?;
        bits.parse::<u64>().ok()
    });
    let count = declaration.split_once('[').and_then(|(_, count)| count.split_once(']')).map_or(Some(1), |(count, _)| count.parse().ok());
    // A declaration in another form counts as a byte: the kernel has local memory.
    element.zip(count).map_or(1, |(bits, count): (u64, u64)| (bits / 8).saturating_mul(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_graph_with_many_chains_is_read_at_once() {
        let mut text = String::new();
        for level in 0..60 {
            for name in ["a", "b"] {
                text += &format!(".func {name}{level}()\n{{\n.local .align 8 .b8 depot[8];\n");
                // The last two call themselves.
                for callee in ["a", "b"].iter().filter(|callee| level < 59 || **callee == name) {
                    text += &format!("call.uni {callee}{}, ();\n", (level + 1).min(59));
                }
                text += "}\n";
            }
        }
        let module = Module::parse(&text);
        assert_eq!(Frames::default().of(&module, "a0"), (60 * 8, None));
    }

    /// In the form of LLVM 22 and 23.
    const HEAD: &str = "//\n// Generated by LLVM NVPTX Back-End\n//\n\n.version 7.0\n.target sm_70\n.address_size 64\n\n";
    const STEP: &str = "\
\t// .globl\tstep
.visible .global .align 8 .b8 RINGMEM_ABI[8] = {248, 7, 188, 112, 125, 107, 135, 94};

.visible .entry step(
\t.param .u64 step_param_0,
\t.param .u64 step_param_1
)
{
\t.local .align 8 .b8 \t__local_depot0[128];
\t.reg .b64 \t%SP;
\t.reg .b64 \t%SPL;

\tmov.b64 \t%SPL, __local_depot0;
\tst.local.b64 \t[%rd10+8], 2;
\tret;

}
";

    fn kernels(text: &str) -> Result<Vec<(String, u64)>, Vec<String>> {
        let named = |kernels: Vec<Kernel>| kernels.into_iter().map(|kernel| (kernel.name, kernel.local_bytes)).collect();
        checked(text, "sm_70", 63).map(named)
    }

    #[test]
    fn a_stack_frame_is_reported_with_its_kernel_and_bytes() {
        let other = ".visible .entry other()\n{\n\tret;\n}\n";
        let found = kernels(&format!("{HEAD}{STEP}{other}")).unwrap();
        assert_eq!(found, [("step".to_owned(), 128), ("other".to_owned(), 0)]);
    }

    #[test]
    fn a_kernel_has_the_frames_of_the_functions_that_it_calls() {
        let text = format!(
            "{HEAD}
.func (.param .b32 func_retval0) deep(
\t.param .b64 deep_param_0
)
{{
\t.local .align 16 .b8 \t__local_depot1[64];
\tcall.uni \n\tdeep, \n\t(\n\t);
}}
.func _ZN4flat17h1E()
{{
\t.local .b64 words[2]; // 16 bytes
\tret;
}}
.visible .entry a()
{{
\t.local .align 4 .b8 \t__local_depot2[4];
\t@%p1 bra \t$L__BB0_1;
\t{{ // callseq 0, 0
\t.param .b64 param0;
\tcall.uni (retval0), deep, (param0);
\t}} // callseq 0
\tcall.uni _ZN4flat17h1E, ();
\tcall (retval1), %rd1, (param0), prototype_1;
}}
.visible .entry b()
{{
\tcall.uni\n\t_ZN4flat17h1E,\n\t();
}}
.visible .entry c() {{ ret; }}
"
        );
        assert_eq!(kernels(&text).unwrap(), [("a", 68), ("b", 16), ("c", 0)].map(|(name, bytes)| (name.to_owned(), bytes)));
    }

    #[test]
    fn debug_information_is_a_fault() {
        let text = format!("{HEAD}{STEP}").replace(".target sm_70", ".target sm_70, debug");
        let faults = kernels(&text).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains("debug information"), "{faults:?}");
    }

    #[test]
    fn unresolved_symbols_are_named() {
        let externs = "
.extern .func  (.param .b32 func_retval0) memcmp
(
\t.param .b64 memcmp_param_0
)
;
.extern .func rust_begin_unwind();
.extern .func  (.param .b32 func_retval0) vprintf(.param .b64 a, .param .b64 b);
.extern .global .align 8 .b8 table[8];
.extern .shared .align 16 .b8 dynamic[];
";
        let faults = kernels(&format!("{HEAD}{externs}{STEP}")).unwrap_err();
        let expected = "nothing defines memcmp, rust_begin_unwind, table: no linker resolves symbols of PTX. Compare and copy arrays and slices element by element";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn another_version_or_processor_and_a_module_without_kernels_are_faults() {
        let text = HEAD.replace("7.0", "6.2").replace("sm_70", "sm_80");
        let faults = kernels(&text).unwrap_err();
        assert!(faults[0].contains("6.2, expected 6.3") && faults[1].contains("sm_80, expected sm_70"), "{faults:?}");
        assert!(faults[2].contains("no kernel"), "{faults:?}");
        let faults = kernels("").unwrap_err();
        assert!(faults[0].contains("no `.version`") && faults[1].contains("no `.target`"), "{faults:?}");
    }

    #[test]
    fn the_checked_in_kernels_have_no_fault_and_no_frame() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-rs/ptx/ringmem.ptx")).unwrap();
        let found = kernels(&text).unwrap();
        assert_eq!(found.len(), text.matches(".visible .entry ").count());
        assert!(found.iter().all(|(_, local_bytes)| *local_bytes == 0), "{found:?}");
    }
}
