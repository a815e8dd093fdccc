//! PTX text as functions and their operations, as far as the checks need.

use std::collections::{BTreeMap, BTreeSet};

use crate::Failure;

#[derive(Debug)]
pub struct Module {
    pub functions: Vec<Function>,
    pub abi: Option<u64>,
}

#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub entry: bool,
    pub parameters: usize,
    pub operations: Vec<Operation>,
    pub labels: BTreeMap<String, usize>,
}

#[derive(Debug)]
pub struct Operation {
    pub line: usize,
    pub text: String,
    pub predicated: bool,
}

impl Module {
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut module = Self { functions: Vec::new(), abi: None };
        let mut statement = String::new();
        let (mut line, mut begin) = (1, 1);
        let (mut depth, mut group) = (0u32, 0u32);
        let text = without_comments(text);
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            if statement.is_empty() {
                begin = line;
            }
            match c {
                '{' if depth == 0 && header(&statement) => {
                    module.functions.push(Function::opened(&statement)?);
                    statement.clear();
                    depth = 1;
                }
                '{' if depth > 0 && statement.is_empty() => depth += 1,
                '{' => {
                    group += 1;
                    statement.push(c);
                }
                '}' if group > 0 => {
                    group -= 1;
                    statement.push(c);
                }
                '}' => {
                    depth = depth.checked_sub(1).ok_or_else(|| format!("line {line}: a closing brace too many"))?;
                    statement.clear();
                }
                ';' if group == 0 => {
                    let text = std::mem::take(&mut statement);
                    match module.functions.last_mut() {
                        Some(function) if depth > 0 => function.operations.push(Operation::new(begin, &text)),
                        _ => module.abi = module.abi.or(abi(&text)),
                    }
                }
                ':' if characters.peek() == Some(&':') => statement.extend([c, characters.next().unwrap_or_default()]),
                ':' if depth > 0 && !statement.contains(' ') => {
                    let label = std::mem::take(&mut statement);
                    if let Some(function) = module.functions.last_mut() {
                        function.labels.insert(label, function.operations.len());
                    }
                }
                c if c.is_whitespace() => {
                    line += u32::from(c == '\n') as usize;
                    if !statement.is_empty() && !statement.ends_with(' ') {
                        statement.push(' ');
                    }
                }
                c => statement.push(c),
            }
        }
        if depth != 0 {
            return Err("the text ends inside a function".into());
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = module.functions.iter().find(|function| !names.insert(&function.name)) {
            return Err(format!("two functions are called {}", twice.name).into());
        }
        Ok(module)
    }

    pub fn kernels(&self) -> Vec<(&str, usize)> {
        let mut kernels: Vec<_> = self.functions.iter().filter(|f| f.entry).map(|f| (&*f.name, f.parameters)).collect();
        kernels.sort_unstable();
        kernels
    }

    /// Functions that trap at the end or are named as panics: calling one is a trap.
    pub fn panics(&self) -> BTreeSet<&str> {
        let mut panics = BTreeSet::new();
        loop {
            let before = panics.len();
            for function in self.functions.iter().filter(|function| !function.entry) {
                let traps =
                    |operation: &Operation| operation.opcode() == "trap" || operation.callee().is_some_and(|name| panics.contains(&*name));
                if is_panic(&function.name) || function.operations.iter().any(traps) {
                    panics.insert(&*function.name);
                }
            }
            if panics.len() == before {
                return panics;
            }
        }
    }
}

impl Function {
    fn opened(header: &str) -> Result<Self, Failure> {
        let nameless = || format!("a function without a name: {header}");
        let (entry, rest) = match (header.rfind(".entry "), header.rfind(".func ")) {
            (Some(at), _) => (true, &header[at + ".entry ".len()..]),
            (None, Some(at)) => (false, &header[at + ".func ".len()..]),
            (None, None) => return Err(nameless().into()),
        };
        let rest = rest.trim_start();
        let rest = if rest.starts_with('(') { rest.split_once(')').ok_or_else(nameless)?.1 } else { rest };
        let end = rest.find('(').unwrap_or(rest.len());
        let name = readable(rest[..end].trim());
        if name.is_empty() {
            return Err(nameless().into());
        }
        Ok(Self { name, entry, parameters: rest[end..].matches(".param ").count(), operations: Vec::new(), labels: BTreeMap::new() })
    }
}

impl Operation {
    fn new(line: usize, statement: &str) -> Self {
        let statement = statement.trim();
        let predicated = statement.starts_with('@');
        let text = if predicated { statement.split_once(' ').map_or("", |(_, rest)| rest) } else { statement };
        Self { line, text: text.trim().to_owned(), predicated }
    }

