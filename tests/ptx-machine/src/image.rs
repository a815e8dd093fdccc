//! [`Image`]: a decoded PTX text and its variables.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::code::Function;
use crate::decode::{self, Names, SHARED_LIMIT, place};
use crate::fault::{Answer, Fault, Kind};
use crate::syntax::{self, Value, Variable};

/// A lane's local memory, as a generic address.
pub const LOCAL: u64 = 0x7e00_0000_0000_0000;
/// A block's shared memory, as a generic address.
pub const SHARED: u64 = 0x7d00_0000_0000_0000;
pub const CODE: u64 = 0x7c00_0000_0000_0000;
pub const WINDOW: u64 = 1 << 40;
/// Bytes between two variables: as many as the widest access, so that the access after the end of one is outside the next, too.
const GAP: u64 = 16;
const GLOBAL_LIMIT: u64 = 1 << 28;
const THREAD_LIMIT: u64 = 1024;

/// A PTX text: its functions, and memory for its variables.
#[derive(Debug)]
pub struct Image {
    pub(crate) functions: Vec<Function>,
    pub(crate) shared_bytes: u64,
    /// By ascending address.
    variables: Box<[Global]>,
    memory: Box<[AtomicU64]>,
    text: String,
    executed: Box<[AtomicBool]>,
}

/// A variable in the image's memory.
#[derive(Debug)]
struct Global {
    name: String,
    address: u64,
    bytes: u64,
}

impl Image {
    pub(crate) fn explain(&self, mut fault: Fault) -> Fault {
        let line = self.text.lines().nth((fault.line as usize).saturating_sub(1)).unwrap_or_default();
        let line = line.split("//").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        fault.text = format!("`{line}` {}", fault.text);
        fault
    }

    /// Parses a text.
    ///
    /// # Errors
    ///
    /// [`Kind::Syntax`] and [`Kind::UnknownOpcode`].
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let module = syntax::module(text)?;
        let (mut bytes, mut shared_bytes) = (0, 0);
        let mut offsets = Vec::new();
        let mut addresses = HashMap::new();
        let shared_limit = SHARED_LIMIT * (1 + module.functions.len() as u64);
        for variable in &module.variables {
            if variable.space == ".shared" {
                addresses.insert(variable.name, SHARED + place(&mut shared_bytes, shared_limit, variable)?);
            } else {
                bytes = u64::next_multiple_of(bytes, 8) + GAP;
                offsets.push((variable, place(&mut bytes, GLOBAL_LIMIT, variable)?));
            }
        }
        let align = offsets.iter().map(|(variable, _)| variable.align).max().unwrap_or(8).max(8);
        let memory: Box<[AtomicU64]> = (0..(bytes + align) / 8 + 2).map(|_| AtomicU64::new(0)).collect();
        let base = (memory.as_ptr().expose_provenance() as u64).next_multiple_of(align);
        addresses.extend(offsets.iter().map(|(variable, at)| (variable.name, base + at)));
        for (variable, at) in &offsets {
            initialise(&memory, base + at, variable, &addresses)?;
        }
        // Definitions win over declarations.
        let mut functions = HashMap::new();
        let defined: Vec<_> = module.functions.iter().filter(|function| function.body.is_some()).collect();
        for (index, function) in defined.iter().enumerate() {
            functions.insert(function.name, index);
        }
        let names = Names { functions, variables: addresses };
        let functions = defined
            .iter()
            .map(|function| decode::function(function, &names, &mut shared_bytes, shared_limit))
            .collect::<Answer<Vec<_>>>()?;
        let executed = text.lines().map(|_| AtomicBool::new(false)).collect();
        let global =
            |(variable, at): &(&Variable<'_>, u64)| Global { name: variable.name.to_owned(), address: base + at, bytes: variable.bytes };
        let variables = offsets.iter().map(global).collect();
        Ok(Self { functions, shared_bytes, variables, memory, text: text.to_owned(), executed })
    }

    /// Returns each entry's name and its parameters' sizes in bytes.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        let sizes = |function: &Function| function.parameters.iter().map(|parameter| parameter.bytes).collect();
        self.functions.iter().filter(|function| function.is_entry).map(move |function| (function.name.as_str(), sizes(function)))
    }

    /// Returns the local memory per thread in bytes, without called functions.
    #[must_use]
    pub fn local_bytes(&self, name: &str) -> u64 {
        self.functions.iter().find(|function| function.name == name).map_or(0, |function| function.local_bytes)
    }

    /// Returns a global variable's address and size.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<(u64, u64)> {
        // Of a declaration and its definition, which have one name, the code uses the last.
        self.variables.iter().rfind(|variable| variable.name == name).map(|variable| (variable.address, variable.bytes))
    }

    /// Returns the lines that lanes executed.
    pub fn executed(&self) -> impl Iterator<Item = u32> {
        (1..).zip(&self.executed).filter(|(_, executed)| executed.load(Relaxed)).map(|(line, _)| line)
    }

    pub(crate) fn executes(&self, line: u32) {
        if let Some(executed) = self.executed.get(line as usize - 1) {
            executed.store(true, Relaxed);
        }
    }

    pub(crate) fn entry(&self, name: &str, arguments: usize, (groups, threads): (u64, crate::Threads)) -> Answer<usize> {
        let found = self.functions.iter().position(|function| function.is_entry && function.name == name);
        let index = found.ok_or_else(|| Fault::new(Kind::Launch, 1, format!("no entry `{name}`")))?;
        let function = &self.functions[index];
        let words: u64 = function.parameters.iter().map(|parameter| parameter.bytes.div_ceil(8)).sum();
        if words != arguments as u64 {
            let text = format!("`{name}` takes {words} words of arguments, {arguments} were passed");
            return Err(Fault::new(Kind::Launch, function.line, text));
        }
        let extents = [threads.x.into(), threads.y.into(), 1];
        let threads = extents.iter().product::<u64>();
        let syntax::Threads { exactly, most } = function.threads;
        if groups == 0
            || threads == 0
            || threads > most.map_or(THREAD_LIMIT, |most| most.min(THREAD_LIMIT))
            || exactly.is_some_and(|exactly| exactly != extents)
        {
            let [x, y, _] = extents;
            let text = format!("`{name}` cannot run as {groups} blocks of {x} by {y} threads");
            return Err(Fault::new(Kind::Launch, function.line, text));
        }
        Ok(index)
    }

    pub(crate) fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let base = self.memory.as_ptr().addr() as u64;
        // Most addresses are the host's: they need no search.
        if address.checked_sub(base)? >= self.memory.len() as u64 * 8 {
            return None;
        }
        let after = self.variables.partition_point(|variable| variable.address <= address);
        let variable = &self.variables[after.checked_sub(1)?];
        if (address - variable.address).checked_add(bytes)? > variable.bytes {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }
}

fn initialise(memory: &[AtomicU64], address: u64, variable: &Variable<'_>, addresses: &HashMap<&str, u64>) -> Answer {
    let base = memory.as_ptr().addr() as u64;
    let mut at = address - base;
    for value in &variable.values {
        let value = match value {
            Value::Number(number) => *number,
            Value::AddressOf(name) => {
                let unknown = || Fault::new(Kind::Syntax, 1, format!("`{}` refers to `{name}`, which is not a variable", variable.name));
                *addresses.get(name).ok_or_else(unknown)?
            }
        };
        for byte in value.to_le_bytes().iter().take(variable.element.min(8) as usize) {
            let word = &memory[at as usize / 8];
            word.fetch_or(u64::from(*byte) << (at % 8 * 8), Relaxed);
            at += 1;
        }
    }
    Ok(())
}
