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
        assert!(heap.add(slab as u32, bytes, base));
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
            let found = heap.take(bytes, align).or_else(|| {
                settle(&mut heap);
                let longest = longest_at(&heap, align, &bases);
                assert_eq!(heap.largest_at(align), longest);
                let found = heap.take(bytes, align);
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
    assert!(heap.add(0, 10 * UNIT, at(0)));
    let taken = [heap.take(1, 1).unwrap(), heap.take(1, 1).unwrap()];
    assert_eq!((heap.take(1, 1), heap.add(1, 10 * UNIT, at(0))), (None, false), "the table, two that are taken, and the rest");
    heap.coalesce(taken[1].part, 0);
    assert_eq!(heap.take(1, 2 * UNIT), None, "the skipped unit, the part and the rest would be one number too many");
    assert_eq!(heap.take(1, 1).map(|taken| taken.offset), Some(UNIT));
    check(&heap, &[10 * UNIT]);
}

#[test]
fn bytes_skipped_for_an_alignment_stay_free_and_coalesce() {
    let mut heap = Heap::default();
    assert!(heap.add(0, 64 * UNIT, at(1)));
    let aligned = heap.take(3 * UNIT, 16 * UNIT).unwrap();
    assert_eq!((aligned.offset, heap.free_parts(), heap.free()), (15 * UNIT, 2, 61 * UNIT));
    let skipped = heap.take(15 * UNIT, UNIT).unwrap();
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
