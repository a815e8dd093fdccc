//! [`Package`]: which package and library a [`Builder`](crate::Builder) compiles.
//!
//! Cargo's `--package NAME` is ambiguous for a package with the name of one of its dependencies, and a library can have another name than its
//! package. `cargo metadata` has both: the manifest selects the package, and the library's name is that of cargo's files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Compiler, Error, output};

/// A member of the manifest's workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    name: String,
    /// Its own manifest.
    pub manifest: PathBuf,
    /// The name of the library's crate.
    pub library: String,
    /// With the versions and features of dependencies.
    pub workspace: PathBuf,
}

impl Package {
    /// A file name for this package, in a directory that other packages use too.
    pub fn file_stem(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.manifest.hash(&mut hasher);
        format!("{}-{:016x}", self.name, hasher.finish())
    }
}

pub(crate) fn find(compiler: &Compiler, manifest: &Path, name: &str) -> Result<Package, Error> {
    let mut command = compiler.cargo();
    command.args(["metadata", "--no-deps", "--quiet", "--format-version", "1", "--manifest-path"]).arg(manifest);
    selected(&output(command)?, name).map_err(|why| Error::NoPackage { name: name.to_owned(), manifest: manifest.to_owned(), why })
}

fn selected(metadata: &str, name: &str) -> Result<Package, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| format!("`cargo metadata` printed no JSON: {error}"))?;
    let members = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let Some(package) = members.iter().find(|package| package["name"] == name) else {
        return Err(format!("its workspace has {}", members.iter().map(named).collect::<Vec<_>>().join(", ")));
    };
    let kinds = |target: &Value| target["kind"].as_array().cloned().unwrap_or_default();
    let is_library =
        |target: &&Value| kinds(target).iter().any(|kind| ["lib", "rlib", "cdylib", "dylib", "staticlib"].iter().any(|of| kind == of));
    let library =
        package["targets"].as_array().and_then(|targets| targets.iter().find(is_library)).and_then(|target| target["name"].as_str());
    match (library, package["manifest_path"].as_str()) {
        (Some(library), Some(manifest)) => {
            let workspace = metadata["workspace_root"].as_str().unwrap_or_default().into();
            Ok(Package { name: name.to_owned(), manifest: manifest.into(), library: library.replace('-', "_"), workspace })
        }
        _ => Err("it has no library: kernels are in `src/lib.rs`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"workspace_root":"/w","packages":[
        {"name":"host","manifest_path":"/w/host/Cargo.toml","targets":[{"kind":["bin"],"name":"host"}]},
        {"name":"libc","manifest_path":"/w/libc/Cargo.toml","targets":[
            {"kind":["custom-build"],"name":"build-script-build"},
            {"kind":["lib","cdylib"],"name":"my-kernels"}]}]}"#;

    #[test]
    fn a_library_with_another_name_than_its_package_is_found() {
        let found = selected(METADATA, "libc").unwrap();
        let expected = Package {
            name: "libc".to_owned(),
            manifest: "/w/libc/Cargo.toml".into(),
            library: "my_kernels".to_owned(),
            workspace: "/w".into(),
        };
        assert_eq!(found, expected);
        let other = Package { manifest: "/other/libc/Cargo.toml".into(), ..expected };
        assert_ne!(found.file_stem(), other.file_stem());
    }

    #[test]
    fn a_missing_package_and_a_package_without_a_library_are_errors() {
        assert_eq!(selected(METADATA, "kernels").unwrap_err(), "its workspace has host, libc");
        assert!(selected(METADATA, "host").unwrap_err().contains("no library"));
        assert!(selected("error", "host").unwrap_err().contains("no JSON"));
        assert!(selected("{}", "host").is_err());
    }
}
