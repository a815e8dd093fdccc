use std::slice;

use ringmem::{Abi, CacheLineAligned, Field, LAYOUTS, Layout, LayoutDescriptor, Shape, describe, layout_set, layout_table};
use serde_json::{Value, json};

#[repr(C)]
struct Inner {
    left: u16,
    right: [u8; 2],
}
layout_table! {
    Inner: size 4, align 2;
    0 left: u16, "host";
    2 right: [u8; 2], "device";
}

#[repr(C, packed)]
struct Order {
    first: u8,
    inner: Inner,
    across: [u8; 7],
    long: [u8; 60],
    a_name_that_is_too_long_for_its_byte: u8,
}
layout_table! {
    Order: size 73, align 1;
    0  first: u8, "a \"quote\", a \\ and a tab\t";
    1  inner: Inner, "not shown: its fields have their own";
    5  across: [u8; 7], "<b>you</b> & me";
    12 long: [u8; 60], "one | `two` | *three*";
    72 a_name_that_is_too_long_for_its_byte: u8, "nobody: zero";
}

const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Order));

fn order() -> Abi {
    Abi { layouts: slice::from_ref(ABI.layouts.last().expect("not empty")), hash: ABI.hash }
}

#[test]
fn json_escapes_any_text() {
    let object: Value = serde_json::from_str(&describe::json(&order()).to_string()).expect("one object");
    assert_eq!(object["abi"], format!("{:016x}", ABI.hash));
    let shown = &object["layouts"][0];
    assert_eq!((&shown["name"], &shown["size"], &shown["align"]), (&json!("Order"), &json!(73), &json!(1)));
    for (shown, field) in shown["fields"].as_array().expect("a list").iter().zip(Order::DESCRIPTOR.fields) {
        let expected = json!({
            "name": field.name, "offset": field.offset, "size": field.size, "type": field.type_name, "writer": field.writer,
        });
        assert_eq!(shown, &expected);
    }
    let object: Value = serde_json::from_str(&describe::json(&Abi::of(&[])).to_string()).expect("one object");
    assert_eq!(object["layouts"], json!([]));
}

fn elements(svg: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    for (place, _) in svg.match_indices('<') {
        let tag = &svg[place + 1..place + svg[place..].find('>').expect("it ends")];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
            continue;
        }
        found.push(name.to_owned());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
    found
}

