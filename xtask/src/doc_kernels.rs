//! The kernels in code blocks of the documentation, compiled for a GPU: doctests compile the same blocks for the host only. The libraries that the blocks use
//! compile without warnings.
//!
//! 1. Every Rust code block of a Markdown file or a doc comment that contains device code is checked, unless it is marked `ignore` or `compile_fail`.
//! 2. Each block is a package, since a crate has one `kernels!`, and all are one workspace.
//! 3. A package's source has the block's lines at their line numbers, and nothing else: an error names the file and line of the documentation.
//!
//! It removes the host's part of a block, as a user of `kernels!` keeps it in another file: `use` of `ringmem` and `std`, `fn main`, and statements,
//! which rustdoc puts into a `fn main`. It recognises them by formatted text: an item begins at the first column.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, image};

/// Any of them makes a block device code.
const DEVICE: [&str; 4] = ["kernels! {", "Handler<", ": Machine>", ": Machine,"];

/// Attributes of rustdoc on blocks that it compiles.
const COMPILED: [&str; 4] = ["", "rust", "no_run", "should_panic"];

/// How an item begins, after attributes and comments. A statement can be an `unsafe` block.
const ITEMS: [&str; 16] = [
    "pub ",
    "pub(",
    "use ",
    "struct ",
    "enum ",
    "union ",
    "trait ",
    "impl",
    "fn ",
    "unsafe fn ",
    "unsafe impl",
    "const ",
    "static ",
    "type ",
    "mod ",
    "kernels! {",
];

const TARGET: &str = "nvptx64-nvidia-cuda";

/// A code block, without the prefixes of comments and hidden lines.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The line number of its first line, from 1.
    first: usize,
    lines: Vec<String>,
}

pub fn run() -> Result<(), Failure> {
    let Some(compiler) = image::compiler_or_skipped()? else { return Ok(()) };
    let mut packages = Vec::new();
    for file in files()? {
        let text = crate::read(&crate::root().join(&file))?;
        let blocks = blocks(&text, file.ends_with(".rs")).into_iter().filter(|block| block.is_device_code());
        for (block, number) in blocks.zip(1..) {
            packages.push(Package::new(&file, number, block)?);
        }
    }
    if packages.is_empty() {
        return Err("no code block contains a kernel: `kernels! {` in README.md was expected".into());
    }
    let target = crate::target().join("doc-kernels");
    let workspace = target.join("workspace");
    // Without the packages of blocks that were removed.
    match std::fs::remove_dir_all(&workspace) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {error}", workspace.display()).into()),
        _ => {}
    }
    std::fs::create_dir_all(&workspace)?;
    crate::write(&workspace.join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n")?;
    // The versions that the other checks use.
    std::fs::copy(crate::root().join("Cargo.lock"), workspace.join("Cargo.lock"))?;
    packages.iter().try_for_each(|package| package.write(&workspace))?;
    let mut command = compiler.cargo();
    command
        .current_dir(&workspace)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", "-C target-cpu=sm_70 -Z crate-attr=feature(abi_ptx) -A unused-features")
        // Of the libraries that the blocks use: a user's build prints the warnings of a dependency by path or git.
        .env("CARGO_BUILD_WARNINGS", "deny")
        .args(["check", "--lib", "--workspace", "--keep-going", "-Z", "build-std=core", "-Z", "warnings", "--target", TARGET]);
    ringmem_ptx_builder::output(command).map_err(|error| as_documentation(&error.to_string(), &packages))?;
    for package in &packages {
        println!("{}:{}", package.file, package.block.first);
    }
    println!("{} code blocks with kernels compile for {TARGET} with {}", packages.len(), compiler.version);
    Ok(())
}

/// Markdown and Rust files, relative to the root.
fn files() -> Result<Vec<String>, Failure> {
    let mut git = Command::new("git");
    git.current_dir(crate::root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.rs"]);
    let listed = ringmem_ptx_builder::output(git)?;
    // A deleted file is listed until the deletion is staged.
    Ok(listed.lines().filter(|file| crate::root().join(file).exists()).map(str::to_owned).collect())
}

/// The blocks that rustdoc compiles. In a Rust file they are in doc comments.
fn blocks(text: &str, is_rust: bool) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<(bool, Block)>);
    for (line, number) in text.lines().zip(1..) {
        let content = if is_rust { of_doc_comment(line) } else { Some(line) };
        let Some(content) = content else {
            open = None;
            continue;
        };
        let fence = content.trim_start().strip_prefix("```");
        open = match (fence, open) {
            (Some(info), None) => Some((is_compiled(info), Block { first: number + 1, lines: Vec::new() })),
            (Some(_), Some((is_compiled, block))) => {
                blocks.extend(is_compiled.then_some(block));
                None
            }
            (None, Some((is_compiled, mut block))) => {
                block.lines.push(shown(content).to_owned());
                Some((is_compiled, block))
            }
            (None, None) => None,
        };
    }
    blocks
}

