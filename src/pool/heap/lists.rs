//! [`Lists`]: free parts by size, in 32 lists per octave: sizes in a list differ by at most 1/32.

use std::vec::Vec;

use super::PartId;

/// Lists per octave, as a power of two.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Sizes in units have 32 bits.
const OCTAVES: usize = 32 - STEP_BITS as usize + 1;
const LISTS: usize = OCTAVES * STEPS;

/// Parts leave at the end; removal elsewhere moves the last part into the gap. Linked parts would touch more records.
pub(super) struct Lists {
    parts: Vec<Vec<PartId>>,
    /// Marks for lists that are not empty, and for words of these marks.
    steps: [u32; OCTAVES],
    octaves: u64,
}

impl Lists {
    pub fn new() -> Self {
        Self { parts: std::vec![Vec::new(); LISTS], steps: [0; OCTAVES], octaves: 0 }
    }

    /// Returns the part's index in the list.
    pub fn add(&mut self, part: PartId, size: u32) -> u32 {
        let list = list_of(size);
        let place = self.parts[list].len() as u32;
        self.parts[list].push(part);
        self.steps[list / STEPS] |= 1 << (list % STEPS);
        self.octaves |= 1 << (list / STEPS);
        place
    }

    /// Returns the part that took its place.
    pub fn remove(&mut self, size: u32, place: u32) -> Option<PartId> {
        let list = list_of(size);
        self.parts[list].swap_remove(place as usize);
        if self.parts[list].is_empty() {
            self.steps[list / STEPS] &= !(1 << (list % STEPS));
            if self.steps[list / STEPS] == 0 {
                self.octaves &= !(1 << (list / STEPS));
            }
        }
        self.parts[list].get(place as usize).copied()
    }

    /// A part of the first list whose parts all suffice.
    #[inline(always)]
    pub fn first(&self, size: u32) -> Option<PartId> {
        let list = list_above(size)?;
        let (octave, step) = (list / STEPS, list % STEPS);
        let here = self.steps[octave] & (u32::MAX << step);
        if here != 0 {
            return self.parts[octave * STEPS + here.trailing_zeros() as usize].last().copied();
        }
        let octave = (self.octaves & (u64::MAX << octave << 1)).trailing_zeros() as usize;
        let steps = *self.steps.get(octave)?;
        self.parts[octave * STEPS + steps.trailing_zeros() as usize].last().copied()
    }

    /// The parts of a size's list, newest first.
    pub fn alike(&self, size: u32) -> impl Iterator<Item = PartId> + '_ {
        self.parts[list_of(size)].iter().rev().copied()
    }

    /// The parts from a size's list on.
    pub fn from(&self, size: u32) -> impl Iterator<Item = PartId> + '_ {
        self.parts[list_of(size)..].iter().flat_map(|list| list.iter().rev().copied())
    }

    /// The parts of the last list that is not empty.
    pub fn last(&self) -> &[PartId] {
        let octave = self.octaves.checked_ilog2().map(|octave| octave as usize);
        let list = octave.and_then(|octave| Some(octave * STEPS + self.steps[octave].checked_ilog2()? as usize));
        list.map_or(&[], |list| &self.parts[list])
    }

    pub fn all(&self) -> impl Iterator<Item = PartId> + '_ {
        self.parts.iter().flatten().copied()
    }
}

const fn list_of(size: u32) -> usize {
    if size < STEPS as u32 {
        return size as usize;
    }
    let shift = size.ilog2() - STEP_BITS;
    let step = (size >> shift) as usize & (STEPS - 1);
    (shift as usize + 1) * STEPS + step
}

const fn list_above(size: u32) -> Option<usize> {
    let is_least = size < STEPS as u32 || size.trailing_zeros() >= size.ilog2() - STEP_BITS;
    let list = list_of(size) + !is_least as usize;
    if list < LISTS { Some(list) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ordered_by_size_and_a_chosen_list_fits() {
        fn least(list: usize) -> u32 {
            let (octave, step) = (list / STEPS, (list % STEPS) as u32);
            if octave == 0 { step } else { (STEPS as u32 + step) << (octave - 1) }
        }
        for list in 1..LISTS {
            assert_eq!(list_of(least(list)), list);
            assert_eq!(list_above(least(list)), Some(list));
            assert_eq!(list_of(least(list) - 1), list - 1);
        }
        for size in (1..5000).chain((12..32).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1, 3 << (bits - 1)])) {
            let own = list_of(size);
            assert!(least(own) <= size);
            match list_above(size) {
                Some(fits) => assert!(least(fits) >= size && least(fits - 1) < size, "size {size}"),
                None => assert!(own == LISTS - 1, "size {size}"),
            }
        }
        assert_eq!((list_of(u32::MAX), list_above(u32::MAX)), (LISTS - 1, None));
    }
}
