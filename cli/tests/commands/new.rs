use std::fs;
use std::path::Path;

use ringmem_kernels::IMAGE;

use crate::program::call;

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