fn of_doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let content = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    Some(content.strip_prefix(' ').unwrap_or(content))
}

fn is_compiled(info: &str) -> bool {
    info.trim().split(',').all(|word| COMPILED.contains(&word.trim()))
}

/// A line as rustdoc compiles it: `# ` hides it from the page.
fn shown(line: &str) -> &str {
    match line.trim_start().strip_prefix('#') {
        Some("") => "",
        Some(hidden) => hidden.strip_prefix(' ').unwrap_or(line),
        None => line,
    }
}

impl Block {
    fn is_device_code(&self) -> bool {
        is_device_code(self.lines.iter().map(String::as_str))
    }

    /// Its lines, with an empty line for each of the host.
    fn on_device(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        // The examples of `ringmem-layouts` call it by the name of the crate that exports it.
        let is_renamed = lines.iter().any(|line| line.ends_with(" as ringmem;"));
        let mut device = Vec::new();
        // An item or statement, with the attributes and comments before it.
        for item in lines.chunk_by(|before, line| leads(before) || !begins(line)) {
            let head = item.iter().find(|line| begins(line) && !leads(line)).copied().unwrap_or_default();
            let of_host = ["use std::", if is_renamed { "use std::" } else { "use ringmem::" }, "fn main("];
            let is_device = ITEMS.iter().any(|words| head.starts_with(words)) && !of_host.iter().any(|words| head.starts_with(words));
            device.extend(item.iter().map(|line| if is_device { line } else { "" }));
        }
        device
    }
}

fn is_device_code<'l>(mut lines: impl Iterator<Item = &'l str>) -> bool {
    lines.any(|line| DEVICE.iter().any(|device| line.contains(device)))
}

/// Whether an item or statement begins here, rather than continues.
fn begins(line: &str) -> bool {
    line.starts_with(|first: char| !first.is_whitespace() && !"})]{".contains(first)) && !line.starts_with("where")
}

/// Whether the line is an attribute or a comment, which belongs to the next item.
fn leads(line: &str) -> bool {
    line.starts_with("#[") || line.starts_with("//")
}

struct Package {
    name: String,
    file: String,
    block: Block,
}

impl Package {
    fn new(file: &str, number: usize, block: Block) -> Result<Self, Failure> {
        if !is_device_code(block.on_device().into_iter()) {
            return Err(format!("{file}:{}: a kernel must be an item at the first column, outside of `fn main`", block.first).into());
        }
        let place: String = file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // The number of the block in its file: a line number would change with each edit, and leave a build behind.
        Ok(Self { name: format!("block-{place}-{number}"), file: file.to_owned(), block })
    }

    fn manifest(&self) -> String {
        let dependency = |folder: &str| crate::root().join(folder).display().to_string();
        format!(
            "[package]\nname = {:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = {:?}\n\n[dependencies]\n\
             ringmem-kernels = {{ path = {:?}, default-features = false }}\nringmem-layouts = {{ path = {:?}, default-features = false }}\n\n\
             [lints.rust]\nwarnings = \"allow\"\n",
            self.name,
            self.file,
            dependency("kernels-rs"),
            dependency("layouts"),
        )
    }

    /// A fence is above the block, so the first line is free.
    fn source(&self) -> String {
        let mut source = "#![no_std]\n".to_owned();
        source.extend(std::iter::repeat_n('\n', self.block.first - 2));
        self.block.on_device().iter().for_each(|line| writeln!(source, "{line}").expect("a string grows"));
        source
    }

    fn write(&self, workspace: &Path) -> Result<(), Failure> {
        let folder = workspace.join(&self.name);
        let source: PathBuf = folder.join(&self.file);
        std::fs::create_dir_all(source.parent().unwrap_or(&folder))?;
        crate::write(&folder.join("Cargo.toml"), &self.manifest())?;
        crate::write(&source, &self.source())
    }
}

