//! A crate's layouts and those that it builds upon, as one set: [`layout_set!`](crate::layout_set).

/// Whole sets, and the types that come on top of them: a `&'static [LayoutDescriptor]`, for [`Abi::of`](crate::Abi::of).
///
/// ```
/// use ringmem_layouts::{Abi, LAYOUTS, layout_set, layout_table};
///
/// #[repr(C)]
/// struct Order { id: u64 }
/// layout_table! {
///     Order: size 8, align 8;
///     0 id: u64, "the trader";
/// }
///
/// /// What the traders' host and their kernels both see.
/// const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order));
/// assert_eq!(ABI.layouts.len(), LAYOUTS.len() + 1);
/// ```
///
/// Sets stand before the semicolon, types after it; either may be missing: `layout_set!(LAYOUTS, OTHERS;)`, `layout_set!(; Order)`.
#[macro_export]
macro_rules! layout_set {
    ($($set:expr),* ; $($type:ty),* $(,)?) => {{
        const SETS: &[&[$crate::LayoutDescriptor]] = &[$($set,)* &[$(<$type as $crate::Layout>::DESCRIPTOR),*]];
        const SET: [$crate::LayoutDescriptor; $crate::__private::members(SETS)] = $crate::__private::join(SETS);
        &SET
    }};
}

/// How many descriptors all sets have together.
#[must_use]
pub const fn members(sets: &[&[crate::LayoutDescriptor]]) -> usize {
    let (mut count, mut set) = (0, 0);
    while set < sets.len() {
        count += sets[set].len();
        set += 1;
    }
    count
}

/// All sets in a row; `N` is what [`members`] counts.
#[must_use]
pub const fn join<const N: usize>(sets: &[&[crate::LayoutDescriptor]]) -> [crate::LayoutDescriptor; N] {
    let mut all = [<u8 as crate::Layout>::DESCRIPTOR; N];
    let (mut end, mut set) = (0, 0);
    while set < sets.len() {
        let mut member = 0;
        while member < sets[set].len() {
            all[end] = sets[set][member];
            end += 1;
            member += 1;
        }
        set += 1;
    }
    assert!(end == N, "a set's members were counted wrong");
    all
}
