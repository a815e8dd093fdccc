//! [`Segment`]: memory from the driver, from its arrival until it is given back.
//!
//! PyTorch gives a segment back whole, but maps and unmaps an expandable one in pieces that need not be the same: an unmapped range may be a part of one piece,
//! or run over several. Each piece is cut where an unmapped range begins or ends, and lives from the event that mapped it to the event that unmapped it. A
//! range that is unmapped, or in the list at the end, without having been mapped was there before the recording.

use std::collections::BTreeMap;

/// Memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Of its first byte.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// As of [events](crate::Event::stream).
    pub stream: u32,
    /// Whether it is a piece of an expandable segment: it is one with a neighbour of its stream.
    pub is_piece: bool,
    /// How many events came before it; `None` if it was there before the recording.
    pub begin: Option<usize>,
    /// How many events came before it was given back; `None` if it was not.
    pub end: Option<usize>,
}

/// The segments of a device so far.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// By address; no two overlap.
    mapped: BTreeMap<u64, Segment>,
    gone: Vec<Segment>,
    /// Bytes of `mapped`, less those that were unmapped and never mapped.
    added: i128,
    most: i128,
    /// Whether the file tells anything.
    is_told: bool,
    /// Those of the list at the end, and their bytes.
    listed: Vec<Segment>,
    listed_bytes: u64,
}

impl Segments {
    pub(crate) fn map(&mut self, segment: Segment) {
        self.is_told = true;
        self.added += i128::from(segment.bytes);
        self.most = self.most.max(self.added);
        // Only if the event that gave it back is missing.
        self.take(&segment, segment.begin);
        self.insert(segment);
    }

    /// `segment.end` tells when.
    pub(crate) fn unmap(&mut self, segment: Segment) {
        self.is_told = true;
        self.added -= i128::from(segment.bytes);
        for unknown in self.take(&segment, segment.end) {
            self.gone.push(Segment { begin: None, ..unknown });
        }
    }

    /// A segment at the end.
    pub(crate) fn list(&mut self, segment: Segment) {
        self.is_told = true;
        self.listed_bytes = self.listed_bytes.saturating_add(segment.bytes);
        self.listed.push(segment);
    }

    fn insert(&mut self, segment: Segment) {
        let bytes = segment.end_address() - segment.address;
        if bytes > 0 {
            self.mapped.insert(segment.address, Segment { bytes, ..segment });
        }
    }

    /// Ends the mapped part of a range, and returns the rest.
    fn take(&mut self, range: &Segment, end: Option<usize>) -> Vec<Segment> {
        let rest = self.unmapped(range);
        for piece in self.overlapping(range) {
            let (from, to) = (piece.address.max(range.address), piece.end_address().min(range.end_address()));
            self.mapped.remove(&piece.address);
            self.insert(Segment { bytes: from - piece.address, ..piece });
            self.insert(Segment { address: to, bytes: piece.end_address() - to, ..piece });
            self.gone.push(Segment { address: from, bytes: to - from, end, ..piece });
        }
        rest
    }

    /// The parts of a range that are not mapped.
    fn unmapped(&self, range: &Segment) -> Vec<Segment> {
        let (mut from, mut rest) = (range.address, Vec::new());
        for piece in self.overlapping(range) {
            if piece.address > from {
                rest.push(Segment { address: from, bytes: piece.address - from, ..*range });
            }
            from = piece.end_address();
        }
        if range.end_address() > from {
            rest.push(Segment { address: from, bytes: range.end_address() - from, ..*range });
        }
        rest
    }

    fn overlapping(&self, range: &Segment) -> Vec<Segment> {
        // Empty, it would cut the piece around it.
        if range.bytes == 0 {
            return Vec::new();
        }
        let before = self.mapped.range(..range.address).next_back().filter(|(_, piece)| piece.end_address() > range.address);
        let within = self.mapped.range(range.address..range.end_address());
        before.into_iter().chain(within).map(|(_, piece)| *piece).collect()
    }

    /// Whether the bytes are those of a [possible](crate::LARGEST) device.
    pub(crate) fn are_possible(&self) -> bool {
        self.listed_bytes <= crate::LARGEST && self.added.unsigned_abs() <= crate::LARGEST.into()
    }

