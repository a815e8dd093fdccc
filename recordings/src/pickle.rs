//! [`Tree`]: the values of a pickle, in about as many bytes as the file.
//!
//! A pickle is a program for a machine with a stack and a memo. This machine knows the opcodes that build data; those that import or call something are errors
//! that name them, so nothing of a file is ever executed. It reads protocols 2 to 5.
//!
//! # Why another reader
//!
//! A snapshot of PyTorch has millions of dictionaries that share their keys, strings and stack frames through the memo. `serde-pickle` 1.2 clones the value at
//! each use of the memo. It refused two recorded snapshots as recursive; with such values replaced, it took 257 MB for one of 1.3 MB, of which `ringmem replay`
//! takes 11 MB in all. Here a use of the memo is a number.
//!
//! # Representation
//!
//! A [`Value`] is a number, or the index of a text, a list or a dictionary. While a container is built, its items are on the stack; when an opcode appends
//! them, they become a *chunk* of the arena: each item a tag of four bits and a number, in a variable count of bytes. The frames of a stack take two or three
//! bytes each, as in the file. Picklers append up to 1000 items at a time, so a container is a list of chunks; a dictionary has its keys and values in turn.
//! Equal texts are one.
//!
//! # Bounds
//!
//! - Memory: all that is held, counted in [`Machine::check`], may be three times the file and [`SMALL`]. A file whose values need more is refused: a byte can
//!   demand an empty list, a list of lists or a million uses of one.
//! - Counts in the file are compared with the bytes that are left before anything is allocated.
//! - Nothing here recurses, and a value may contain itself: readers go down to a depth of their own.

use std::collections::HashMap;
use std::rc::Rc;

use crate::ReadError;

/// A value, or where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that 64 bits with a sign do not hold.
    Large,
    Float(f64),
    Text(u32),
    /// A list, tuple or set.
    List(u32),
    Dict(u32),
}

/// The values of a file.
pub struct Tree {
    arena: Vec<u8>,
    /// Lists and dictionaries.
    containers: Vec<Container>,
    texts: Vec<Rc<str>>,
    numbers: HashMap<Rc<str>, u32>,
    text_bytes: usize,
    pub root: Value,
}

/// The first and last of its chunks. A chunk is the offset of the next, 0 for none, the length of its items in bytes, and the items.
#[derive(Clone, Copy, Default)]
struct Container {
    first: u32,
    last: u32,
}

const HEADER: usize = 8;
/// Memory that is never too much.
const SMALL: usize = 16 << 20;
/// Of a text besides its bytes, with its entry in the map.
const TEXT: usize = 128;
/// The most keys of a dictionary that is searched. One that many events share would be searched for each.
const KEYS: usize = 64;

const NONE: u64 = 0;
const FALSE: u64 = 1;
const TRUE: u64 = 2;
const INT: u64 = 3;
/// Eight bytes follow.
const WIDE: u64 = 4;
const LARGE: u64 = 5;
/// Eight bytes follow.
const FLOAT: u64 = 6;
const TEXT_TAG: u64 = 7;
const LIST: u64 = 8;
const DICT: u64 = 9;