    pub fn opcode(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    pub fn callee(&self) -> Option<String> {
        if self.opcode().split('.').next() != Some("call") {
            return None;
        }
        let rest = self.text[self.opcode().len()..].trim();
        let rest = if rest.starts_with('(') { rest.split_once(')')?.1.trim_start_matches([',', ' ']) } else { rest };
        rest.split(',').next().map(|name| readable(name.trim()))
    }
}

fn header(statement: &str) -> bool {
    statement.contains(".entry ") || statement.contains(".func ")
}

fn abi(statement: &str) -> Option<u64> {
    let (declaration, value) = statement.split_once('=')?;
    let named = declaration.split([' ', '[']).any(|word| word == "RINGMEM_ABI");
    if !(named && declaration.contains(".visible .global ")) {
        return None;
    }
    let number = |text: &str| {
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok().or_else(|| text.parse().ok().map(i64::cast_unsigned)),
        }
    };
    match value.trim().strip_prefix('{') {
        None => number(value),
        Some(bytes) => {
            let mut value = [0; 8];
            for (i, byte) in bytes.trim_end_matches('}').split(',').enumerate() {
                *value.get_mut(i)? = number(byte)?.try_into().ok()?;
            }
            Some(u64::from_le_bytes(value))
        }
    }
}

pub fn readable(symbol: &str) -> String {
    let mut name = String::new();
    let mut rest = symbol;
    while let Some(at) = rest.find("Cs") {
        let (before, hash) = rest.split_at(at + 1);
        name += before;
        let end = hash.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(hash.len());
        let crate_hash = hash[end..].strip_prefix('_').filter(|after| after.starts_with(|c: char| c.is_ascii_digit()));
        rest = crate_hash.unwrap_or(hash);
    }
    name + rest
}

pub fn is_panic(name: &str) -> bool {
    ["panic", "_fail", "begin_unwind"].iter().any(|part| name.contains(part))
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        kept += before;
        let end = match comment.as_bytes().get(1) {
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            Some(b'*') => comment.find("*/").map_or(comment.len(), |end| end + 2),
            _ => {
                kept.push('/');
                rest = &comment[1..];
                continue;
            }
        };
        kept.push(' ');
        kept.extend(comment[..end].chars().filter(|c| *c == '\n'));
        rest = &comment[end..];
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_separates_prototypes_bodies_and_operations() {
        let text = "\
.version 6.3
.func _RNvNtCsanIojcP8aaR_4core9panicking5panic
(
	.param .b64 p
)
;
.visible .global .align 8 .b8 RINGMEM_ABI[8] = {57, 211, 143, 57, 227, 125, 245, 225};

.func  (.param .b64 func_retval0) helper(
	.param .b64 helper_param_0,
	.param .b64 helper_param_1
)
{
	ret;
}
	// .globl	k
.visible .entry k(
	.param .u64 .ptr .align 1 k_param_0
)
.maxntid 32, 1, 1
{
$L__BB0_1: /* two
lines */
	ld.global.v2.b64 	{%rd1, %rd2}, [%rd3];
	{ // callseq 1, 0
	.param .b64 	param0;
	call.uni (retval0), helper, (param0, param1);
	} // callseq 1
	@%p3 bra 	$L__BB0_1;
	@!%p3 trap; exit;
}
";
        let module = Module::parse(text).unwrap();
        assert_eq!(module.abi, Some(u64::from_le_bytes([57, 211, 143, 57, 227, 125, 245, 225])));
        assert_eq!(module.kernels(), [("k", 1)]);
        let [helper, kernel] = &module.functions[..] else { panic!("{module:?}") };
        assert_eq!((&*helper.name, helper.entry, helper.parameters), ("helper", false, 2));
        let texts: Vec<&str> = kernel.operations.iter().map(|operation| &*operation.text).collect();
        let call = "call.uni (retval0), helper, (param0, param1)";
        assert_eq!(texts, ["ld.global.v2.b64 {%rd1, %rd2}, [%rd3]", ".param .b64 param0", call, "bra $L__BB0_1", "trap", "exit"]);
        assert_eq!(kernel.operations[0].line, 24);
        assert_eq!(kernel.operations[2].callee().as_deref(), Some("helper"));
    }

    #[test]
    fn the_abi_is_read_from_every_visible_form() {
        assert_eq!(abi(".visible .global .align 8 .u64 RINGMEM_ABI = 7"), Some(7));
        assert_eq!(abi(".visible .global .align 8 .b64 RINGMEM_ABI = -1"), Some(u64::MAX));
        assert_eq!(abi(".visible .global .align 8 .b64 RINGMEM_ABI = 0xff"), Some(255));
        assert_eq!(abi(".visible .global .align 8 .b8 RINGMEM_ABI[8] = {1, 2}"), Some(0x201));
        assert_eq!(abi(".visible .global .align 8 .b8 RINGMEM_ABI[8] = {0, 0, 0, 0, 0, 0, 0, 0, 1}"), None);
        assert_eq!(abi(".visible .global .align 8 .b8 RINGMEM_ABI[8]"), None);
        assert_eq!(abi(".global .align 8 .u64 RINGMEM_ABI = 7"), None);
        assert_eq!(abi(".visible .global .align 8 .u64 RINGMEM_ABI_OLD = 7"), None);
    }

    #[test]
    fn readable_removes_the_crate_hash() {
        let symbol = "_RNvNtCsanIojcP8aaR_4core9panicking18panic_bounds_check";
        assert_eq!(readable(symbol), "_RNvNtC4core9panicking18panic_bounds_check");
        assert_eq!(readable("echo"), "echo");
        assert_eq!(readable("Cs"), "Cs");
    }

    #[test]
    fn truncated_ptx_is_an_error() {
        assert!(Module::parse(".visible .entry k()\n{\n\tret;\n").is_err());
        assert!(Module::parse("}\n").is_err());
    }
}