    /// Bytes before the first event, at most, and after the last.
    pub(crate) fn reserved(&self) -> Option<crate::Reserved> {
        // Events that were lost may leave less than nothing.
        let begin = (i128::from(self.listed_bytes) - self.added).max(0);
        let bytes = |bytes: i128| u64::try_from(bytes).unwrap_or(u64::MAX);
        self.is_told.then(|| crate::Reserved { begin: bytes(begin), peak: bytes(begin + self.most), end: self.listed_bytes })
    }

    pub(crate) fn finish(mut self) -> Vec<Segment> {
        let mut listed = std::mem::take(&mut self.listed);
        listed.sort_by_key(|segment| segment.address);
        // Ranges of a damaged file may overlap: each piece is met once.
        let mut from = 0;
        for segment in listed {
            let address = segment.address.max(from);
            from = from.max(segment.end_address());
            for unknown in self.unmapped(&Segment { address, bytes: from - address, ..segment }) {
                self.insert(Segment { begin: None, end: None, ..unknown });
            }
        }
        let mut segments = self.gone;
        segments.extend(self.mapped.into_values());
        // A segment that was there before is before all others.
        segments.sort_by_key(|segment| (segment.begin, segment.address));
        segments
    }
}

impl Segment {
    const fn end_address(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Segment, Segments};

    const fn range(address: u64, bytes: u64, at: usize) -> Segment {
        Segment { address, bytes, stream: 0, is_piece: true, begin: Some(at), end: Some(at) }
    }

    fn mapped(address: u64, bytes: u64, at: usize) -> Segment {
        Segment { end: None, ..range(address, bytes, at) }
    }

    fn lives(segments: Segments) -> Vec<(u64, u64, Option<usize>, Option<usize>)> {
        segments.finish().into_iter().map(|segment| (segment.address, segment.bytes, segment.begin, segment.end)).collect()
    }

    #[test]
    fn pieces_are_cut_where_they_are_unmapped() {
        let mut segments = Segments::default();
        segments.map(mapped(100, 20, 1));
        segments.map(mapped(120, 20, 2));
        segments.unmap(range(110, 20, 3));
        segments.unmap(range(105, 0, 3));
        segments.map(mapped(110, 5, 4));
        assert_eq!(
            lives(segments),
            [
                (100, 10, Some(1), None),
                (110, 10, Some(1), Some(3)),
                (120, 10, Some(2), Some(3)),
                (130, 10, Some(2), None),
                (110, 5, Some(4), None)
            ]
        );
    }

    #[test]
    fn what_was_never_mapped_was_there_before() {
        let mut segments = Segments::default();
        segments.map(mapped(100, 20, 1));
        segments.unmap(range(90, 40, 2));
        segments.map(mapped(200, 10, 3));
        segments.list(range(195, 20, 9));
        assert_eq!(segments.reserved().map(|reserved| (reserved.begin, reserved.peak, reserved.end)), Some((30, 50, 20)));
        assert_eq!(
            lives(segments),
            [
                (90, 10, None, Some(2)),
                (120, 10, None, Some(2)),
                (195, 5, None, None),
                (210, 5, None, None),
                (100, 20, Some(1), Some(2)),
                (200, 10, Some(3), None),
            ]
        );
    }

    #[test]
    fn lists_of_a_damaged_file_are_of_each_byte_once() {
        let mut segments = Segments::default();
        segments.map(mapped(100, 20, 1));
        for (address, bytes) in [(90, 40), (95, 10), (90, 5), (125, 20)] {
            segments.list(range(address, bytes, 9));
        }
        assert_eq!(lives(segments), [(90, 10, None, None), (120, 10, None, None), (130, 15, None, None), (100, 20, Some(1), None)]);
    }

    #[test]
    fn a_range_at_the_end_of_all_addresses_is_cut_there() {
        let mut segments = Segments::default();
        segments.map(mapped(u64::MAX - 10, u64::MAX, 1));
        segments.map(mapped(u64::MAX, 5, 2));
        segments.map(mapped(7, 0, 2));
        segments.unmap(range(u64::MAX - 4, 100, 3));
        assert_eq!(lives(segments), [(u64::MAX - 10, 6, Some(1), None), (u64::MAX - 4, 4, Some(1), Some(3))]);
    }
}