impl Tree {
    /// Reads a pickle.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let tree =
            Self { arena: vec![0], containers: Vec::new(), texts: Vec::new(), numbers: HashMap::new(), text_bytes: 0, root: Value::None };
        Machine { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new(), tree }.run()
    }

    pub fn text(&self, value: Value) -> Option<&str> {
        let Value::Text(number) = value else { return None };
        self.texts.get(number as usize).map(|text| &**text)
    }

    /// For an error.
    pub fn describe(&self, value: Value) -> String {
        match value {
            Value::None => "None".to_owned(),
            Value::Bool(is) => if is { "True" } else { "False" }.to_owned(),
            Value::Int(int) => int.to_string(),
            Value::Large => "an integer beyond 9223372036854775807".to_owned(),
            Value::Float(float) => float.to_string(),
            Value::Text(_) => {
                let text = self.text(value).unwrap_or_default();
                format!("{:?}", text.chars().take(40).collect::<String>())
            }
            Value::List(_) => "a list".to_owned(),
            Value::Dict(_) => "a dictionary".to_owned(),
        }
    }

    /// The number of a text, by which a key is found.
    pub fn number(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// The items of a list; none of other values.
    pub fn items(&self, value: Value) -> Items<'_> {
        let Value::List(number) = value else { return Items { tree: self, rest: &[], next: 0 } };
        self.all(number)
    }

    /// Keys and values of a dictionary; none of other values.
    pub fn pairs(&self, value: Value) -> impl Iterator<Item = (Value, Value)> + '_ {
        let mut all = match value {
            Value::Dict(number) => self.all(number),
            _ => Items { tree: self, rest: &[], next: 0 },
        };
        std::iter::from_fn(move || Some((all.next()?, all.next()?)))
    }

    /// Whether a value is a dictionary of few keys.
    pub fn is_small_dict(&self, value: Value) -> bool {
        matches!(value, Value::Dict(_)) && self.pairs(value).nth(KEYS).is_none()
    }

    /// The value of a key, by the key's [number](Self::number); of equal keys the last.
    pub fn get(&self, dict: Value, key: Option<u32>) -> Option<Value> {
        let key = Value::Text(key?);
        self.pairs(dict).filter(|pair| pair.0 == key).last().map(|pair| pair.1)
    }

    fn all(&self, number: u32) -> Items<'_> {
        Items { tree: self, rest: &[], next: self.containers.get(number as usize).map_or(0, |container| container.first) }
    }

    fn word(&self, at: usize) -> u32 {
        self.arena.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    }
}

/// The items of a container.
pub struct Items<'a> {
    tree: &'a Tree,
    /// Of the chunk.
    rest: &'a [u8],
    next: u32,
}

impl Items<'_> {
    fn varint(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        while let Some((&byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 || shift > 63 {
                break;
            }
        }
        value
    }

    fn wide(&mut self) -> u64 {
        let Some((word, rest)) = self.rest.split_first_chunk() else { return 0 };
        self.rest = rest;
        u64::from_le_bytes(*word)
    }
}

impl Iterator for Items<'_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        while self.rest.is_empty() {
            let at = self.next as usize;
            if at == 0 {
                return None;
            }
            let length = self.tree.word(at + 4) as usize;
            self.next = self.tree.word(at);
            self.rest = self.tree.arena.get(at + HEADER..at + HEADER + length).unwrap_or_default();
        }
        let first = self.varint();
        let number = first >> 4;
        Some(match first & 15 {
            NONE => Value::None,
            FALSE => Value::Bool(false),
            TRUE => Value::Bool(true),
            INT => Value::Int((number >> 1) as i64 ^ -((number & 1) as i64)),
            WIDE => Value::Int(self.wide() as i64),
            FLOAT => Value::Float(f64::from_bits(self.wide())),
            TEXT_TAG => Value::Text(number as u32),
            LIST => Value::List(number as u32),
            DICT => Value::Dict(number as u32),
            _ => Value::Large,
        })
    }
}

