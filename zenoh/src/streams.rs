//! [`Streams`]: where each source continues in a sink.

const REMEMBERED: usize = 8;

/// The next sequence number to push, of the current source and earlier ones.
///
/// The current source's number is the sink's tail plus a constant: a push needs no second store, and a killed process leaves both consistent.
#[derive(Debug, Default, PartialEq)]
pub struct Streams {
    /// The current source, and its number where the sink's tail was 0.
    current: Option<(u64, u64)>,
    past: Vec<(u64, u64)>,
}

impl Streams {
    pub fn current(&self) -> Option<u64> {
        self.current.map(|(stream, _)| stream)
    }

    pub fn pushed(&self, tail: u64) -> u64 {
        self.current.map_or(0, |(_, base)| base.wrapping_add(tail))
    }

    /// Makes `stream`, whose first unreleased message is `first`, the current source. Returns whether anything changed.
    pub fn resume(&mut self, stream: u64, first: u64, tail: u64) -> bool {
        let known = if self.current() == Some(stream) {
            Some(self.pushed(tail))
        } else {
            self.past.iter().find(|(past, _)| *past == stream).map(|(_, next)| *next)
        };
        // A source that released more than was pushed here had another receiver, which got those messages.
        let next = known.filter(|next| next.wrapping_sub(first) as i64 >= 0).unwrap_or(first);
        if self.current() == Some(stream) && known == Some(next) {
            return false;
        }
        self.past.retain(|(past, _)| *past != stream);
        if let Some((old, _)) = self.current.filter(|(old, _)| *old != stream) {
            self.past.push((old, self.pushed(tail)));
        }
        self.past.drain(..self.past.len().saturating_sub(REMEMBERED));
        self.current = Some((stream, next.wrapping_sub(tail)));
        true
    }

    pub fn encode(&self) -> Vec<u8> {
        let entries = self.current.iter().chain(&self.past);
        entries.flat_map(|(stream, number)| [stream.to_le_bytes(), number.to_le_bytes()]).flatten().collect()
    }

    /// Decodes [`encode`](Self::encode)'s bytes; others as no streams.
    pub fn decode(bytes: &[u8]) -> Self {
        let (entries, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() || entries.len() > 1 + REMEMBERED {
            return Self::default();
        }
        let number = |half: &[u8]| half.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut entries = entries.iter().map(|entry| (number(&entry[..8]), number(&entry[8..])));
        Self { current: entries.next(), past: entries.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returning_source_resumes_after_its_last_message() {
        let mut streams = Streams::default();
        assert!(streams.resume(1, 100, 0));
        assert!(!streams.resume(1, 103, 5), "the source has released fewer than were pushed");
        assert_eq!(streams.pushed(5), 105);
        assert!(streams.resume(2, 0, 5));
        assert_eq!(streams.pushed(8), 3);
        assert!(streams.resume(1, 103, 8));
        assert_eq!((streams.current(), streams.pushed(8), streams.pushed(9)), (Some(1), 105, 106));
        assert_eq!(Streams::decode(&streams.encode()), streams);
        assert_eq!(Streams::decode(&streams.encode()[1..]), Streams::default());
        assert!(streams.resume(1, 1000, 9), "another receiver had messages of it");
        assert_eq!(streams.pushed(9), 1000);
    }

    #[test]
    fn the_number_of_remembered_sources_is_bounded() {
        let mut streams = Streams::default();
        (0..1000).for_each(|stream| assert!(streams.resume(stream, u64::MAX, stream)));
        assert_eq!(streams.encode().len(), 16 * (1 + REMEMBERED));
        assert_eq!((streams.past.len(), streams.past.last().map(|past| past.0)), (REMEMBERED, Some(998)));
    }
}
