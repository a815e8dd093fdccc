//! [`LayoutDescriptor`]: a layout as data, and its ABI hash ([`AbiHash`]).
//!
//! The hash of a struct covers its name, size and alignment, and for each field its name, its offset and the hash of its *type*, at any depth. Other hashes are
//! made of it:
//!
//! | hash | covers | compared |
//! |---|---|---|
//! | [`LayoutDescriptor::hash`] | one struct | by those below |
//! | [`set_hash`] | several structs, in any order | when a region is attached |
//! | [`Abi::hash`](crate::image::Abi) | a set, and of each kernel that `kernels!` declares over buffers its name and its parameters (`grid.rs`) | when a module is loaded, and by the kernel at a launch |
//! | [`abi_of`](crate::ring::abi_of) | a ring's header and its message | when an end attaches |

use core::mem::{align_of, size_of};

/// A 64-bit FNV-1a hasher for compile time. Source: draft-eastlake-fnv.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::AbiHash;
///
/// const HASH: u64 = AbiHash::new().name("Sample").number(16).finish();
/// assert_eq!(HASH, AbiHash::new().bytes(b"Sample").number(6).number(16).finish()); // 6: the length of the name
/// assert_ne!(HASH, AbiHash::new().name("Sample").number(24).finish());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbiHash(u64);

impl AbiHash {
    const PRIME: u64 = 0x0000_0100_0000_01b3;

    /// Returns the hash of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes to the hash.
    #[must_use]
    pub const fn bytes(mut self, bytes: &[u8]) -> Self {
        let mut i = 0;
        while i < bytes.len() {
            self.0 = (self.0 ^ bytes[i] as u64).wrapping_mul(Self::PRIME);
            i += 1;
        }
        self
    }

    /// Adds a number to the hash, little-endian on every target.
    #[must_use]
    pub const fn number(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds a name and its length, so that `ab`, `c` and `a`, `bc` differ.
    #[must_use]
    pub const fn name(self, name: &str) -> Self {
        self.bytes(name.as_bytes()).number(name.len() as u64)
    }

    /// Returns the hash.
    #[must_use]
    pub const fn finish(self) -> u64 {
        self.0
    }
}

impl Default for AbiHash {
    fn default() -> Self {
        Self::new()
    }
}

/// A type with a described layout. Derive [`SharedLayout`](crate::SharedLayout) for a struct.
///
/// # Safety
///
/// Any bytes are a valid value, and `DESCRIPTOR` does not evaluate unless every byte belongs to a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type that host and device share",
    label = "has no layout",
    note = "derive `SharedLayout` for a struct; use an integer for an enum, `u8` for `bool`, `u32` for `char`, `u64` for `usize` and for a device address"
)]
pub unsafe trait Layout {
    /// Evaluating it checks the layout of a struct.
    const DESCRIPTOR: LayoutDescriptor;
}

/// The layout of a struct, a number or an array.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Layout, SharedLayout};
///
/// #[derive(SharedLayout)]
/// #[repr(C)]
/// struct Sample { time: u64, value: f32, channel: u32 }
///
/// let layout = Sample::DESCRIPTOR;
/// assert_eq!((layout.name, layout.size, layout.align), ("Sample", 16, 8));
/// assert_eq!(layout.fields.iter().map(|field| field.offset).collect::<Vec<_>>(), [0, 8, 12]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutDescriptor {
    /// The type's name, without arguments.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The fields in order, without gaps; empty unless a struct.
    pub fields: &'static [Field],
    /// The ABI hash.
    pub hash: u64,
    /// The structure of the type, which the hash covers.
    pub shape: Shape,
    /// [`KIND`](crate::RingMessage::KIND) of a struct that derives it; 0 for other types. The hash does not cover it.
    pub kind: u64,
}

/// The structure of a type.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Layout, Shape};
///
/// let Shape::Array { element, length } = <[f32; 3]>::DESCRIPTOR.shape else { panic!("not an array") };
/// assert_eq!((element.name, element.shape, length), ("f32", Shape::Number, 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number or word.
    Number,
    /// Consecutive elements.
    Array {
        /// The layout of an element.
        element: &'static LayoutDescriptor,
        /// The number of elements.
        length: usize,
    },
    /// The descriptor's fields.
    Struct,
}

