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
        // SAFETY: all fields have layouts, and the checks below leave no padding.
        #[diagnostic::do_not_recommend]
        unsafe impl<$($generic: $crate::Layout),*> $crate::Layout for $type {
            const DESCRIPTOR: $crate::LayoutDescriptor = {
                // The user may have macros and types with the names of core's.
                use $crate::__private::core as __core;

                // A pattern without `..` must name every field.
                fn every_field_is_in_the_table<$($generic),*>(value: &$type) {
                    let $name { $($field: _),+ } = value;
                }
                // A `*mut` to a sized place coerces to no other type.
                fn the_types_in_the_table_are_exact<$($generic),*>(place: *mut $type) {
                    $(
                        // SAFETY: never called, and nothing is read.
                        let _: *mut $field_type = unsafe { &raw mut (*place).$field };
                    )+
                }
                // They are not dead code: an `allow` would be an error where the user forbids that lint.
                let _ = every_field_is_in_the_table::<$($generic),*>;
                let _ = the_types_in_the_table_are_exact::<$($generic),*>;
                let (end, last) = (0, "");
                $(
                    $crate::__private::offset(__core::stringify!($name), __core::stringify!($field), __core::mem::offset_of!(Self, $field), $offset);
                    $crate::__private::no_padding(__core::stringify!($name), last, end, $offset);
                    let (end, last) = ($offset + __core::mem::size_of::<$field_type>(), __core::stringify!($field));
                )+
                $crate::__private::no_padding(__core::stringify!($name), last, end, __core::mem::size_of::<Self>());
                $crate::__private::size_and_align::<Self>(__core::stringify!($name), __core::option::Option::Some($size), __core::option::Option::Some($align));
                $crate::LayoutDescriptor::of::<Self>(
                    __core::stringify!($name),
                    &[$($crate::Field {
                        name: __core::stringify!($field),
                        offset: $offset,
                        size: __core::mem::size_of::<$field_type>(),
                        type_name: __core::stringify!($field_type),
                        type_hash: <$field_type as $crate::Layout>::DESCRIPTOR.hash,
                        layout: &<$field_type as $crate::Layout>::DESCRIPTOR,
                        writer: $writer,
                    }),+],
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
/// have changed them after the derive, and a stand-in may call this macro with others.
#[doc(hidden)]
#[macro_export]
macro_rules! __shared_layout {
    ([$($lints:tt)*] $name:ident $text:literal $kind:expr; $($field:ident $named:literal [$type:ty] $writer:literal;)+) => {
        // SAFETY: each field of the struct is here, with its own type, which has a layout: any bytes are a valid value. `DeviceBytes::CHECKED`, which
        // every reader of the bytes evaluates, finds padding.
        $($lints)*
        #[diagnostic::do_not_recommend]
        unsafe impl $crate::Layout for $name {
            const DESCRIPTOR: $crate::LayoutDescriptor = {
                fn the_fields_are_all_and_exact(value: &$name) {
                    let $name { $($field: _),+ } = value;
                    $(let _: *const $type = &raw const value.$field;)+
                }
                // It is not dead code: an `allow` would be an error where the user forbids that lint.
                let _ = the_fields_are_all_and_exact;
                $crate::LayoutDescriptor::of::<$name>(
                    $text,
                    &[$($crate::Field {
                        name: $named,
                        offset: $crate::__private::core::mem::offset_of!($name, $field),
                        size: $crate::__private::core::mem::size_of::<$type>(),
                        type_name: $crate::__private::core::stringify!($type),
                        type_hash: <$type as $crate::Layout>::DESCRIPTOR.hash,
                        layout: &<$type as $crate::Layout>::DESCRIPTOR,
                        writer: $writer,
                    }),+],
                )
                .with_kind($kind)
            };
        }
    };
}
