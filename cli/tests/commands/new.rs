use std::fs;
use std::path::Path;
use std::process::Command;

use ringmem_kernels::IMAGE;

use crate::program::{call, finish};

const FILES: [&str; 6] = ["Cargo.toml", "README.md", "build.rs", "src/lib.rs", "src/main.rs", "tests/step.rs"];

#[test]
fn new_writes_the_files_of_the_example() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout");
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("particles");
    let ran = call(&IMAGE, ["new".as_ref(), package.as_os_str()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    for file in FILES {
        let written = fs::read_to_string(package.join(file)).expect("a file");
        let written = written.replace(&format!("path = \"{}", repository.display()), "path = \"../..");
        let example = fs::read_to_string(repository.join("examples/workspace").join(file)).expect("a file");
        assert_eq!(written, example, "{file}");
    }
}

#[test]
fn the_package_is_named_after_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("my-kernels");
    fs::create_dir(&package).expect("an empty folder");
    let ran = call(&IMAGE, ["new".as_ref(), package.as_os_str()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let read = |file: &str| fs::read_to_string(package.join(file)).expect("a file");
    assert!(read("Cargo.toml").contains("name = \"my-kernels\""));
    assert!(read("src/main.rs").starts_with("use my_kernels::"));
}

/// A folder with what `new` needs of a checkout.
fn checkout(folder: &Path) {
    for package in ["kernels-rs", "ptx-builder"] {
        fs::create_dir_all(folder.join(package)).expect("a folder");
        fs::write(folder.join(package).join("Cargo.toml"), "").expect("a file");
    }
}

#[test]
fn placeholders_in_the_path_of_the_checkout_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = folder.path().canonicalize().expect("a folder").join("NAME-CRATE-CHECKOUT \t\"q\"");
    checkout(&ours);
    let package = folder.path().join("my-kernels");
    let ran = call(&IMAGE, ["new".as_ref(), package.as_os_str(), "--path".as_ref(), ours.as_os_str()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a file");
    let expected = ours.display().to_string().replace('"', "\\\"").replace('\t', "\\u0009");
    assert!(manifest.contains(&format!("ringmem = {{ path = \"{expected}\"")), "{manifest}");
    assert!(manifest.contains("name = \"my-kernels\""), "{manifest}");
}

#[test]
fn the_current_folder_gives_its_name_to_a_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("my-kernels");
    fs::create_dir(&package).expect("an empty folder");
    let new_here = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(["new", "."]).current_dir(&package);
        finish(program)
    };
    let ran = new_here();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(fs::read_to_string(package.join("Cargo.toml")).expect("a file").contains("name = \"my-kernels\""));
    new_here().refuses(1, &["my-kernels exists", "name a new or empty folder"]);
    call(&IMAGE, ["new", "/"]).refuses(2, &["/ is not the name of a package"]);
}

#[test]
fn invalid_names_folders_and_checkouts_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let spelled = "use lower-case letters, digits, - and _, and begin with a letter";
    let keyword = "it is a keyword of Rust: choose another";
    let reserved = "it is reserved for a crate or a folder of the build: choose another";
    for (name, reason) in [
        ("7up", spelled),
        ("a b", spelled),
        ("übung", spelled),
        ("Step", spelled),
        ("Self", spelled),
        ("fn", keyword),
        ("self", keyword),
        ("gen", keyword),
        ("test", reserved),
        ("std", reserved),
        ("core", reserved),
        ("ringmem", reserved),
        ("ringmem-kernels", reserved),
        ("ringmem_kernels", reserved),
        ("ringmem-derive", reserved),
        ("ringmem-layouts", reserved),
        ("compiler_builtins", reserved),
        ("deps", reserved),
    ] {
        call(&IMAGE, ["new".as_ref(), path(name).as_os_str()]).refuses(2, &[name, "not the name of a package", reason]);
        assert!(!path(name).exists(), "{name}");
    }
    fs::create_dir(path("mine")).expect("a folder");
    fs::write(path("mine/kept"), "").expect("a file");
    fs::write(path("file"), "").expect("a file");
    for name in ["mine", "file"] {
        let facts = [&format!("{name} exists"), "name a new or empty folder"];
        call(&IMAGE, ["new".as_ref(), path(name).as_os_str()]).refuses(1, &facts);
    }
    assert_eq!(fs::read_dir(path("mine")).expect("a folder").count(), 1);
    let elsewhere = folder.path().as_os_str();
    call(&IMAGE, ["new".as_ref(), path("ours").as_os_str(), "--path".as_ref(), elsewhere])
        .refuses(2, &["not a checkout of ringmem", "--path"]);
    assert!(!path("ours").exists());
}
