//! `capi/include/ringmem.h`: generated from the exported functions, or compared.

use std::path::PathBuf;

use crate::Failure;

pub fn write() -> Result<(), Failure> {
    crate::write(&path(), &text()?)?;
    println!("wrote {}", path().display());
    Ok(())
}

pub fn compare() -> Result<(), Failure> {
    if crate::read(&path())? != text()? {
        return Err(format!("{} is out of date: run `cargo xtask header`", path().display()).into());
    }
    println!("{} has the functions of capi/src", path().display());
    Ok(())
}

fn path() -> PathBuf {
    crate::root().join("capi/include/ringmem.h")
}

fn text() -> Result<String, Failure> {
    let folder = crate::root().join("capi");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let header = cbindgen::generate_with_config(folder, config)?;
    let mut text = Vec::new();
    header.write(&mut text);
    // The heading that clippy demands of an unsafe function.
    Ok(String::from_utf8(text)?.replace("// # Safety\n//\n// ", "// The caller promises: "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_header_has_the_exported_functions() {
        super::compare().unwrap();
    }
}
