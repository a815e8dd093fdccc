//! [`Head`]: the version of a snapshot and the lengths of its lists, read without storing them.
//!
//! A few bytes of JSON become a struct of some hundred bytes: lists are counted before they are parsed.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The lists of a snapshot by the list whose elements have them; the first row is the document's.
pub(super) const LISTS: [(&str, &[&str]); 6] = [
    ("", &["pools", "samples", "trackers", "managers", "traces"]),
    ("pools", &["slabs"]),
    ("slabs", &["parts"]),
    ("trackers", &["leaks"]),
    ("managers", &["buffers"]),
    ("traces", &["events"]),
];

const VERSION: &str = "version";

#[derive(Default)]
pub(super) struct Head<'a> {
    /// Its text.
    pub version: Option<&'a str>,
    /// The elements of all lists of a name.
    pub lengths: BTreeMap<&'static str, usize>,
}

impl<'a> Head<'a> {
    pub fn of(bytes: &'a [u8]) -> serde_json::Result<Self> {
        let mut head = Self::default();
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        reader.deserialize_any(List { name: "", head: &mut head })?;
        reader.end().map(|()| head)
    }
}

/// Accepts any value: a document of another version may have any shape, and the parser finds mistakes of this one.
struct List<'h, 'a> {
    name: &'static str,
    head: &'h mut Head<'a>,
}

impl<'a> DeserializeSeed<'a> for List<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for List<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut count = 0_usize;
        while elements.next_element_seed(List { name: self.name, head: self.head })?.is_some() {
            count += 1;
        }
        *self.head.lengths.entry(self.name).or_default() += count;
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut entries: A) -> Result<(), A::Error> {
        let lists = LISTS.iter().find(|(of, _)| *of == self.name).map_or(&[][..], |(_, lists)| lists);
        while let Some(key) = entries.next_key_seed(Key(lists))? {
            match key {
                Some(VERSION) if self.name.is_empty() => {
                    if self.head.version.replace(entries.next_value::<&RawValue>()?.get()).is_some() {
                        return Err(A::Error::duplicate_field(VERSION));
                    }
                }
                Some(name) if name != VERSION => entries.next_value_seed(List { name, head: self.head })?,
                _ => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// The key of a list or the version; `None` for others.
struct Key(&'static [&'static str]);

impl<'a> DeserializeSeed<'a> for Key {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().chain([&VERSION]).find(|known| **known == key).copied())
    }
}
