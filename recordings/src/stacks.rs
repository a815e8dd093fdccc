//! Stack frames and names, each once.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;

/// The frames of all stacks of a recording, and the names of blocks.
#[derive(Debug, Default)]
pub struct Stacks {
    texts: Vec<Box<str>>,
    frames: Vec<[u32; 3]>,
    /// Frames of all stacks, one after another.
    all: Vec<u32>,
    /// The end of each stack in `all`; it begins at the end of the last.
    ends: Vec<u32>,
    by_text: HashMap<Box<str>, u32>,
    by_frame: HashMap<[u32; 3], u32>,
    /// By the hash of its frames: they are in `all`, and not here again. Of two with one hash, the later; the earlier may then be there twice.
    by_hash: HashMap<u64, u32>,
}

/// The number of a stack. The default is the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackId(u32);

/// The number of a name. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameId(u32);

/// A function's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// Its name, perhaps empty.
    pub function: &'a str,
    /// Its source file, perhaps empty.
    pub file: &'a str,
    /// 0 if it is not known.
    pub line: u32,
}

impl<'a> Frame<'a> {
    /// The function: of C++ without its arguments, of a step of PyTorch's backward pass without its namespace.
    #[must_use]
    pub fn name(&self) -> &'a str {
        let function = self.function;
        // Not the parenthesis of `(anonymous namespace)`.
        let follows_name =
            |&(at, _): &(usize, &str)| function[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_' || last == '>');
        let name = function.match_indices('(').find(follows_name).map_or(function, |(at, _)| &function[..at]);
        name.strip_prefix("torch::autograd::generated::").unwrap_or(name)
    }

    /// The file; empty if a symbolizer of C++ did not find it.
    #[must_use]
    pub fn source(&self) -> &'a str {
        if self.file.ends_with("??") || self.file.ends_with('/') { "" } else { self.file }
    }

    /// Whether it is no line of the program itself: it is in C or C++ (PyTorch, the interpreter of Python), in an installed package or the standard library of
    /// Python, in code that PyTorch generated, or in Rust's standard library or a crate from a registry.
    #[must_use]
    pub fn is_library(&self) -> bool {
        self.is_native() || self.is_installed() || self.is_generated()
    }

    /// By its ending. Headers of C++'s standard library have none.
    fn is_native(&self) -> bool {
        let ending = self.file.rsplit_once('.').map_or("", |(_, ending)| ending);
        const ENDINGS: [&str; 13] = ["c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "inl", "cu", "cuh", "pyx", "S"];
        ENDINGS.contains(&ending) || self.file.contains("/include/c++/")
    }

    /// By its folder: of packages, `lib/python3.11`, `python311.zip`, or `Lib` in a folder of Python on Windows.
    fn is_installed(&self) -> bool {
        let is_version =
            |part: &str| part.strip_prefix("python").is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()));
        if self.file.starts_with("/rustc/") {
            return true;
        }
        let mut folders = self.file.split(['/', '\\']).peekable();
        while let Some(folder) = folders.next() {
            let Some(&next) = folders.peek() else { break };
            let is_windows = next == "Lib" && ["python", "anaconda", "miniconda"].iter().any(|name| begins(folder, name));
            if folder.ends_with("-packages")
                || matches!(folder, "lib" | "lib64" | "lib32") && is_version(next)
                || is_version(folder) && folder.ends_with(".zip")
                || is_windows
                || folder.ends_with("cargo") && matches!(next, "registry" | "git")
            {
                return true;
            }
        }
        false
    }

    /// Modules that are frozen into the interpreter, and graphs and kernels of `torch.compile`.
    fn is_generated(&self) -> bool {
        self.file.starts_with("<frozen ") || self.file.starts_with("<eval_with_key>") || self.file.contains("/torchinductor_")
    }

    /// The frames of a call of ringmem, innermost first: those of its place and of its backtrace. Either may be empty.
    #[must_use]
    pub fn of(place: &'a str, backtrace: &'a str) -> Vec<Self> {
        let mut frames = Vec::new();
        let mut add = |function, place: &'a str| {
            let (file, line) = source_line(place);
            frames.push(Frame { function, file, line });
        };
        if !place.is_empty() {
            add("", place);
        }
        // `NUMBER: FUNCTION`, and then `at FILE:LINE:COLUMN` if it is known.
        let mut lines = backtrace.lines().map(str::trim).peekable();
        while let Some(line) = lines.next() {
            let Some((_, function)) = line.split_once(": ") else { continue };
            let place = lines.next_if(|next| next.starts_with("at ")).and_then(|next| next.strip_prefix("at "));
            add(function, place.unwrap_or_default());
        }
        frames
    }
}

