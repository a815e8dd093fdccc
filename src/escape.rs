//! Text of users and peers in each output format: one function per format, which every writer of that format uses.
//!
//! Public for the program `ringmem` and the development tasks; not part of the API.

use core::fmt::{self, Display, Write};

/// Returns false for control characters, bidirectional controls, line and paragraph separators, and noncharacters: they move the cursor,
/// reorder or break a line, or are invalid in XML. Source: Unicode Standard Annex 9, section 2, and The Unicode Standard,
/// 23.7.
#[must_use]
pub fn is_printable(character: char) -> bool {
    let is_bidirectional = matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let is_noncharacter = matches!(character, '\u{fdd0}'..='\u{fdef}') || u32::from(character) & 0xfffe == 0xfffe;
    !(character.is_control() || is_bidirectional || is_separator || is_noncharacter)
}

fn each(text: &str, one: impl Fn(char, &mut fmt::Formatter<'_>) -> fmt::Result) -> impl Display {
    fmt::from_fn(move |f| text.chars().try_for_each(|character| one(character, f)))
}

/// For a terminal: unprintable characters as in Rust, such as `\u{1b}`.
pub fn terminal(text: &str) -> impl Display {
    each(text, |character, f| match is_printable(character) {
        true => f.write_char(character),
        false => write!(f, "{}", character.escape_default()),
    })
}

fn as_json(character: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match character {
        '"' | '\\' => write!(f, "\\{character}"),
        _ if is_printable(character) => f.write_char(character),
        _ => character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}")),
    }
}

/// A string of JSON, with its quotes. A parser returns the same text (RFC 8259); a terminal that shows the JSON is not controlled by it.
pub fn json(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_char('"')?;
        each(text, as_json).fmt(f)?;
        f.write_char('"')
    })
}

/// A JSON document without line breaks, with the unprintable characters of its strings escaped: outside strings, JSON has none.
pub fn json_document(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        // By pieces: a document may have gigabytes.
        for piece in text.split_inclusive(|character| !is_printable(character)) {
            match piece.char_indices().next_back() {
                Some((at, last)) if !is_printable(last) => {
                    f.write_str(&piece[..at])?;
                    as_json(last, f)?;
                }
                _ => f.write_str(piece)?,
            }
        }
        Ok(())
    })
}

/// The contents of an element or of a quoted attribute of XML, as in SVG. XML 1.0 has no notation for most unprintable characters: blanks
/// become spaces, others U+FFFD.
pub fn xml(text: &str) -> impl Display {
    each(text, |character, f| match character {
        '&' => f.write_str("&amp;"),
        '<' => f.write_str("&lt;"),
        '>' => f.write_str("&gt;"),
        '"' => f.write_str("&quot;"),
        '\'' => f.write_str("&#39;"),
        _ => f.write_char(replaced(character)),
    })
}

const fn is_blank(character: char) -> bool {
    matches!(character, '\0'..=' ' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn replaced(character: char) -> char {
    match character {
        _ if is_printable(character) => character,
        _ if is_blank(character) => ' ',
        _ => char::REPLACEMENT_CHARACTER,
    }
}

/// A comment of C or C++ in one line. Sequences that end or open a comment of C are split.
pub fn comment(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        let mut last = ' ';
        for character in text.chars().map(replaced) {
            if matches!((last, character), ('*', '/') | ('/', '*')) {
                f.write_char(' ')?;
            }
            f.write_char(character)?;
            last = character;
        }
        Ok(())
    })
}

/// Characters at the beginning of a formula in a spreadsheet's cell. Source: OWASP, "CSV Injection".
const FORMULAS: [char; 8] = ['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];

/// A cell of comma-separated values (RFC 4180). An apostrophe precedes text that a spreadsheet would evaluate.
pub fn csv(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        // Some importers remove blanks at the beginning.
        let mark = if text.trim_start().starts_with(FORMULAS) { "'" } else { "" };
        if text.contains([',', '"', '\n', '\r']) { write!(f, "\"{mark}{}\"", text.replace('"', "\"\"")) } else { write!(f, "{mark}{text}") }
    })
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::{comment, csv, is_printable, json, json_document, terminal, xml};

    /// A control character of ASCII, one of C1, bidirectional controls, separators, noncharacters.
    const UNPRINTABLE: [char; 13] = [
        '\0',
        '\u{1b}',
        '\u{7f}',
        '\u{9b}',
        '\u{85}',
        '\u{61c}',
        '\u{200f}',
        '\u{202e}',
        '\u{2066}',
        '\u{2028}',
        '\u{fffe}',
        '\u{fdd0}',
        '\u{1ffff}',
    ];
    const PRINTABLE: &str = "a \u{e9} e\u{301} \u{4e2d} \u{1f469}\u{200d}\u{1f680} \u{646}\u{200c}\u{647}";

    #[test]
    fn text_of_any_language_is_printable_and_controls_are_not() {
        assert!(PRINTABLE.chars().all(is_printable));
        assert_eq!(UNPRINTABLE.map(is_printable), [false; 13]);
    }

    #[test]
    fn unprintable_characters_reach_no_format_for_people() {
        for character in UNPRINTABLE {
            let text = std::format!("x{character}y");
            let document = serde_json::to_string(&text).expect("text");
            let shown = [
                terminal(&text).to_string(),
                json(&text).to_string(),
                json_document(&document).to_string(),
                xml(&text).to_string(),
                comment(&text).to_string(),
            ];
            for shown in &shown {
                assert!(shown.chars().all(is_printable), "{shown:?}");
            }
            for json in &shown[1..3] {
                assert_eq!(serde_json::from_str::<std::string::String>(json).expect("JSON"), text);
            }
        }
        for shown in [terminal(PRINTABLE).to_string(), xml(PRINTABLE).to_string(), csv(PRINTABLE).to_string()] {
            assert_eq!(shown, PRINTABLE);
        }
        assert_eq!(terminal("a\u{1b}[31m\n\u{202e}").to_string(), r"a\u{1b}[31m\n\u{202e}");
    }

    #[test]
    fn a_cell_is_no_formula_and_no_separator() {
        for (text, cell) in [
            ("=1+1", "'=1+1"),
            ("+x", "'+x"),
            ("-x", "'-x"),
            ("@x", "'@x"),
            ("\t=x", "'\t=x"),
            ("\r=x", "\"'\r=x\""),
            ("\t x", "\t x"),
            ("\u{ff1d}x", "'\u{ff1d}x"),
            ("=\"a\",b", "\"'=\"\"a\"\",b\""),
            ("a=b", "a=b"),
            ("'x", "'x"),
            ("", ""),
        ] {
            assert_eq!(csv(text).to_string(), cell);
        }
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(xml("<a b='\"'>&").to_string(), "&lt;a b=&#39;&quot;&#39;&gt;&amp;");
        assert_eq!(comment("*/ /* **//").to_string(), "* / / * ** //");
    }
}
