use ringmem_layouts::kernel::{DevicePointer, Kernel, Persistent, Rings};
use ringmem_layouts::{Abi, Image, LAYOUTS};

const IMAGE: Image = Image { ptx: b"", host: &[], abi: Abi::of(LAYOUTS) };

#[test]
fn kernels_have_a_name_and_argument_count() {
    let kernel = Kernel::<(u64, u64, u64)>::new("scale");
    #[allow(clippy::clone_on_copy, reason = "the subject of the test")]
    let copy = kernel.clone();
    assert_eq!((copy.name(), copy.takes()), ("scale", 3));
    assert_eq!(format!("{copy:?}"), r#"Kernel { name: "scale", takes: 3 }"#);
    let entry = kernel.entry(|_, _| {});
    assert_eq!((entry.name, entry.arguments), ("scale", 3));
}

#[test]
fn a_persistent_kernel_takes_four_arguments() {
    // SAFETY: never launched.
    let kernel = unsafe { Persistent::<f32, f32>::new("square", IMAGE, Rings::FlagPerSlot) };
    #[allow(clippy::clone_on_copy, reason = "the subject of the test")]
    let copy = kernel.clone();
    assert_eq!((copy.name(), copy.rings(), copy.kernel().takes()), ("square", Rings::FlagPerSlot, 4));
    assert_eq!(format!("{copy:?}"), r#"Persistent { name: "square", rings: FlagPerSlot, .. }"#);
}

#[test]
fn device_pointers_advance_by_elements_and_compare_by_address() {
    let first = DevicePointer::<u32>::new(0x1000);
    #[allow(clippy::clone_on_copy, reason = "the subject of the test")]
    let second = first.clone().add(2);
    assert_eq!((second.address(), second == first, second == DevicePointer::new(0x1008)), (0x1008, false, true));
    assert_eq!(format!("{:?}", second.cast::<u8>()), "0x1008");
}
