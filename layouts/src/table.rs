/// Declares the bytes of a struct as a table, checks it at compile time and implements [`Layout`](crate::Layout).
///
/// **[`SharedLayout`](crate::SharedLayout) is the usual way.** Use `layout_table!` for a struct that is generic over its word, or to fix
/// offsets in the source.
///
/// The compiler rejects another size, alignment, offset or type, unnamed padding, an omitted field, and a type without a layout.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// #[repr(C, align(16))]
/// struct Order {
///     id: u64,
///     price: f32,
///     quantity: u32,
/// }
/// ringmem::layout_table! {
///     Order: size 16, align 16;
///     0  id: u64, "the trader";
///     8  price: f32, "the trader";
///     12 quantity: u32, "the trader";
/// }
/// ```
///
/// Declare a struct that is generic over its word with `impl<W> Header<W>: size ..`; the macro adds `W: Layout`.
#[macro_export]
macro_rules! layout_table {
    ($name:ident : $($table:tt)*) => {
        $crate::__layout_table! { [] [$name] $name : $($table)* }
    };
    (impl<$($generic:ident),+> $name:ident <$($argument:ident),+> : $($table:tt)*) => {
        $crate::__layout_table! { [$($generic),+] [$name<$($argument),+>] $name : $($table)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __layout_table {
    (
        [$($generic:ident),*] [$type:ty] $name:ident : size $size:literal, align $align:literal;
        $($offset:literal $field:ident : $field_type:ty, $writer:literal;)+
    ) => {
        // SAFETY: each field of the struct is here, with its own type, which has a layout: any bytes are a valid value. The checks below find padding, and so
        // does `DeviceBytes::CHECKED`, which every reader of the bytes evaluates.
        unsafe impl<$($generic: $crate::Layout),*> $crate::Layout for $type {
            const DESCRIPTOR: $crate::LayoutDescriptor = {
                // The user may have macros and types with the names of core's.
                use $crate::__private::core as __core;

                // A pattern without `..` must name every field, and one with `..` is of a struct, not of a union.
                fn every_field_is_in_the_table<$($generic),*>(__ringmem_struct: &$type) {
                    let $name { $($field: _),+ } = __ringmem_struct;
                    let $name { $($field: _),+, .. } = __ringmem_struct;
                }
                // It is not dead code: an `allow` would be an error where the user forbids that lint.
                let _ = every_field_is_in_the_table::<$($generic),*>;
                let (__ringmem_end, __ringmem_last) = (0, "");
                $(
                    $crate::__private::offset(__core::stringify!($name), __core::stringify!($field), __core::mem::offset_of!(Self, $field), $offset);
                    $crate::__private::no_padding(__core::stringify!($name), __ringmem_last, __ringmem_end, $offset);
                    let (__ringmem_end, __ringmem_last) = ($offset + __core::mem::size_of::<$field_type>(), __core::stringify!($field));
                )+
                $crate::__private::no_padding(__core::stringify!($name), __ringmem_last, __ringmem_end, __core::mem::size_of::<Self>());
                $crate::__private::size_and_align::<Self>(__core::stringify!($name), __core::option::Option::Some($size), __core::option::Option::Some($align));
                $crate::LayoutDescriptor::of::<Self>(
                    __core::stringify!($name),
                    const {
                        &[$($crate::__private::field::<Self, $field_type>(
                            [__core::stringify!($field), __core::stringify!($field_type), $writer],
                            $offset,
                            |__ringmem_struct| &raw const __ringmem_struct.$field,
                        )),+]
                    },
                )
            };
        }
        $crate::__layout_table_now! { [$($generic),*] $name }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __layout_table_now {
    ([] $name:ident) => {
        const _: $crate::LayoutDescriptor = <$name as $crate::Layout>::DESCRIPTOR;
    };
    ([$generic:ident] $name:ident) => {
        const _: $crate::LayoutDescriptor = <$name<u64> as $crate::Layout>::DESCRIPTOR;
    };
}

/// The `Layout` of a struct that derives `SharedLayout`.
///
/// The derive leaves this to a macro because `$crate` is this crate, whatever path the derive was given: an `unsafe impl` may rely on nothing
/// that a module in the crate's place can replace. So it checks here that the fields are all of the struct's, with their types: another macro may
/// have changed them after the derive, and a stand-in may call this macro with others. No attribute stands on the `unsafe impl` but those of the language: a
/// path such as `diagnostic::do_not_recommend` can be a user's macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __shared_layout {
    ([$($lints:tt)*] $name:ident $text:literal $kind:expr; $($field:ident $named:literal [$type:ty] $writer:literal;)+) => {
        // SAFETY: each field of the struct is here, with its own type, which has a layout: any bytes are a valid value. `DeviceBytes::CHECKED`, which
        // every reader of the bytes evaluates, finds padding.
        $($lints)*
        unsafe impl $crate::Layout for $name {
            const DESCRIPTOR: $crate::LayoutDescriptor = {
                // A pattern without `..` must name every field, and one with `..` is of a struct, not of a union.
                fn the_fields_are_all(__ringmem_struct: &$name) {
                    let $name { $($field: _),+ } = __ringmem_struct;
                    let $name { $($field: _),+, .. } = __ringmem_struct;
                }
                // It is not dead code: an `allow` would be an error where the user forbids that lint.
                let _ = the_fields_are_all;
                $crate::LayoutDescriptor::of::<$name>(
                    $text,
                    const {
                        &[$($crate::__private::field::<$name, $type>(
                            [$named, $crate::__private::core::stringify!($type), $writer],
                            $crate::__private::core::mem::offset_of!($name, $field),
                            |__ringmem_struct| &raw const __ringmem_struct.$field,
                        )),+]
                    },
                )
                .with_kind($kind)
            };
        }
    };
}