#[test]
fn an_svg_map_has_a_box_for_every_nested_field() {
    let map = describe::svg(&order()).to_string();
    let elements = elements(&map);
    assert_eq!(elements.iter().filter(|name| *name == "title").count(), 1 + 6);
    assert!(!elements.iter().any(|name| name == "b"));
    for title in [
        "first: u8, 1 bytes at 0, written by a &quot;quote&quot;, a \\ and a tab ",
        "inner.left: u16, 2 bytes at 1, written by host",
        "inner.right: [u8; 2], 2 bytes at 3, written by device",
        "across: [u8; 7], 7 bytes at 5, written by &lt;b&gt;you&lt;/b&gt; &amp; me",
        "long: [u8; 60], 60 bytes at 12, written by one | `two` | *three*",
        "a_name_that_is_too_long_for_its_byte: u8, 1 bytes at 72, written by nobody: zero",
    ] {
        assert!(map.contains(&format!("<title>{title}</title>")), "{title}\n{map}");
    }
    assert!(map.contains(r#"<path d="M444 84H672V118H444Z M64 118H368V152H64Z"/>"#), "{map}");
    assert!(map.contains(">⋮ 40 bytes not shown ⋮<"), "{map}");
    let legend = ["a &quot;quote&quot;", "host", "device", "&lt;b&gt;you&lt;/b&gt; &amp; me", "one | `two` | *three*", "nobody"];
    let place = |(nth, party): (usize, &&str)| {
        let y = if nth < 5 { 48 } else { 63 };
        map.find(&format!(r#"y="{y}">{party}</text>"#)).expect(party)
    };
    let places: Vec<usize> = legend.iter().enumerate().map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[repr(C, align(128))]
struct Lines {
    device: CacheLineAligned<[u64; 16]>,
    host: CacheLineAligned<[u32; 32]>,
}
layout_table! {
    Lines: size 256, align 128;
    0   device: CacheLineAligned<[u64; 16]>, "device";
    128 host: CacheLineAligned<[u32; 32]>, "host";
}

#[test]
fn an_svg_map_shows_the_outer_writer_of_nested_fields_without_one() {
    const LINES: Abi = Abi::of(layout_set!(; Lines));
    let map = describe::svg(&LINES).to_string();
    for (party, title) in [
        ("device", "device.value: [word; 16], 128 bytes at 0, written by device"),
        ("host", "host.value: [u32; 32], 128 bytes at 128, written by host"),
    ] {
        assert!(map.contains(&format!(r#"<g class="{party}"><title>{title}</title>"#)), "{title}\n{map}");
    }
}

#[repr(C)]
struct Partial {
    named: u32,
    unnamed: u32,
}
layout_table! {
    Partial: size 8, align 4;
    0 named: u32, "the trader";
    4 unnamed: u32, "";
}

#[test]
fn an_svg_map_is_neutral_where_a_field_has_no_writer() {
    const PARTIAL: Abi = Abi::of(layout_set!(; Partial));
    let map = describe::svg(&PARTIAL).to_string();
    assert!(map.contains(r#"<g class="none"><title>unnamed: u32, 4 bytes at 4</title>"#), "{map}");
    assert!(map.contains(r#"<g class="other0"><title>named: u32, 4 bytes at 0, written by the trader</title>"#), "{map}");
    assert!(map.contains(">u32</text>") && map.contains(">u32 · the trader</text>"), "{map}");
    let legend = map.matches(r#"<path d="M64 38h14v12h-14Z"/>"#).count();
    assert_eq!((legend, map.matches("h14v12h-14Z").count()), (1, 1), "one party: {map}");
    assert!(!map.contains("></text>"), "{map}");
}

/// Text that a compiler accepts in a type's or writer's place and that no format may pass on.
const HOSTILE: &str = "\0\u{1b}[31m\u{9b}1m\u{202e}\u{2066}\u{2028}\u{fffe}*/ <b> `|";

#[test]
fn no_format_passes_unprintable_characters() {
    const NUMBER: &LayoutDescriptor = &u32::DESCRIPTOR;
    let field = Field { name: "x", offset: 0, size: 4, type_name: HOSTILE, type_hash: NUMBER.hash, layout: NUMBER, writer: HOSTILE };
    let layout =
        LayoutDescriptor { name: "Hostile", size: 4, align: 4, fields: vec![field].leak(), hash: 1, shape: Shape::Struct, kind: 0 };
    let abi = Abi { layouts: vec![layout].leak(), hash: 2 };
    for text in [
        describe::table(&abi).to_string(),
        describe::json(&abi).to_string(),
        describe::c(&abi).to_string(),
        describe::svg(&abi).to_string(),
    ] {
        let passed: Vec<char> = text.chars().filter(|&c| HOSTILE.contains(c) && !c.is_ascii_graphic() && c != ' ').collect();
        assert!(passed.is_empty(), "{passed:?} in {text:?}");
    }
    let object: Value = serde_json::from_str(&describe::json(&abi).to_string()).expect("one object");
    assert_eq!(object["layouts"][0]["fields"][0]["writer"], HOSTILE, "JSON loses nothing");
    assert!(describe::table(&abi).to_string().contains(r"\u{0}\u{1b}[31m\u{9b}1m\u{202e}"), "the table shows them");
}

#[test]
fn the_svg_map_of_the_abi_is_well_formed() {
    let map = describe::svg(&ABI).to_string();
    elements(&map);
    for (layout, path) in [("RingHeader", "constants.message_kind"), ("ControlBlock", "abi_seen"), ("TelemetryBuffer", "depths")] {
        assert!(map.contains(&format!(">{layout}</text>")) && map.contains(&format!("<title>{path}: word, 8 bytes at ")), "{path}");
    }
}

#[test]
fn a_partial_table_names_the_hash_of_its_set() {
    let last = |page: String| page.lines().last().map(str::to_owned).expect("a line");
    assert_eq!(last(describe::table(&ABI).to_string()), format!("ABI {:016x}: all of them together, in order of name", ABI.hash));
    assert_eq!(last(describe::table(&order()).to_string()), format!("ABI {:016x}: the full set that this struct belongs to", ABI.hash));
}