fn push_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn push(to: &mut Vec<u8>, value: Value) {
    match value {
        Value::None => push_varint(to, NONE),
        Value::Bool(false) => push_varint(to, FALSE),
        Value::Bool(true) => push_varint(to, TRUE),
        Value::Int(int) => {
            // Small numbers of either sign in few bits.
            let folded = ((int << 1) ^ (int >> 63)) as u64;
            if folded >> 60 == 0 {
                push_varint(to, folded << 4 | INT);
            } else {
                push_varint(to, WIDE);
                to.extend(int.to_le_bytes());
            }
        }
        Value::Large => push_varint(to, LARGE),
        Value::Float(float) => {
            push_varint(to, FLOAT);
            to.extend(float.to_bits().to_le_bytes());
        }
        Value::Text(number) => push_varint(to, u64::from(number) << 4 | TEXT_TAG),
        Value::List(number) => push_varint(to, u64::from(number) << 4 | LIST),
        Value::Dict(number) => push_varint(to, u64::from(number) << 4 | DICT),
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Value>,
    tree: Tree,
}

impl<'a> Machine<'a> {
    fn run(mut self) -> Result<Tree, ReadError> {
        loop {
            let begin = self.at;
            let Ok(opcode) = self.byte() else { return Err(at(begin, "the pickle is truncated: it has no STOP")) };
            if opcode == b'.' {
                self.tree.root = self.pop(begin)?;
                return Ok(self.tree);
            }
            self.step(opcode, begin)?;
            self.check(begin)?;
        }
    }

    /// Compares the memory with the [bounds](self).
    fn check(&self, begin: usize) -> Result<(), ReadError> {
        self.check_with(0, begin)
    }

    /// As [`check`](Self::check), with bytes that are about to be held.
    fn check_with(&self, bytes: usize, begin: usize) -> Result<(), ReadError> {
        let held = bytes
            + size_of::<Value>() * (self.stack.len() + self.memo.len())
            + size_of::<usize>() * self.marks.len()
            + size_of::<Container>() * self.tree.containers.len()
            + TEXT * self.tree.texts.len()
            + self.tree.text_bytes
            + self.tree.arena.len();
        if held > 3 * self.bytes.len() + SMALL || self.tree.arena.len() > u32::MAX as usize {
            return Err(at(
                begin,
                "the values so far need more than three times the memory of the file: it is damaged, or made to exhaust memory",
            ));
        }
        Ok(())
    }

    fn step(&mut self, opcode: u8, begin: usize) -> Result<(), ReadError> {
        match opcode {
            // PROTO
            0x80 => {
                let protocol = self.byte()?;
                if !(2..=5).contains(&protocol) {
                    return Err(at(begin, format!("pickle protocol {protocol}, expected 2 to 5")));
                }
            }
            // FRAME: a hint for buffers.
            0x95 => drop(self.take(8)?),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' => {
                let int = i32::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(int.into()));
            }
            b'K' => {
                let int = self.byte()?;
                self.stack.push(Value::Int(int.into()));
            }
            b'M' => {
                let int = u16::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(int.into()));
            }
            // LONG1, LONG4
            0x8a | 0x8b => {
                let length = if opcode == 0x8a { self.byte()?.into() } else { self.length32()? };
                let digits = self.take(length)?;
                self.stack.push(integer(digits));
            }
            b'G' => {
                let float = f64::from_be_bytes(self.array()?);
                self.stack.push(Value::Float(float));
            }
            // Texts, and byte strings of Python 2 and 3: SHORT_BINUNICODE, BINUNICODE, BINUNICODE8, SHORT_BINSTRING, BINSTRING, SHORT_BINBYTES, BINBYTES,
            // BINBYTES8, BYTEARRAY8.
            0x8c | b'U' | b'C' => {
                let length = self.byte()?.into();
                self.push_text(length)?;
            }
            b'X' | b'T' | b'B' => {
                let length = self.length32()?;
                self.push_text(length)?;
            }
            0x8d | 0x8e | 0x96 => {
                let length = usize::try_from(u64::from_le_bytes(self.array()?)).unwrap_or(usize::MAX);
                self.push_text(length)?;
            }
            // EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET
            b']' | b')' | 0x8f => {
                let list = self.container()?;
                self.stack.push(Value::List(list));
            }
            b'}' => {
                let dict = self.container()?;
                self.stack.push(Value::Dict(dict));
            }
            b'(' => self.marks.push(self.stack.len()),
            // APPEND, SETITEM
            b'a' => self.append(self.stack.len().wrapping_sub(1), begin)?,
            b's' => self.append(self.stack.len().wrapping_sub(2), begin)?,
            // APPENDS, ADDITEMS, SETITEMS
            b'e' | 0x90 | b'u' => {
                let from = self.mark(begin)?;
                self.append(from, begin)?;
            }
            // TUPLE1, TUPLE2, TUPLE3
            0x85..=0x87 => {
                let from = self.stack.len().wrapping_sub(usize::from(opcode - 0x84));
                self.collect(from, begin)?;
            }
            // TUPLE, LIST, FROZENSET
            b't' | b'l' | 0x91 => {
                let from = self.mark(begin)?;
                self.collect(from, begin)?;
            }
            // DICT
            b'd' => {
                let from = self.mark(begin)?;
                let dict = self.container()?;
                self.stack.insert(from, Value::Dict(dict));
                self.append(from + 1, begin)?;
            }
            b'0' => drop(self.pop(begin)?),
            b'1' => {
                let from = self.mark(begin)?;
                self.stack.truncate(from);
            }
            b'2' => {
                let top = self.top(begin)?;
                self.stack.push(top);
            }
            // MEMOIZE
            0x94 => {
                let top = self.top(begin)?;
                self.memo.push(top);
            }
            // BINPUT, LONG_BINPUT
            b'q' | b'r' => {
                let index = if opcode == b'q' { self.byte()?.into() } else { self.length32()? };
                let top = self.top(begin)?;
                // Picklers number their puts from 0.
                self.check_with(size_of::<Value>() * index.saturating_sub(self.memo.len()), begin)?;
                if index >= self.memo.len() {
                    self.memo.resize(index + 1, Value::None);
                }
                self.memo[index] = top;
            }
            // BINGET, LONG_BINGET
            b'h' | b'j' => {
                let index = if opcode == b'h' { self.byte()?.into() } else { self.length32()? };
                let value = *self
                    .memo
                    .get(index)
                    .ok_or_else(|| at(begin, format!("memo index {index} of {}: the pickle is damaged", self.memo.len())))?;
                self.stack.push(value);
            }
            _ => return Err(refused(opcode, begin)),
        }
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..length);
        let taken = taken.ok_or_else(|| at(self.at, format!("{length} bytes expected, {} left: the pickle is truncated", rest.len())))?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        self.array().map(|[byte]| byte)
    }

    fn length32(&mut self) -> Result<usize, ReadError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn top(&self, begin: usize) -> Result<Value, ReadError> {
        self.stack.last().copied().ok_or_else(|| at(begin, "nothing is on the stack: the pickle is damaged"))
    }

    fn pop(&mut self, begin: usize) -> Result<Value, ReadError> {
        self.stack.pop().ok_or_else(|| at(begin, "nothing is on the stack: the pickle is damaged"))
    }

    fn mark(&mut self, begin: usize) -> Result<usize, ReadError> {
        self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(|| at(begin, "no mark is on the stack: the pickle is damaged"))
    }

    fn push_text(&mut self, length: usize) -> Result<(), ReadError> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        let tree = &mut self.tree;
        let number = match tree.numbers.get(&*text) {
            Some(&number) => number,
            None => {
                let number = tree.texts.len() as u32;
                let text: Rc<str> = text.into();
                tree.text_bytes += text.len();
                tree.texts.push(text.clone());
                tree.numbers.insert(text, number);
                number
            }
        };
        self.stack.push(Value::Text(number));
        Ok(())
    }

    fn container(&mut self) -> Result<u32, ReadError> {
        let number = u32::try_from(self.tree.containers.len()).map_err(|_| at(self.at, "more than 2^32 lists and dictionaries"))?;
        self.tree.containers.push(Container::default());
        Ok(number)
    }

    /// Moves the stack's items from `from` on into a new list.
    fn collect(&mut self, from: usize, begin: usize) -> Result<(), ReadError> {
        if from > self.stack.len() {
            return Err(at(begin, "nothing is on the stack: the pickle is damaged"));
        }
        let list = self.container()?;
        self.stack.insert(from, Value::List(list));
        self.append(from + 1, begin)
    }

    /// Moves the stack's items from `from` on to the container below them.
    fn append(&mut self, from: usize, begin: usize) -> Result<(), ReadError> {
        let below = from.checked_sub(1).and_then(|below| self.stack.get(below).copied());
        let (number, is_dict) = match below {
            Some(Value::List(number)) => (number, false),
            Some(Value::Dict(number)) => (number, true),
            _ => return Err(at(begin, "no list or dictionary is below the items on the stack: the pickle is damaged")),
        };
        let count = self.stack.len() - from;
        if is_dict && count % 2 == 1 {
            return Err(at(begin, "a key without a value: the pickle is damaged"));
        }
        if count == 0 {
            return Ok(());
        }
        let chunk = self.tree.arena.len();
        self.tree.arena.extend([0; HEADER]);
        for item in self.stack.drain(from..) {
            push(&mut self.tree.arena, item);
        }
        let length = (self.tree.arena.len() - chunk - HEADER) as u32;
        self.tree.arena[chunk + 4..chunk + HEADER].copy_from_slice(&length.to_le_bytes());
        let container = &mut self.tree.containers[number as usize];
        let last = std::mem::replace(&mut container.last, chunk as u32) as usize;
        if last == 0 {
            container.first = chunk as u32;
        } else {
            self.tree.arena[last..last + 4].copy_from_slice(&(chunk as u32).to_le_bytes());
        }
        Ok(())
    }
}

