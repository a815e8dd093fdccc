use super::Zone::{Large, Small};
use super::*;
use std::collections::BTreeMap;

fn holes(heap: &Heap) -> BTreeMap<(u32, u64), u64> {
    heap.parts().filter(|part| part.4).map(|(_, slab, offset, size, _)| ((slab, offset), size)).collect()
}

fn check(heap: &Heap, slabs: &[u64]) {
    let mut parts: Vec<_> = heap.parts().map(|(_, slab, offset, size, is_free)| (slab, offset, size, is_free)).collect();
    parts.sort_unstable();
    let mut at = BTreeMap::<u32, (u64, bool)>::new();
    for (slab, offset, size, is_free) in parts {
        let (end, was_free) = at.get(&slab).copied().unwrap_or((0, false));
        assert_eq!(offset, end, "no gap and no overlap in slab {slab}");
        assert!(!(is_free && was_free), "two free neighbours in slab {slab}");
        at.insert(slab, (end + size, is_free));
    }
    for (slab, (end, _)) in at {
        assert_eq!(end, slabs[slab as usize] / UNIT * UNIT, "slab {slab} is whole");
    }
    let holes = holes(heap);
    assert_eq!((heap.free(), heap.free_parts()), (holes.values().sum::<u64>(), holes.len() as u64));
    assert_eq!(heap.largest(), holes.values().copied().max().unwrap_or(0));
    let mut listed = heap.lists.iter().flat_map(|lists| &lists.parts).flatten();
    assert!(listed.all(|listed| heap.parts[listed.part.index()].size == listed.size), "a list has another size than the record");
}

fn longest_at(heap: &Heap, align: u64, bases: &[Base]) -> u64 {
    let usable = |((slab, offset), size): ((u32, u64), u64)| {
        let base = bases[slab as usize];
        let address = u64::from(base.units) * UNIT + offset;
        let is_had = align <= u64::from(base.max_align) * UNIT;
        if is_had { size.saturating_sub(address.next_multiple_of(align) - address) } else { 0 }
    };
    holes(heap).into_iter().map(usable).max().unwrap_or(0)
}

fn settle(heap: &mut Heap) -> usize {
    core::iter::from_fn(|| heap.free_next_deferred()).filter(|given| given.is_empty).count()
}

fn at(units: u32) -> Base {
    Base { units, max_align: Base::TOP }
}

fn random_takes_and_gives(far: usize) {
    let slabs = [1 << 20, 3 << 20, 70_000, 1 << 24];
    // The last slab has two addresses that agree up to 1024 bytes.
    let bases = [at(0), at(3), at(u32::MAX - 100), Base { units: 8, max_align: 4 }];
    let mut heap = Heap::of(PARTS, far);
    for (slab, (&bytes, base)) in slabs.iter().zip(bases).enumerate() {
        assert!(heap.add(slab as u32, bytes, base, Large));
    }
    let mut live = Vec::new();
    let mut random = 9_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut refused, mut late, mut emptied) = (0, 0, 0);
    for round in 0..60_000 {
        if next(5) < 3 {
            let bits = 4 + next(17);
            let bytes = 1 + next(1 << bits);
            let align = [1, 256, 512, 4096, 64 << 10][next(5) as usize];
            let found = heap.take(bytes, align, Large).or_else(|| {
                settle(&mut heap);
                let longest = longest_at(&heap, align, &bases);
                assert_eq!(heap.largest_at(align), longest);
                let found = heap.take(bytes, align, Large);
                assert!(found.is_some() || longest < bytes.div_ceil(UNIT) * UNIT, "{bytes} bytes refused with {longest} in one piece");
                found
            });
            match found {
                Some(taken) => {
                    assert!(taken.size >= bytes && taken.size < bytes + UNIT);
                    let base = bases[taken.slab as usize];
                    let address = u64::from(base.units) * UNIT + taken.offset;
                    assert!(address.is_multiple_of(align) && align <= u64::from(base.max_align) * UNIT, "{taken:?} at {align}");
                    live.push(taken.part);
                }
                None => refused += 1,
            }
        } else if !live.is_empty() {
            let part = live.swap_remove(next(live.len() as u64) as usize);
            heap.free_deferred(part, 0);
            late += usize::from(heap.has_deferred());
        }
        if round % 1000 == 0 {
            check(&heap, &slabs);
        }
    }
    assert!(refused > 100, "the heap was full at times");
    assert_eq!(late > 0, far == 0);
    settle(&mut heap);
    for part in live {
        emptied += usize::from(heap.free_deferred(part, 0).is_some_and(|given| given.is_empty));
    }
    emptied += settle(&mut heap);
    assert!(emptied == slabs.len(), "each slab is said to be empty once: {emptied}");
    check(&heap, &slabs);
    assert_eq!(heap.free(), heap.total());
    let mut removed = heap.remove_empty(|_| true);
    removed.sort_unstable();
    assert_eq!((removed, heap.total(), heap.free()), (std::vec![0, 1, 2, 3], 0, 0));
}

