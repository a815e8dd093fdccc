//! `docs/guide/layouts.md` and its pictures: generated from the descriptors, or compared.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use ringmem::{Abi, Field, LayoutDescriptor, Shape, describe};
use ringmem_kernels::ABI;

use crate::Failure;

const HEAD: &str = "\
# Layouts

The layouts of all structs that host and device share. `cargo xtask layouts` generates this page from the descriptors that the compiler checks on
every build and target; `cargo xtask layouts --check` fails if the page is out of date. In your own structs, `#[derive(SharedLayout)]` creates the descriptor.

A *word* has 64 bits, in a header shared with another agent or in a message. The colour of a box shows the writer, and a dashed box is reserved. The
cache lines are on the right. `ringmem layout` prints the same on a terminal, and with `--format c` as a header for C and C++.
";

pub fn write() -> Result<(), Failure> {
    let pages = pages();
    fs::create_dir_all(folder())?;
    for (path, text) in &pages {
        crate::write(path, text)?;
    }
    for path in left_over(&pages)? {
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    println!("wrote docs/guide/layouts.md and {} pictures", pages.len() - 1);
    Ok(())
}

pub fn compare() -> Result<(), Failure> {
    let pages = pages();
    let stale = stale(&pages)?;
    if !stale.is_empty() {
        return Err(format!("{}\nrefresh them with `cargo xtask layouts`", stale.join("\n")).into());
    }
    println!("docs/guide/layouts.md and {} pictures are what the structs say", pages.len() - 1);
    Ok(())
}

fn stale(pages: &[(PathBuf, String)]) -> Result<Vec<String>, Failure> {
    let mut stale = Vec::new();
    for (path, text) in pages {
        match fs::read_to_string(path) {
            Ok(old) if old == *text => {}
            Ok(_) => stale.push(format!("{} is not what the structs say", path.display())),
            Err(error) => stale.push(format!("{}: {error}", path.display())),
        }
    }
    stale.extend(left_over(pages)?.iter().map(|path| format!("{} shows a struct that is gone", path.display())));
    Ok(stale)
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut page = format!("{HEAD}\nABI of all of them, in order of name: `{:016x}`.\n", ABI.hash);
    let mut pictures = Vec::new();
    for layout in ABI.layouts {
        let (name, alone) = (layout.name, Abi { layouts: std::slice::from_ref(layout), hash: ABI.hash });
        page += &format!("\n{}\n![The bytes of {name}](layouts/{name}.svg)\n", section(layout));
        pictures.push((folder().join(format!("{name}.svg")), describe::svg(&alone).to_string()));
    }
    [(folder().with_extension("md"), page)].into_iter().chain(pictures).collect()
}

fn section(LayoutDescriptor { name, size, align, fields, hash, .. }: &LayoutDescriptor) -> String {
    let mut text = format!("## {name}\n\n{size} bytes, aligned to {align}, hash `{hash:016x}`.\n\n");
    text += "| offset | bytes | field | type | writer |\n|---:|---:|---|---|---|\n";
    for Field { name, offset, size, layout, writer, .. } in *fields {
        text += &format!("| {offset} | {size} | `{name}` | `{}` | {writer} |\n", type_of(layout));
    }
    text
}

fn type_of(layout: &LayoutDescriptor) -> String {
    match layout.shape {
        Shape::Number | Shape::Struct => layout.name.to_owned(),
        Shape::Array { element, length } => format!("[{}; {length}]", type_of(element)),
    }
}

fn folder() -> PathBuf {
    crate::root().join("docs/guide/layouts")
}

fn left_over(pages: &[(PathBuf, String)]) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut left_over = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if !pages.iter().any(|(known, _)| *known == path) {
            left_over.push(path);
        }
    }
    Ok(left_over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_has_a_section_and_a_picture() {
        let pages = pages();
        assert_eq!(pages.len(), ABI.layouts.len() + 1);
        for layout in ABI.layouts {
            assert!(pages[0].1.contains(&format!("\n## {}\n", layout.name)), "{}", layout.name);
            let picture = folder().join(format!("{}.svg", layout.name));
            assert!(pages.iter().any(|(path, text)| *path == picture && text.starts_with("<svg ")), "{}", layout.name);
        }
    }

    #[test]
    fn the_checked_in_pages_match_the_structs() {
        assert_eq!(stale(&pages()).unwrap(), [""; 0]);
    }

    #[test]
    fn changed_missing_and_extra_pages_are_stale() {
        let mut pages = pages();
        pages[0].1 += "another struct";
        pages[1].0.set_file_name("Another.svg");
        let stale = stale(&pages).unwrap();
        assert_eq!(stale.len(), 3, "{stale:?}");
        assert!(stale[0].ends_with("docs/guide/layouts.md is not what the structs say"), "{stale:?}");
        assert!(stale[1].contains("Another.svg: "), "{stale:?}");
        let gone = format!("{}.svg shows a struct that is gone", ABI.layouts[0].name);
        assert!(stale[2].ends_with(&gone), "{stale:?}");
    }
}