/// Of little-endian digits in two's complement.
fn integer(digits: &[u8]) -> Value {
    let is_negative = digits.last().is_some_and(|&last| last >= 0x80);
    let fill = if is_negative { 0xff } else { 0 };
    let mut word = [fill; 8];
    let (low, high) = digits.split_at(digits.len().min(8));
    word[..low.len()].copy_from_slice(low);
    let int = i64::from_le_bytes(word);
    let fits = high.iter().all(|&digit| digit == fill) && (int < 0) == is_negative;
    if fits { Value::Int(int) } else { Value::Large }
}

fn at(offset: usize, what: impl Into<String>) -> ReadError {
    ReadError::byte(offset, what)
}

fn refused(opcode: u8, begin: usize) -> ReadError {
    let (name, why) = match opcode {
        b'c' => ("GLOBAL", "imports a name"),
        0x93 => ("STACK_GLOBAL", "imports a name"),
        b'R' => ("REDUCE", "calls a function"),
        b'b' => ("BUILD", "calls a method"),
        b'i' => ("INST", "creates an object of a class"),
        b'o' => ("OBJ", "creates an object of a class"),
        0x81 => ("NEWOBJ", "creates an object of a class"),
        0x92 => ("NEWOBJ_EX", "creates an object of a class"),
        0x82 => ("EXT1", "imports a registered name"),
        0x83 => ("EXT2", "imports a registered name"),
        0x84 => ("EXT4", "imports a registered name"),
        b'P' => ("PERSID", "refers to an object outside the file"),
        b'Q' => ("BINPERSID", "refers to an object outside the file"),
        0x97 => ("NEXT_BUFFER", "refers to a buffer outside the file"),
        0x98 => ("READONLY_BUFFER", "changes a buffer outside the file"),
        b'I' | b'L' | b'F' | b'S' | b'V' | b'g' | b'p' => {
            return at(begin, format!("the opcode {opcode:#04x} is of the text protocols 0 and 1: write the pickle again with protocol 4"));
        }
        _ => return at(begin, format!("the opcode {opcode:#04x} is none of protocols 2 to 5: the pickle is damaged")),
    };
    at(begin, format!("the opcode {name} {why}: only data is read"))
}
