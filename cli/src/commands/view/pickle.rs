//! [`Pickle`]: a writer of Python's pickle format, protocol 2, for dicts, lists, text and numbers. Source: Python's module `pickletools`.
//!
//! It uses only operations of memory_viz's JavaScript reader, which passes an `APPENDS` as the arguments of one call: lists are written element by
//! element.

use std::collections::HashMap;

pub(super) struct Pickle {
    bytes: Vec<u8>,
    /// The numbers of written texts; keys repeat in every event.
    texts: HashMap<String, u32>,
    /// Of texts and other values that are written once.
    count: u32,
}

impl Pickle {
    pub fn new() -> Self {
        Self { bytes: vec![0x80, 2], texts: HashMap::new(), count: 0 }
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub fn number(&mut self, number: u64) {
        match (u8::try_from(number), i32::try_from(number)) {
            (Ok(byte), _) => self.bytes.extend([b'K', byte]),
            (_, Ok(word)) => {
                self.bytes.push(b'J');
                self.bytes.extend(word.to_le_bytes());
            }
            _ => {
                // Two's complement of 8 bytes, or 9 if the top bit would be a sign.
                let length = if number >> 63 == 0 { 8 } else { 9 };
                self.bytes.extend([0x8a, length]);
                self.bytes.extend(number.to_le_bytes());
                self.bytes.extend(vec![0; usize::from(length) - 8]);
            }
        }
    }

    /// A handle of 64 bits, which PyTorch reads as signed.
    pub fn handle(&mut self, handle: u64) {
        if handle >> 63 == 0 {
            return self.number(handle);
        }
        self.bytes.extend([0x8a, 8]);
        self.bytes.extend(handle.to_le_bytes());
    }

    pub fn bool(&mut self, is: bool) {
        self.bytes.push(if is { 0x88 } else { 0x89 });
    }

    pub fn text(&mut self, text: &str) {
        if let Some(&number) = self.texts.get(text) {
            return self.again(number);
        }
        // No text has 4 GiB: the file is shorter.
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let number = self.numbered();
        self.texts.insert(text.to_owned(), number);
    }

    /// Numbers the last value, for [`again`](Self::again).
    pub fn numbered(&mut self) -> u32 {
        let number = self.count;
        self.count += 1;
        match u8::try_from(number) {
            Ok(byte) => self.bytes.extend([b'q', byte]),
            Err(_) => {
                self.bytes.push(b'r');
                self.bytes.extend(number.to_le_bytes());
            }
        }
        number
    }

    /// A value that was written before.
    pub fn again(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(byte) => self.bytes.extend([b'h', byte]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(number.to_le_bytes());
            }
        }
    }

    pub fn list<T>(&mut self, values: impl IntoIterator<Item = T>, mut one: impl FnMut(&mut Self, T)) {
        self.bytes.push(b']');
        for value in values {
            one(self, value);
            self.bytes.push(b'a');
        }
    }

    /// `fields` calls [`field`](Fields::field) for each entry.
    pub fn dict(&mut self, fields: impl FnOnce(&mut Fields<'_>)) {
        self.bytes.extend(b"}(");
        fields(&mut Fields(self));
        self.bytes.push(b'u');
    }
}

pub(super) struct Fields<'a>(&'a mut Pickle);

impl Fields<'_> {
    pub fn field(&mut self, key: &str) -> &mut Pickle {
        self.0.text(key);
        self.0
    }
}
