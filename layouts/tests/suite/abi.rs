use std::any::TypeId;

use ringmem_layouts::attach::AttachError;
use ringmem_layouts::{
    AbiHash, ControlBlock, Field, HostWord, LAYOUTS, Layout, RingHeader, RingLayout, SharedLayout, TelemetryBuffer, set_hash,
};

type Celsius = f32;
type Kelvin = f32;
type Fahrenheit = i32;

macro_rules! nested {
    ($module:ident: $leaf:ty) => {
        mod $module {
            use super::*;

            #[derive(Clone, Copy, SharedLayout)]
            #[repr(C)]
            pub struct Leaf {
                pub value: $leaf,
            }

            #[derive(Clone, Copy, SharedLayout)]
            #[repr(C)]
            pub struct Branch {
                pub leaves: [Leaf; 2],
            }

            #[derive(Clone, Copy, SharedLayout)]
            #[repr(C)]
            #[layout(message = 1)]
            pub struct Tree {
                pub branches: [[Branch; 2]; 2],
                pub age: u64,
            }
        }
    };
}

nested!(celsius: Celsius);
nested!(kelvin: Kelvin);
nested!(plain: f32);
nested!(fahrenheit: Fahrenheit);

macro_rules! flat {
    ($module:ident: $name:ident { $a:ident: $first:ty, $b:ident: $second:ty } align $align:literal, written by $writer:literal) => {
        mod $module {
            #[derive(ringmem_layouts::SharedLayout)]
            #[repr(C, align($align))]
            #[layout(size = 8, align = $align, writer = $writer)]
            pub struct $name {
                pub $a: $first,
                pub $b: $second,
            }
        }
    };
}

flat!(base: Pair { left: u32, right: u32 } align 4, written by "host");
flat!(rewritten: Pair { left: u32, right: u32 } align 4, written by "device");
flat!(renamed: Couple { left: u32, right: u32 } align 4, written by "host");
flat!(field_renamed: Pair { left: u32, wrong: u32 } align 4, written by "host");
flat!(swapped: Pair { right: u32, left: u32 } align 4, written by "host");
flat!(aligned: Pair { left: u32, right: u32 } align 8, written by "host");
flat!(retyped: Pair { left: u32, right: i32 } align 4, written by "host");
flat!(halved: Pair { left: u32, right: [u16; 2] } align 4, written by "host");

const fn hash<T: Layout>() -> u64 {
    T::DESCRIPTOR.hash
}

#[test]
fn renaming_an_alias_keeps_the_hash() {
    assert_eq!(hash::<celsius::Tree>(), hash::<kelvin::Tree>());
    assert_eq!(hash::<celsius::Tree>(), hash::<plain::Tree>());
}

#[test]
fn changing_an_alias_target_changes_dependent_hashes() {
    assert_eq!(size_of::<celsius::Tree>(), size_of::<fahrenheit::Tree>(), "of equal size, so the sizes do not tell");
    assert_ne!(hash::<celsius::Leaf>(), hash::<fahrenheit::Leaf>());
    assert_ne!(hash::<celsius::Branch>(), hash::<fahrenheit::Branch>());
    assert_ne!(hash::<celsius::Tree>(), hash::<fahrenheit::Tree>());
    let others = |tree: &[Field]| tree[1].type_hash;
    assert_eq!(others(celsius::Tree::DESCRIPTOR.fields), others(fahrenheit::Tree::DESCRIPTOR.fields), "and nothing beside it");
}

#[test]
fn names_order_types_and_alignment_change_the_hash() {
    let base = hash::<base::Pair>();
    assert_eq!(base, hash::<rewritten::Pair>());
    let drifted = [
        hash::<renamed::Couple>(),
        hash::<field_renamed::Pair>(),
        hash::<swapped::Pair>(),
        hash::<aligned::Pair>(),
        hash::<retyped::Pair>(),
        hash::<halved::Pair>(),
    ];
    for (place, hash) in drifted.into_iter().enumerate() {
        assert_ne!(hash, base, "drift {place}");
        assert!(!drifted[..place].contains(&hash), "drift {place} hashes like one before it");
    }
}

#[test]
fn host_words_hash_like_u64() {
    assert_eq!(hash::<HostWord>(), hash::<u64>());
    assert_eq!(hash::<RingHeader<HostWord>>(), hash::<RingHeader<u64>>());
    assert_ne!(hash::<u64>(), hash::<i64>());
    assert_ne!(hash::<u64>(), hash::<f64>());
    assert_ne!(hash::<[u32; 2]>(), hash::<u64>());
}

#[test]
fn changed_nested_message_types_are_abi_errors() {
    let layout = RingLayout::of::<celsius::Tree>(4).unwrap();
    let header = RingHeader::<HostWord>::new::<celsius::Tree>(&layout, 0);
    assert_eq!(header.geometry::<celsius::Tree>(), Ok(layout));
    assert_eq!(header.geometry::<kelvin::Tree>(), Ok(layout));
    assert!(matches!(header.geometry::<fahrenheit::Tree>(), Err(AttachError::Abi { .. })));
}

#[test]
fn one_changed_layout_changes_the_hash_of_the_set() {
    let whole = set_hash(LAYOUTS);
    for changed in 0..LAYOUTS.len() {
        let mut set = LAYOUTS.to_vec();
        set[changed].hash = AbiHash::new().number(set[changed].hash).finish();
        assert_ne!(set_hash(&set), whole, "{}", set[changed].name);
    }
}

#[test]
fn layouts_have_no_gaps_between_fields() {
    for layout in LAYOUTS {
        let end = layout.fields.iter().fold(0, |end, field| {
            assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
            end + field.size
        });
        assert_eq!(end, layout.size, "{}", layout.name);
    }
}

#[test]
fn layouts_without_a_type_argument_use_u64() {
    assert!(size_of::<ControlBlock>() == 128);
    assert!(size_of::<TelemetryBuffer>() == 64);
    assert!(size_of::<RingHeader>() == 384);
    assert_eq!(TypeId::of::<ControlBlock>(), TypeId::of::<ControlBlock<u64>>());
}