impl fmt::Display for Frame<'_> {
    /// `NAME in SOURCE:LINE`, as far as known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, source) = (self.name(), self.source());
        f.write_str(name)?;
        if source.is_empty() {
            return Ok(());
        }
        write!(f, "{}{source}", if name.is_empty() { "" } else { " in " })?;
        if self.line > 0 { write!(f, ":{}", self.line) } else { Ok(()) }
    }
}

/// Whether a text begins with another, in letters of any case.
fn begins(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

/// Of `FILE:LINE:COLUMN`.
fn source_line(place: &str) -> (&str, u32) {
    let mut parts = place.rsplitn(3, ':');
    match (parts.next().and_then(|column| column.parse::<u32>().ok()), parts.next().and_then(|line| line.parse().ok()), parts.next()) {
        (Some(_), Some(line), Some(file)) => (file, line),
        _ => (place, 0),
    }
}

impl Stacks {
    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = Frame<'_>> {
        let text = |number: u32| self.texts.get(number as usize).map_or("", |text| text);
        self.numbers(stack.0).iter().filter_map(move |&frame| {
            let &[function, file, line] = self.frames.get(frame as usize)?;
            Some(Frame { function: text(function), file: text(file), line })
        })
    }

    /// A block's name.
    #[must_use]
    pub fn name(&self, name: NameId) -> Option<&str> {
        self.texts.get((name.0 as usize).checked_sub(1)?).map(|text| &**text)
    }

    /// The frame that tells most: the innermost with a line that [is in no library](Frame::is_library). Without one, PyTorch's backward pass made the
    /// call: the step that it ran, whose line is not known. Else the innermost frame with a line that is not in C or C++, else with any line.
    #[must_use]
    pub fn place(&self, stack: StackId) -> Option<Frame<'_>> {
        let has_line = |frame: &Frame<'_>| frame.line > 0 && !frame.file.is_empty();
        let is_step = |frame: &Frame<'_>| frame.function.contains("::autograd::") && frame.function.contains("::apply(");
        let find = |meets: &dyn Fn(&Frame<'_>) -> bool| self.frames(stack).find(meets);
        find(&|frame| has_line(frame) && !frame.is_library())
            .or_else(|| find(&is_step))
            .or_else(|| find(&|frame| has_line(frame) && !frame.is_native()))
            .or_else(|| find(&has_line))
    }

    /// The numbers of its frames. Stacks are numbered from 1; 0 is the empty one.
    fn numbers(&self, stack: u32) -> &[u32] {
        let place = (stack as usize).checked_sub(1);
        let end = |place: usize| self.ends.get(place).map_or(0, |&end| end as usize);
        let range = place.map_or(0..0, |place| place.checked_sub(1).map_or(0, end)..end(place));
        self.all.get(range).unwrap_or_default()
    }

    pub(crate) fn text(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.by_text.get(text) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.into());
        self.by_text.insert(text.into(), number);
        number
    }

    /// Of an empty text none.
    pub(crate) fn named(&mut self, name: &str) -> NameId {
        if name.is_empty() { NameId::default() } else { NameId(self.text(name) + 1) }
    }

    pub(crate) fn frame(&mut self, function: u32, file: u32, line: u32) -> u32 {
        let next = self.frames.len() as u32;
        let frame = [function, file, line];
        *self.by_frame.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            next
        })
    }

    pub(crate) fn stack(&mut self, frames: &[u32]) -> StackId {
        if frames.is_empty() {
            return StackId::default();
        }
        let hash = self.by_hash.hasher().hash_one(frames);
        if let Some(&number) = self.by_hash.get(&hash)
            && self.numbers(number) == frames
        {
            return StackId(number);
        }
        self.all.extend(frames);
        self.ends.push(self.all.len() as u32);
        let number = self.ends.len() as u32;
        self.by_hash.insert(hash, number);
        StackId(number)
    }
}