/// One field of a layout.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{Layout, SharedLayout};
///
/// #[derive(SharedLayout)]
/// #[repr(C)]
/// struct Sample { time: u64, #[layout(writer = "kernel, once")] values: [f32; 2] }
///
/// let values = Sample::DESCRIPTOR.fields[1];
/// assert_eq!((values.name, values.offset, values.size, values.layout.name), ("values", 8, 8, "array"));
/// assert_eq!(values.writer, "kernel, once");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in the struct.
    pub name: &'static str,
    /// Offset in bytes in the struct.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// The type as written in the source, spaced as the compiler prints tokens: `CacheLineAligned < [u64; 16] >` under a derive. Compare
    /// [`type_hash`](Self::type_hash), not this text.
    pub type_name: &'static str,
    /// The ABI hash of the type.
    pub type_hash: u64,
    /// The layout of the type.
    pub layout: &'static LayoutDescriptor,
    /// Which agent writes the field, and when.
    pub writer: &'static str,
}

/// The type of a field, whose error does not list the types that have a layout. Only those can implement it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type that host and device share",
    label = "has no layout",
    note = "derive `SharedLayout` for a struct; use an integer for an enum, `u8` for `bool`, `u32` for `char`, `u64` for `usize` and for a device address"
)]
pub trait FieldType: Layout {}

#[diagnostic::do_not_recommend]
impl<T: Layout> FieldType for T {}

