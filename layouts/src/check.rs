//! Compile-time checks. `#[track_caller]` moves the compiler's error to the macro call, with the field's span.

use crate::{LayoutDescriptor, Shape};

struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl Text {
    const fn new() -> Self {
        Self { bytes: [0; 512], length: 0 }
    }

    const fn text(mut self, text: &str) -> Self {
        let mut i = 0;
        while i < text.len() && self.length < self.bytes.len() {
            self.bytes[self.length] = text.as_bytes()[i];
            self.length += 1;
            i += 1;
        }
        self
    }

    const fn number(self, value: usize) -> Self {
        const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let before = if value >= 10 { self.number(value / 10) } else { self };
        before.text(DIGITS[value % 10])
    }

    const fn bytes(self, count: usize) -> Self {
        self.number(count).text(if count == 1 { " byte" } else { " bytes" })
    }

    #[track_caller]
    const fn fail(&self) -> ! {
        match core::str::from_utf8(self.bytes.split_at(self.length).0) {
            Ok(text) => panic!("{}", text),
            // Cut off within a character.
            Err(_) => panic!("the layout of a shared struct is not as declared"),
        }
    }
}

/// Checks the offset of a field.
#[track_caller]
pub const fn offset(name: &str, field: &str, at: usize, declared: usize) {
    if at != declared {
        Text::new()
            .text(name)
            .text(".")
            .text(field)
            .text(" is at offset ")
            .number(at)
            .text(", declared ")
            .number(declared)
            .text(": change the fields before it, or the declared offset")
            .fail();
    }
}

/// Checks that a field, which ends at `end`, adjoins the next, or the struct's end, at `next`.
#[track_caller]
pub const fn no_padding(name: &str, field: &str, end: usize, next: usize) {
    let text = Text::new();
    if next > end {
        let text = text.bytes(next - end).text(" of padding after ").text(name).text(".").text(field);
        text.text(": add a field _reserved: [u8; ").number(next - end).text("], or reorder the fields if that leaves no padding").fail();
    }
    if next < end {
        text.text("the field after ").text(name).text(".").text(field).text(" is before it: list fields in order of offset").fail();
    }
}

/// Checks declared size and alignment.
#[track_caller]
pub const fn size_and_align<T>(name: &str, size: Option<usize>, align: Option<usize>) {
    match size {
        Some(declared) if declared != size_of::<T>() => {
            let text = Text::new().text(name).text(" has a size of ").bytes(size_of::<T>()).text(", declared ").number(declared);
            text.text(": change its fields, or the declared size").fail();
        }
        _ => {}
    }
    match align {
        Some(declared) if declared != align_of::<T>() => {
            let text = Text::new().text(name).text(" is aligned to ").bytes(align_of::<T>()).text(", declared ").number(declared);
            text.text(": change its repr, or the declared alignment").fail();
        }
        _ => {}
    }
}

/// Checks the number of a message.
#[track_caller]
pub const fn number_of_message(name: &str, kind: u64) {
    if kind == 0 {
        Text::new().text("message = 0 means a number or an array of numbers: give ").text(name).text(" a number from 1").fail();
    }
}

/// Checks that no other layout than `message` or an array of it has its kind.
#[track_caller]
pub const fn another_kind(message: (u64, LayoutDescriptor), others: &[(u64, LayoutDescriptor)]) {
    let (kind, layout) = (message.0, element(&message.1));
    let mut i = 0;
    while i < others.len() {
        let other = element(&others[i].1);
        // Numbers have the kind 0.
        if kind != 0 && others[i].0 == kind && other.hash != layout.hash {
            let text = Text::new().text(other.name).text(" and ").text(layout.name).text(" are both message = ").number(kind as usize);
            text.text(": give each struct another number").fail();
        }
        i += 1;
    }
}

const fn element(mut layout: &LayoutDescriptor) -> &LayoutDescriptor {
    while let Shape::Array { element, .. } = layout.shape {
        layout = element;
    }
    layout
}
