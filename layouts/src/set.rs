/// Combines sets of layouts and types into one `&'static [LayoutDescriptor]`, for an [`Abi::of`](crate::Abi::of) by hand.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Abi, LAYOUTS, SharedLayout, layout_set};
///
/// #[derive(SharedLayout)]
/// #[repr(C)]
/// struct Order { id: u64 }
///
/// /// The layouts of the host program and its kernels.
/// const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order));
/// assert_eq!(ABI.layouts.len(), LAYOUTS.len() + 1);
/// ```
///
/// Sets precede the semicolon, types follow: `layout_set!(LAYOUTS, OTHERS;)`, `layout_set!(; Order)`.
#[macro_export]
macro_rules! layout_set {
    ($($set:expr),* ; $($type:ty),* $(,)?) => {{
        const SETS: &[&[$crate::LayoutDescriptor]] = &[$($set,)* &[$(<$type as $crate::Layout>::DESCRIPTOR),*]];
        const SET: [$crate::LayoutDescriptor; $crate::__private::members(SETS)] = $crate::__private::join(SETS);
        &SET
    }};
    ($($other:tt)*) => {
        ::core::compile_error!("layout_set! takes sets, a semicolon and types: `layout_set!(LAYOUTS; Order)`")
    };
}

/// Returns the number of descriptors.
#[must_use]
pub const fn members(sets: &[&[crate::LayoutDescriptor]]) -> usize {
    let (mut count, mut set) = (0, 0);
    while set < sets.len() {
        count += sets[set].len();
        set += 1;
    }
    count
}

/// Concatenates all sets; `N` is their [`members`].
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