#[test]
fn random_allocations_and_frees_keep_every_invariant() {
    random_takes_and_gives(usize::MAX);
}

#[test]
fn deferred_coalescing_keeps_every_invariant() {
    random_takes_and_gives(0);
}

#[test]
fn part_numbers_stay_within_the_maximum() {
    let mut heap = Heap::of(4, DEFER_FROM);
    assert!(heap.add(0, 10 * UNIT, at(0), Large));
    let taken = [heap.take(1, 1, Large).unwrap(), heap.take(1, 1, Large).unwrap()];
    assert_eq!(
        (heap.take(1, 1, Large), heap.add(1, 10 * UNIT, at(0), Large)),
        (None, false),
        "the table, two that are taken, and the rest"
    );
    heap.coalesce(taken[1].part, 0);
    assert_eq!(heap.take(1, 2 * UNIT, Large), None, "the skipped unit, the part and the rest would be one number too many");
    assert_eq!(heap.take(1, 1, Large).map(|taken| taken.offset), Some(UNIT));
    check(&heap, &[10 * UNIT]);
}

#[test]
fn bytes_skipped_for_an_alignment_stay_free_and_coalesce() {
    let mut heap = Heap::default();
    assert!(heap.add(0, 64 * UNIT, at(1), Large));
    let aligned = heap.take(3 * UNIT, 16 * UNIT, Large).unwrap();
    assert_eq!((aligned.offset, heap.free_parts(), heap.free()), (15 * UNIT, 2, 61 * UNIT));
    let skipped = heap.take(15 * UNIT, UNIT, Large).unwrap();
    assert_eq!(skipped.offset, 0, "the list that fits best");
    heap.coalesce(aligned.part, 0);
    heap.coalesce(skipped.part, 0);
    check(&heap, &[64 * UNIT]);
    assert_eq!((heap.free_parts(), heap.largest()), (1, 64 * UNIT));
}

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

#[test]
fn each_part_is_halfway_and_due_exactly_once() {
    let part = |index| PartId::from_index(index).expect("not 0");
    let mut deferred = Deferred::default();
    assert!(deferred.is_empty());
    for number in 1..100 {
        let due = deferred.pass(part(number), u64::from(number));
        let before = |others: usize| number.checked_sub(others as u32).and_then(PartId::from_index);
        assert_eq!((due.halfway, due.due.map(|(part, _)| part)), (before(OTHERS / 2), before(OTHERS)));
        assert!(due.due.is_none_or(|(part, since)| part.index() as u64 == since), "with the time of its last use");
    }
    let mut left: std::vec::Vec<_> = core::iter::from_fn(|| deferred.take()).map(|(part, _)| part.index()).collect();
    left.sort_unstable();
    assert_eq!(left, (100 - OTHERS..100).collect::<std::vec::Vec<_>>());
    assert!(deferred.is_empty());
}

/// A range of 64 granules, of which one is of no zone, against a list of what each unit is.
struct RangeModel {
    heap: Heap,
    /// By granule: whether it has memory.
    mapped: Vec<bool>,
    live: Vec<Taken>,
    random: u64,
}

const STEP: u64 = 16 * UNIT;
const GRANULES: usize = 64;
/// The first of the zone of small blocks.
const SECOND: usize = 40;

fn range() -> Heap {
    let mut heap = Heap::default();
    assert!(heap.add_range(0, [SECOND - 1, GRANULES - SECOND + 1].map(|granules| granules as u64 * STEP), STEP, at(0)));
    heap
}

