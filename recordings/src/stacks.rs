//! Stack frames, each once.

use std::collections::HashMap;
use std::hash::BuildHasher;

/// The frames of all stacks of a recording.
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

/// A function's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its name, perhaps empty.
    pub function: &'a str,
    /// Its source file, perhaps empty.
    pub file: &'a str,
    /// 0 if it is not known.
    pub line: u32,
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

    /// The innermost frame of the program itself: the first with a line that is neither in C++ nor in an installed package; else the first with a line.
    #[must_use]
    pub fn place(&self, stack: StackId) -> Option<Frame<'_>> {
        let has_line = |frame: &Frame<'_>| frame.line > 0 && !frame.file.is_empty();
        let is_library = |file: &str| file.contains("-packages/") || file.ends_with(".cpp") || file.ends_with(".h");
        self.frames(stack).find(|frame| has_line(frame) && !is_library(frame.file)).or_else(|| self.frames(stack).find(has_line))
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
