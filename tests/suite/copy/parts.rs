use proptest::prelude::*;
use ringmem::copy::{Parts, padded, period, split};
use ringmem::memory::PinnedBuffer;

use super::{backend, pinned, zeros};

#[test]
fn padded_rounds_lengths_up_to_whole_units() {
    for n in (0..5000).chain([1 << 20, (1 << 20) + 1]) {
        assert_eq!(padded::<f32>(n, 4096), Some((n + 1023) & !1023));
        assert_eq!(padded::<f32>(n, 256), Some((n + 63) & !63));
        assert_eq!(padded::<u8>(n, 1), Some(n));
        assert_eq!(padded::<[f32; 3]>(n, 256), Some(n.next_multiple_of(64)));
    }
    assert_eq!((period::<[u8; 4096]>(256), period::<[u8; 0]>(256), period::<u8>(256)), (Some(1), Some(1), Some(256)));
    for align in [0, 3, 4095] {
        assert_eq!((period::<f32>(align), padded::<f32>(1, align), split::<f32>(0..1, align)), (None, None, None));
    }
    assert_eq!((padded::<u8>(usize::MAX, 2), padded::<u8>(usize::MAX - 1, 2)), (None, Some(usize::MAX - 1)));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = split::<u8>(2..1, 2);
    assert_eq!(backwards, None);
    const PAGES: Option<usize> = padded::<f32>(1, 4096);
    assert_eq!(PAGES, Some(1024), "known when it is compiled");
}

#[test]
fn a_range_within_one_unit_is_all_head() {
    let whole = |range: std::ops::Range<usize>| Some(Parts { head: range.clone(), body: range.end..range.end, tail: range.end..range.end });
    assert_eq!(split::<u8>(5..200, 256), whole(5..200));
    let end = usize::MAX - 3..usize::MAX;
    assert_eq!(split::<u8>(end.clone(), 1 << 40), whole(end));
}

fn check<T>(start: usize, len: usize, align: u64) -> Result<(), TestCaseError> {
    let (range, period) = (start..start + len, period::<T>(align).expect("a power of two"));
    let Parts { head, body, tail } = split::<T>(range.clone(), align).expect("a power of two");
    prop_assert_eq!((head.start, head.end, body.end, tail.end), (range.start, body.start, tail.start, range.end), "one after the other");
    for boundary in [body.start, body.end] {
        prop_assert!(body.is_empty() || ((boundary * size_of::<T>()) as u64).is_multiple_of(align));
    }
    prop_assert!(tail.len() < period && (body.is_empty() || head.len() < period));
    let units = (range.end / period).saturating_sub(range.start.div_ceil(period));
    prop_assert_eq!(body.len(), units * period);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_cover_the_range_and_the_body_is_maximal(start in 0..20_000_usize, len in 0..20_000_usize, bit in 0..14_u32) {
        check::<u8>(start, len, 1 << bit)?;
        check::<f32>(start, len, 1 << bit)?;
        check::<[f32; 3]>(start, len, 1 << bit)?;
        check::<[u8; 4096]>(start, len, 1 << bit)?;
    }
}

#[test]
fn a_copy_in_parts_works_at_every_misalignment() {
    let backend = backend();
    let elements: Vec<u32> = (1..=2048).collect();
    let from = PinnedBuffer::from_slice(pinned(&backend), &elements).expect("room");
    for misalignment in 0..64 {
        for len in [0, 1, 63, 64, 65, 127, 128, 1000, 1024] {
            let (mut to, range) = (zeros(&backend, 2048), misalignment..misalignment + len);
            let Parts { head, body, tail } = split::<u32>(range.clone(), 256).expect("a power of two");
            for part in [head, body, tail] {
                to.slice_mut(part.clone()).expect("within").copy_from_view(from.slice(part).expect("within")).expect("as many");
            }
            let moved = to.to_vec().expect("no fault");
            let expected = |index| if range.contains(&index) { index as u32 + 1 } else { 0 };
            assert!(moved.iter().enumerate().all(|(index, &element)| element == expected(index)), "{range:?}");
        }
    }
}