impl RangeModel {
    fn below(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn zone(&mut self) -> Zone {
        [Large, Small][self.below(2) as usize]
    }

    /// Parts with memory lie on mapped granules alone, and cover them; the counts are theirs.
    fn check(&self) {
        let mut parts: Vec<_> = self.heap.parts().map(|(_, _, offset, size, is_free)| (offset, size, is_free)).collect();
        parts.sort_unstable();
        let mut units = std::vec![None; GRANULES * 16];
        for (offset, size, is_free) in parts {
            for unit in &mut units[(offset / UNIT) as usize..((offset + size) / UNIT) as usize] {
                assert_eq!(unit.replace(is_free), None, "two parts");
            }
        }
        for (unit, of) in units.iter().enumerate() {
            assert_eq!(of.is_some(), self.mapped[unit / 16], "unit {unit}");
        }
        let taken: u64 = self.live.iter().map(|taken| taken.size).sum();
        let [large, unused, small] = [0..SECOND - 1, SECOND - 1..SECOND, SECOND..GRANULES]
            .map(|zone| self.mapped[zone].iter().filter(|&&is_mapped| is_mapped).count() as u64 * STEP);
        assert_eq!((self.heap.total_of(Large), unused, self.heap.total_of(Small)), (large, 0, small));
        assert_eq!((self.heap.total(), self.heap.free()), (large + small, large + small - taken));
    }

    fn free_granules(&self) -> Vec<(PartId, u64)> {
        let within = |(part, offset, size): (PartId, u64, u64)| {
            (offset.next_multiple_of(STEP)..)
                .step_by(STEP as usize)
                .take_while(move |at| at + STEP <= offset + size)
                .map(move |at| (part, at))
        };
        self.heap.free_from(0, STEP).flat_map(within).collect()
    }

    /// Claims for a request, in one of the zones; fills all of it, or a random share. If that is enough, the request must be served where the claim was.
    fn extend(&mut self) {
        let (bytes, is_last) = (1 + self.below(20 * STEP), self.below(2) == 0);
        let (align, more, zone) = ([256, 1024, 4096][self.below(3) as usize], self.below(3) * STEP, self.zone());
        let Some(claim) = self.heap.claim(bytes, align, STEP, zone, |_| more, is_last) else { return };
        assert!(claim.least <= claim.size && claim.size <= claim.least.max(more));
        let granules = claim.size / STEP;
        let from = (claim.offset / STEP) as usize;
        assert!(self.mapped[from..from + granules as usize].iter().all(|is_mapped| !is_mapped), "absent");
        assert!(self.heap.claim(u64::from(u32::MAX), 1, STEP, Large, |_| 0, false).is_none(), "longer than the range");
        let filled = if self.below(3) == 0 { self.below(granules + 1) * STEP } else { claim.size };
        let (is_enough, zone) = (filled >= claim.least, claim.zone);
        assert_eq!(zone, if from < SECOND { Large } else { Small });
        self.heap.fill(claim, filled);
        self.mapped[from..from + (filled / STEP) as usize].fill(true);
        if is_enough {
            let taken = self.heap.take(bytes, align, zone).expect("what the claim was for");
            self.live.push(taken);
        }
    }

    /// Takes granules out, from the last on, and puts some back.
    fn take_out(&mut self) {
        let mut granules = self.free_granules();
        granules.sort_unstable_by_key(|&(_, at)| core::cmp::Reverse(at));
        let mut out = Vec::new();
        for (part, at) in granules {
            if self.below(2) == 0 {
                let total = self.heap.total();
                let taken = self.heap.take_out(part, at, STEP).expect("numbers");
                assert_eq!(self.heap.total(), total - STEP);
                out.push((taken, at));
            }
        }
        for (part, at) in out {
            if self.below(4) == 0 {
                self.heap.put_back(part);
            } else {
                self.heap.abandon(part);
                self.mapped[(at / STEP) as usize] = false;
            }
        }
    }
}

#[test]
fn a_range_gets_and_loses_memory_in_any_order() {
    let mut heap = range();
    assert_eq!((heap.total(), heap.take(1, 1, Large), heap.take(1, 1, Small), heap.empty_slabs().count()), (0, None, None, 0));
    let mut model = RangeModel { heap, mapped: std::vec![false; GRANULES], live: Vec::new(), random: 3 };
    let mut full = 0;
    for _ in 0..20_000 {
        match model.below(8) {
            0..=2 => {
                let (bytes, zone) = (1 + model.below(6 * STEP), model.zone());
                match model.heap.take(bytes, 1, zone) {
                    Some(taken) => {
                        assert_eq!(taken.offset < SECOND as u64 * STEP, zone == Large);
                        model.live.push(taken);
                    }
                    None => full += 1,
                }
            }
            3 | 4 if !model.live.is_empty() => {
                let which = model.below(model.live.len() as u64) as usize;
                let freed = model.live.swap_remove(which);
                let said = model.heap.coalesce(freed.part, 7);
                assert_eq!((said.offset, said.size, said.since), (freed.offset, freed.size, 7));
            }
            5 | 6 => model.extend(),
            _ => model.take_out(),
        }
        model.check();
    }
    assert!(full > 1000, "{full}");
    while let Some(taken) = model.live.pop() {
        model.heap.coalesce(taken.part, 0);
    }
    for (part, at) in model.free_granules().into_iter().rev() {
        let part = model.heap.take_out(part, at, STEP).expect("numbers");
        model.heap.abandon(part);
        model.mapped[(at / STEP) as usize] = false;
    }
    model.check();
    let zones = [(0, SECOND - 1, Large), (SECOND, GRANULES - SECOND, Small)];
    let claims = zones.map(|(from, granules, zone)| {
        let claim = model.heap.claim(granules as u64 * STEP, 1, STEP, zone, |_| 0, false).expect("one absent part");
        assert_eq!((claim.offset, claim.least, claim.zone), (from as u64 * STEP, granules as u64 * STEP, zone));
        claim
    });
    assert!(model.heap.claim(1, 1, STEP, Large, |_| 0, false).is_none(), "a claim is out of reach");
    claims.into_iter().for_each(|claim| model.heap.fill(claim, 0));
    assert_eq!((model.heap.total(), model.heap.free()), (0, 0));
}

#[test]
fn a_claim_takes_the_place_that_needs_least() {
    let mut heap = range();
    let claim = heap.claim(24 * STEP, 1, STEP, Large, |_| 0, false).expect("addresses");
    heap.fill(claim, 24 * STEP);
    let [first, second, _third] = [6, 6, 6].map(|granules| heap.take(granules * STEP, 1, Large).expect("memory"));
    heap.coalesce(first.part, 0);
    heap.coalesce(second.part, 0);
    let (hole, ..) = heap.free_from(0, STEP).find(|&(_, offset, _)| offset == 0).expect("both together");
    for at in (4..8).rev() {
        let part = heap.take_out(hole, at * STEP, STEP).expect("numbers");
        heap.abandon(part);
    }
    // Mapped and free: 0 to 4, 8 to 12 and 18 to 24; absent: 4 to 8, and from 24 on.
    let places = [(5, false, 4, 1), (5, true, 24, 1), (8, false, 24, 2), (12, false, 4, 4), (12, true, 24, 6), (13, false, 24, 7)];
    for (bytes, is_last, offset, least) in places {
        let claim = heap.claim(bytes * STEP, 1, STEP, Large, |_| 0, is_last).expect("a place");
        assert_eq!((claim.offset, claim.least, claim.size), (offset * STEP, least * STEP, least * STEP), "{bytes}");
        heap.fill(claim, 0);
    }
    assert_eq!(heap.take(6 * STEP, 1, Large).map(|taken| taken.offset), Some(18 * STEP));
    let claim = heap.claim(12 * STEP, 1, STEP, Large, |_| 0, false).expect("all of the gap");
    assert!(heap.take(3 * STEP, 1, Large).is_none(), "both sides are claimed");
    heap.fill(claim, 4 * STEP);
    assert_eq!(heap.take(12 * STEP, 1, Large).map(|taken| taken.offset), Some(0), "joined");
}

#[test]
fn a_zone_without_enough_addresses_takes_those_of_the_other() {
    let mut heap = range();
    let (few, many) = ((GRANULES - SECOND) as u64, SECOND as u64 - 1);
    for (zone, granules, offset) in [(Small, few, SECOND as u64), (Small, many, 0), (Large, few, 0), (Large, many, 0)] {
        for is_last in [false, true] {
            let claim = heap.claim(granules * STEP, 1, STEP, zone, |_| 0, is_last).expect("addresses");
            assert_eq!(claim.offset, offset * STEP, "{granules} granules for {zone:?} blocks");
            heap.fill(claim, 0);
        }
    }
    let claim = heap.claim(many * STEP, 1, STEP, Large, |_| 0, false).expect("addresses");
    heap.fill(claim, many * STEP);
    let taken = heap.take(many * STEP, 1, Large).expect("all of the zone");
    let claim = heap.claim(1, 1, STEP, Large, |_| 0, false).expect("addresses of the other zone");
    assert_eq!((claim.offset, claim.zone), (SECOND as u64 * STEP, Small));
    heap.fill(claim, STEP);
    assert_eq!((heap.take(1, 1, Large), heap.total_of(Small)), (None, STEP));
    heap.coalesce(taken.part, 0);
    assert_eq!((heap.free_parts(), heap.largest()), (2, many * STEP), "zones are not joined");
}

#[test]
fn a_request_takes_the_smallest_part_that_fits_at_the_lowest_address() {
    let mut heap = Heap::default();
    assert!(heap.add(0, 2 << 20, at(0), Large));
    // Of one list: 1000 to 1023 units.
    let sizes = [1010, 1003, 1020, 1001, 1003];
    let parts = sizes.map(|units| {
        let part = heap.take(units * UNIT, 1, Large).expect("memory");
        heap.take(UNIT, 1, Large).expect("memory");
        part
    });
    // At last the lower of the two equal ones.
    for freed in [4, 0, 3, 2, 1] {
        heap.coalesce(parts[freed].part, 0);
    }
    for (units, taken) in [(1002, 1), (1002, 4), (1002, 0), (1000, 3), (1015, 2)] {
        assert_eq!(heap.take(units * UNIT, 1, Large).map(|taken| taken.offset), Some(parts[taken].offset), "{units}");
        // The rest is another list's.
        heap.lists[0].of(1002).iter().for_each(|listed| assert!(listed.size >= 992));
    }
}
