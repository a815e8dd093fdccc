//! Writes pickles as Python's pickler and PyTorch's own do.

/// A value of Python.
#[derive(Clone, Debug)]
pub enum Data {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'static str),
    List(Vec<Data>),
    Tuple(Vec<Data>),
    Dict(Vec<(&'static str, Data)>),
}

use Data::{Dict, Int, List, Text, Tuple};

/// A dictionary.
pub fn dict(fields: impl Into<Vec<(&'static str, Data)>>) -> Data {
    Dict(fields.into())
}

/// An event of PyTorch without frames.
pub fn event(action: &'static str, address: i128, size: i128) -> Data {
    let at = if action == "oom" { "device_free" } else { "addr" };
    dict([("action", Text(action)), (at, Int(address)), ("size", Int(size)), ("stream", Int(0))])
}

/// A snapshot of PyTorch.
pub fn snapshot(segments: Vec<Data>, traces: Vec<Vec<Data>>) -> Data {
    dict([("segments", List(segments)), ("device_traces", List(traces.into_iter().map(List).collect()))])
}

pub struct Pickler {
    protocol: u8,
    bytes: Vec<u8>,
    memo: u32,
    texts: Vec<(&'static str, u32)>,
}

impl Pickler {
    pub fn pickle(protocol: u8, data: &Data) -> Vec<u8> {
        let mut pickler = Self { protocol, bytes: vec![0x80, protocol], memo: 0, texts: Vec::new() };
        if protocol >= 4 {
            // A frame, whose length readers ignore.
            pickler.bytes.extend([0x95, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        pickler.write(data);
        pickler.bytes.push(b'.');
        pickler.bytes
    }

    fn memoize(&mut self) -> u32 {
        let index = self.memo;
        self.memo += 1;
        match (self.protocol, u8::try_from(index)) {
            (4.., _) => self.bytes.push(0x94),
            (_, Ok(index)) => self.bytes.extend([b'q', index]),
            _ => {
                self.bytes.push(b'r');
                self.bytes.extend(index.to_le_bytes());
            }
        }
        index
    }

    fn text(&mut self, text: &'static str) {
        if let Some(&(_, index)) = self.texts.iter().find(|(known, _)| *known == text) {
            match u8::try_from(index) {
                Ok(index) => self.bytes.extend([b'h', index]),
                Err(_) => {
                    self.bytes.push(b'j');
                    self.bytes.extend(index.to_le_bytes());
                }
            }
            return;
        }
        match u8::try_from(text.len()) {
            Ok(length) if self.protocol >= 4 => self.bytes.extend([0x8c, length]),
            _ => {
                self.bytes.push(b'X');
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        let index = self.memoize();
        self.texts.push((text, index));
    }

    fn write(&mut self, data: &Data) {
        match data {
            Data::None => self.bytes.push(b'N'),
            Data::Bool(is) => self.bytes.push(if *is { 0x88 } else { 0x89 }),
            Int(int @ 0..=255) => self.bytes.extend([b'K', *int as u8]),
            Int(int @ 0..=65535) => {
                self.bytes.push(b'M');
                self.bytes.extend((*int as u16).to_le_bytes());
            }
            Int(int) if i32::try_from(*int).is_ok() => {
                self.bytes.push(b'J');
                self.bytes.extend((*int as i32).to_le_bytes());
            }
            Int(int) => {
                let digits = int.to_le_bytes();
                let sign = if *int < 0 { 0xff } else { 0 };
                let length = 16 - digits.iter().rev().take_while(|&&digit| digit == sign).count();
                // One more for the sign.
                self.bytes.extend([0x8a, length as u8 + 1]);
                self.bytes.extend(&digits[..=length]);
            }
            Data::Float(float) => {
                self.bytes.push(b'G');
                self.bytes.extend(float.to_be_bytes());
            }
            Text(text) => self.text(text),
            List(items) => {
                self.bytes.push(b']');
                self.memoize();
                for batch in items.chunks(1000) {
                    self.bytes.push(b'(');
                    batch.iter().for_each(|item| self.write(item));
                    self.bytes.push(b'e');
                }
            }
            Tuple(items) => {
                self.bytes.push(b'(');
                items.iter().for_each(|item| self.write(item));
                self.bytes.push(b't');
                self.memoize();
            }
            Dict(fields) => {
                self.bytes.push(b'}');
                self.memoize();
                self.bytes.push(b'(');
                for (key, value) in fields {
                    self.text(key);
                    self.write(value);
                }
                self.bytes.push(b'u');
            }
        }
    }
}
