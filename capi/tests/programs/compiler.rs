//! Compiles programs against the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use crate::process::ended;

#[derive(Clone, Copy, PartialEq)]
pub enum Link {
    Shared,
    Static,
    /// The shared library, with AddressSanitizer and UndefinedBehaviorSanitizer in the program.
    Sanitized,
}

pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
pub const C: [&str; 2] = ["gcc", "-std=c11"];
pub const CPP17: [&str; 2] = ["g++", "-std=c++17"];
pub const CPP20: [&str; 2] = ["g++", "-std=c++20"];

/// Whether gcc has the sanitizers' libraries.
pub static HAS_SANITIZERS: LazyLock<bool> = LazyLock::new(|| {
    let folder = folder("sanitizers");
    fs::write(folder.join("empty.c"), "int main(void) { return 0; }\n").unwrap();
    let compiled = compile(C, &folder.join("empty.c"), &folder, Link::Sanitized);
    let has = compiled.is_ok_and(|program| run(&program, &[]).status.success());
    if !has {
        eprintln!("left out: programs with sanitizers, which gcc cannot link here (on Debian: apt-get install libasan8 libubsan1)");
    }
    has
});

/// Cargo builds the library, as archive and shared, before its tests, which are in the same folder.
pub fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("this test's program");
    test.parent().expect("a folder of cargo's").to_owned()
}

/// A folder for the programs of a test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi").join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles without warnings, with the headers in `includes`; returns the program, or the compiler's errors.
pub fn compile([compiler, standard]: [&str; 2], source: &Path, includes: &Path, link: Link) -> Result<PathBuf, String> {
    let program = includes.join(format!("{}{standard}-{}", source.file_stem().unwrap().display(), link as u8));
    let mut command = Command::new(compiler);
    command.args([standard, "-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-I"]).arg(includes);
    command.arg("-I").arg(Path::new(FOLDER).join("include")).arg(source).arg("-o").arg(&program);
    let libraries = libraries();
    match link {
        Link::Static => {
            command.arg(libraries.join("libringmem_capi.a")).args(["-lgcc_s", "-lm", "-ldl"]);
        }
        Link::Shared | Link::Sanitized => {
            // The old tag precedes LD_LIBRARY_PATH, in which cargo's other folder may have an older library.
            let path = format!("-Wl,--disable-new-dtags,-rpath,{}", libraries.display());
            command.arg("-L").arg(&libraries).args(["-lringmem_capi", &path]);
        }
    }
    if link == Link::Sanitized {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    let output = command.arg("-lpthread").output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {compiler} ({error}); on Debian: apt-get install {compiler}"));
    if output.status.success() { Ok(program) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

pub fn run(program: &Path, arguments: &[&Path]) -> Output {
    let mut command = Command::new(program);
    ended(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Demands that a program prints `expected` and succeeds.
pub fn prints(program: &Path, arguments: &[&Path], expected: &str) {
    let output = run(program, arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text == expected, "{}: {output:?}", program.display());
}
