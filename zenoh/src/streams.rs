//! [`Streams`]: where each source continues in a sink.

const REMEMBERED: usize = 8;

/// The next sequence number to push, of the current source and earlier ones.
///
/// The current source's number is the sink's tail plus a constant: a push needs no second store, and a killed process leaves both consistent.
#[derive(Clone, Debug, Default, PartialEq)]
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

    /// Returns where `stream` continues, by its first unreleased message and the number of unreleased messages: after the messages that were pushed
    /// here, or at `first` if that number is not `first` to `first + count`.
    ///
    /// A source that released more than was pushed here had another receiver, which got those messages. A number after the source's last message is
    /// false: a forged message, or a file that was copied, set it. To keep it would stop the source for as long as the state is stored.
    pub fn next(&self, stream: u64, first: u64, count: u64, tail: u64) -> u64 {
        let known = if self.current() == Some(stream) {
            Some(self.pushed(tail))
        } else {
            self.past.iter().find(|(past, _)| *past == stream).map(|(_, next)| *next)
        };
        known.filter(|next| next.wrapping_sub(first) <= count).unwrap_or(first)
    }

    /// Makes `stream`, whose next message is `next`, the current source.
    pub fn begin(&mut self, stream: u64, next: u64, tail: u64) {
        self.past.retain(|(past, _)| *past != stream);
        if let Some((old, _)) = self.current.filter(|(old, _)| *old != stream) {
            self.past.push((old, self.pushed(tail)));
        }
        self.past.drain(..self.past.len().saturating_sub(REMEMBERED));
        self.current = Some((stream, next.wrapping_sub(tail)));
    }

    pub fn encode(&self) -> Vec<u8> {
        let entries = self.current.iter().chain(&self.past);
        entries.flat_map(|(stream, number)| [stream.to_le_bytes(), number.to_le_bytes()]).flatten().collect()
    }

    /// Decodes [`encode`](Self::encode)'s bytes; `None` if these are others.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() || entries.len() > 1 + REMEMBERED {
            return None;
        }
        let number = |half: &[u8]| half.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut entries = entries.iter().map(|entry| (number(&entry[..8]), number(&entry[8..])));
        Some(Self { current: entries.next(), past: entries.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume(streams: &mut Streams, stream: u64, first: u64, tail: u64) {
        streams.begin(stream, streams.next(stream, first, 9, tail), tail);
    }

    #[test]
    fn a_number_that_the_source_cannot_have_is_replaced_by_its_first() {
        for first in [100, 0, u64::MAX - 3] {
            let at = |offset: u64| first.wrapping_add(offset);
            for (known, expected) in [(0, 0), (7, 7), (8, 0), (1 << 62, 0), (1 << 63, 0), (u64::MAX, 0)] {
                let mut streams = Streams::default();
                streams.begin(1, at(known), 40);
                assert_eq!(streams.next(1, first, 7, 40), at(expected), "current, {known} after {first}");
                streams.begin(2, 5, 40);
                assert_eq!(streams.next(1, first, 7, 50), at(expected), "past, {known} after {first}");
                assert_eq!(
                    Streams::decode(&streams.encode()).unwrap().next(1, first, 7, 50),
                    at(expected),
                    "stored, {known} after {first}"
                );
            }
        }
    }

    #[test]
    fn a_returning_source_resumes_after_its_last_message() {
        let mut streams = Streams::default();
        resume(&mut streams, 1, 100, 0);
        assert_eq!(streams.next(1, 103, 9, 5), 105, "the source has released fewer than were pushed");
        assert_eq!(streams.pushed(5), 105);
        resume(&mut streams, 2, 0, 5);
        assert_eq!(streams.pushed(8), 3);
        resume(&mut streams, 1, 103, 8);
        assert_eq!((streams.current(), streams.pushed(8), streams.pushed(9)), (Some(1), 105, 106));
        assert_eq!(Streams::decode(&streams.encode()[1..]), None);
        assert_eq!(Streams::decode(&[0; 16 * (2 + REMEMBERED)]), None);
        assert_eq!(Streams::decode(&streams.encode()), Some(streams.clone()));
        resume(&mut streams, 1, 1000, 9);
        assert_eq!(streams.pushed(9), 1000, "another receiver had messages of it");
    }

    #[test]
    fn the_number_of_remembered_sources_is_bounded() {
        let mut streams = Streams::default();
        (0..1000).for_each(|stream| streams.begin(stream, u64::MAX, stream));
        assert_eq!(streams.encode().len(), 16 * (1 + REMEMBERED));
        assert_eq!((streams.past.len(), streams.past.last().map(|past| past.0)), (REMEMBERED, Some(998)));
    }
}