/// The compiler's messages, with the paths of the documentation.
fn as_documentation(said: &str, packages: &[Package]) -> String {
    packages.iter().fold(said.to_owned(), |said, Package { name, file, .. }| said.replace(&format!("{name}/{file}"), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Page

```toml
kernels! { = 1
```

```rust
use std::time::Duration;

use ringmem::{
    backend::host::HostBackend,
};
use ringmem_kernels::{SharedLayout, kernels};

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
pub struct Sample {
    pub value: f64,
}

kernels! {
    /// Squares a value.
    pub persistent fn square(sample: &Sample, squared: &mut Sample) {
        squared.value = sample.value * sample.value;
    }
}

unsafe fn more<M>(machine: &M)
where
    M: Copy,
{
}

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let backend = HostBackend::builder()
    .build()?;
# Ok(())
# }
```
";

    #[test]
    fn the_device_part_keeps_its_lines_and_the_host_part_is_empty() {
        let [block] = &blocks(PAGE, false)[..] else { panic!("one block of Rust") };
        assert!(block.is_device_code());
        let page: Vec<&str> = PAGE.lines().collect();
        let package = Package::new("page.md", 1, Block { first: block.first, lines: block.lines.clone() }).unwrap();
        let source = package.source();
        let kept: Vec<usize> = source.lines().zip(1..).skip(1).filter(|(line, _)| !line.is_empty()).map(|(_, number)| number).collect();
        let text_of = |number: usize| source.lines().nth(number - 1).unwrap();
        assert!(kept.iter().all(|&number| text_of(number) == page[number - 1]), "{source}");
        let heads: Vec<&str> = kept.iter().map(|&number| text_of(number)).filter(|line| begins(line)).collect();
        assert_eq!(
            heads,
            [
                "use ringmem_kernels::{SharedLayout, kernels};",
                "#[derive(Clone, Copy, SharedLayout)]",
                "#[repr(C)]",
                "pub struct Sample {",
                "kernels! {",
                "unsafe fn more<M>(machine: &M)"
            ]
        );
        assert!(source.contains("\nwhere\n    M: Copy,\n{\n}\n"), "{source}");
    }

    #[test]
    fn statements_without_a_main_are_of_the_host() {
        let page = "```\nunsafe fn send<M: Machine>(machine: &M) {}\n\nlet mut ring = 7;\nassert_eq!(ring,\n    7,\n);\n// SAFETY: above.\nunsafe { send(&Host) }\n```\n";
        let [block] = &blocks(page, false)[..] else { panic!("one block") };
        assert_eq!(block.on_device(), ["unsafe fn send<M: Machine>(machine: &M) {}", "", "", "", "", "", "", ""]);
    }

    #[test]
    fn a_kernel_among_statements_is_an_error() {
        let [block] = blocks("```\nfn main() {\n    kernels! {\n    }\n}\n```\n", false).try_into().unwrap();
        assert!(block.is_device_code());
        let why = Package::new("page.md", 1, block).map(|_| ()).unwrap_err().to_string();
        assert_eq!(why, "page.md:2: a kernel must be an item at the first column, outside of `fn main`");
    }

    #[test]
    fn a_renamed_crate_stays() {
        let page = "```\n# use ringmem_layouts as ringmem;\nuse ringmem::Machine;\n```\n";
        assert_eq!(blocks(page, false)[0].on_device(), ["use ringmem_layouts as ringmem;", "use ringmem::Machine;"]);
        assert_eq!(blocks("```\nuse ringmem::Machine;\n```\n", false)[0].on_device(), [""]);
    }

    #[test]
    fn blocks_of_doc_comments_end_with_the_comment() {
        let source = "fn a() {}\n    /// Text.\n    ///\n    /// ```\n    /// # hidden\n    /// ##[shown]\n    ///     deep\n    /// ```\nfn b() {}\n//! ```\nlet open = 1;\n";
        let lines = ["hidden", "##[shown]", "    deep"].map(str::to_owned).to_vec();
        assert_eq!(blocks(source, true), [Block { first: 5, lines }]);
    }

    #[test]
    fn blocks_that_rustdoc_does_not_compile_are_left_out() {
        for info in ["toml", "text", "sh", "rust,ignore", "compile_fail", "no_run,ignore"] {
            assert!(!is_compiled(info), "{info}");
        }
        for info in ["", "rust", "no_run", "rust,no_run"] {
            assert!(is_compiled(info), "{info}");
        }
    }

    #[test]
    fn errors_name_the_documentation() {
        let block = Block { first: 7, lines: vec!["kernels! {}".to_owned()] };
        let packages = [Package::new("docs/guide/kernel.md", 2, block).unwrap()];
        let said = "error\n --> block-docs-guide-kernel-md-2/docs/guide/kernel.md:9:5";
        assert_eq!(as_documentation(said, &packages), "error\n --> docs/guide/kernel.md:9:5");
    }

    #[test]
    fn the_guide_the_readmes_and_the_macro_have_kernels() {
        for (file, count) in
            [("README.md", 1), ("docs/guide/kernel.md", 3), ("docs/guide/migration.md", 1), ("kernels-rs/src/kernels.md", 3)]
        {
            let text = crate::read(&crate::root().join(file)).unwrap();
            let found = blocks(&text, false).iter().filter(|block| block.is_device_code()).count();
            assert!(found >= count, "{file}: {found}");
        }
        assert!(files().unwrap().iter().any(|file| file == "kernels-rs/src/lib.rs"));
    }
}