/// Describes a field of `S`. The projection shows that it has the type `F`, which the caller's macro writes nowhere else: a user's macro in its place can
/// expand to another type each time.
#[doc(hidden)]
#[must_use]
pub const fn field<S, F: FieldType>([name, type_name, writer]: [&'static str; 3], offset: usize, _projection: fn(&S) -> *const F) -> Field {
    let layout = const { &F::DESCRIPTOR };
    Field { name, offset, size: size_of::<F>(), type_name, type_hash: layout.hash, layout, writer }
}

impl LayoutDescriptor {
    /// Describes a number.
    #[must_use]
    pub const fn number<T>(name: &'static str) -> Self {
        let hash = AbiHash::new().name(name).number(size_of::<T>() as u64);
        Self { name, size: size_of::<T>(), align: align_of::<T>(), fields: &[], hash: hash.finish(), shape: Shape::Number, kind: 0 }
    }

    /// Describes a struct with these fields.
    #[must_use]
    pub const fn of<T>(name: &'static str, fields: &'static [Field]) -> Self {
        let mut hash = AbiHash::new().name(name).number(size_of::<T>() as u64).number(align_of::<T>() as u64);
        let mut i = 0;
        while i < fields.len() {
            let field = &fields[i];
            hash = hash.name(field.name).number(field.offset as u64).number(field.type_hash);
            i += 1;
        }
        Self { name, size: size_of::<T>(), align: align_of::<T>(), fields, hash: hash.finish(), shape: Shape::Struct, kind: 0 }
    }

    /// Returns the layout of a message with this number.
    #[must_use]
    pub const fn with_kind(self, kind: u64) -> Self {
        Self { kind, ..self }
    }
}

/// Fails to evaluate unless numbers fill the layout, at any depth, without a gap.
///
/// The derive and `layout_table!` report padding at its field. Memory safety does not rest on those reports, which name the crate by a path that
/// `#[layout(crate = ..)]` sets and that another module may stand for, but on this check, which
/// [`DeviceBytes`](crate::DeviceBytes) evaluates: the descriptor itself comes from `__shared_layout!`, whose paths are this crate's own.
pub(crate) const fn check_tiles(layout: &LayoutDescriptor) {
    match layout.shape {
        Shape::Number => {}
        Shape::Array { element, length } => {
            check_tiles(element);
            assert!(element.size * length == layout.size, "an array is its elements");
        }
        Shape::Struct => {
            let (mut end, mut last, mut i) = (0, "", 0);
            while i < layout.fields.len() {
                let field = &layout.fields[i];
                check_tiles(field.layout);
                crate::check::no_padding(layout.name, last, end, field.offset);
                (end, last) = (field.offset + field.layout.size, field.name);
                i += 1;
            }
            crate::check::no_padding(layout.name, last, end, layout.size);
        }
    }
}

/// Returns the hash of a set of layouts, in any order.
#[must_use]
pub const fn set_hash(set: &[LayoutDescriptor]) -> u64 {
    let mut hash = AbiHash::new();
    let mut taken = 0;
    let mut last: Option<usize> = None;
    while taken < set.len() {
        let mut next: Option<usize> = None;
        let mut i = 0;
        while i < set.len() {
            let after_last = match last {
                None => true,
                Some(last) => precedes(set, last, i),
            };
            let before_next = match next {
                None => true,
                Some(next) => precedes(set, i, next),
            };
            if after_last && before_next {
                next = Some(i);
            }
            i += 1;
        }
        let Some(index) = next else { break };
        hash = hash.name(set[index].name).number(set[index].hash);
        last = Some(index);
        taken += 1;
    }
    hash.finish()
}

const fn precedes(set: &[LayoutDescriptor], a: usize, b: usize) -> bool {
    let (left, right) = (set[a].name.as_bytes(), set[b].name.as_bytes());
    let mut i = 0;
    while i < left.len() && i < right.len() {
        if left[i] != right[i] {
            return left[i] < right[i];
        }
        i += 1;
    }
    if left.len() != right.len() {
        return left.len() < right.len();
    }
    if set[a].hash != set[b].hash {
        return set[a].hash < set[b].hash;
    }
    a < b
}

macro_rules! numbers {
    ($($type:ty => $name:literal),* $(,)?) => {$(
        // SAFETY: a number.
        #[diagnostic::do_not_recommend]
        unsafe impl Layout for $type {
            const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor::number::<$type>($name);
        }
    )*};
}

// A word has the bytes of a `u64`, which hashes as "word" too.
numbers! {
    u8 => "u8", u16 => "u16", u32 => "u32", u64 => "word",
    i8 => "i8", i16 => "i16", i32 => "i32", i64 => "i64",
    f32 => "f32", f64 => "f64",
}

// SAFETY: the elements are adjacent and fill the array. Any bytes are valid for each, and `T::DESCRIPTOR`, which this one evaluates, does not evaluate unless
// every byte of an element belongs to a number.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor {
        name: "array",
        size: size_of::<[T; N]>(),
        align: align_of::<T>(),
        fields: &[],
        hash: AbiHash::new().name("array").number(T::DESCRIPTOR.hash).number(N as u64).finish(),
        shape: Shape::Array { element: &T::DESCRIPTOR, length: N },
        kind: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_1a_matches_the_published_vectors() {
        assert_eq!(AbiHash::new().finish(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(AbiHash::new().bytes(b"a").finish(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(AbiHash::new().bytes(b"foobar").finish(), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_set_hash_ignores_the_member_order() {
        let [a, b, c] = [
            <crate::ControlBlock<u64> as Layout>::DESCRIPTOR,
            <crate::TelemetryBuffer<u64> as Layout>::DESCRIPTOR,
            <crate::RingHeader<u64> as Layout>::DESCRIPTOR,
        ];
        let whole = set_hash(&[a, b, c]);
        assert_eq!(whole, set_hash(&[c, a, b]));
        assert_eq!(whole, set_hash(&[b, c, a]));
        assert_ne!(whole, set_hash(&[a, b]));
        assert_ne!(set_hash(&[a, a]), set_hash(&[a]));
    }

    #[test]
    fn element_type_and_length_change_an_array_hash() {
        let hash = |descriptor: LayoutDescriptor| descriptor.hash;
        assert_ne!(hash(<[u32; 4]>::DESCRIPTOR), hash(<[f32; 4]>::DESCRIPTOR));
        assert_ne!(hash(<[u32; 4]>::DESCRIPTOR), hash(<[u32; 5]>::DESCRIPTOR));
        assert_ne!(hash(<[[u8; 2]; 4]>::DESCRIPTOR), hash(<[[u8; 4]; 2]>::DESCRIPTOR));
    }
}
