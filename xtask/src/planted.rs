//! A kernel whose ordering rustc drops: the check must find it in real PTX.

use ringmem_ptx_builder::Builder;

use crate::{Failure, check, image};

const MANIFEST: &str = "\
[package]
name = \"planted\"
version = \"0.0.0\"
edition = \"2024\"

[lib]
path = \"lib.rs\"

[profile.release]
lto = \"fat\"
codegen-units = 1

[workspace]
";

const SOURCE: &str = r#"
#![no_std]

use core::sync::atomic::{AtomicU64, Ordering::AcqRel};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(no_mangle)]
#[used]
pub static RINGMEM_ABI: u64 = 1;

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn planted(counter: *const AtomicU64) {
    unsafe { (*counter).fetch_add(1, AcqRel) };
}
"#;

pub fn run() -> Result<(), Failure> {
    let Some(compiler) = image::compiler_or_skipped()? else { return Ok(()) };
    let place = crate::target().join("planted");
    std::fs::create_dir_all(&place)?;
    crate::write(&place.join("Cargo.toml"), MANIFEST)?;
    crate::write(&place.join("lib.rs"), SOURCE)?;
    let built = Builder::new(place.join("Cargo.toml"), "planted").target(crate::target()).build(&compiler)?;
    let module = check::Module::parse(&built.text)?;
    match &check::rules(&module)[..] {
        [finding] if finding.what == check::What::Scope => {
            println!("the planted kernel is found: {finding}");
            Ok(())
        }
        [] => Err("a kernel with an AcqRel `fetch_add` passed: either this compiler orders it, or the check is blind".into()),
        others => Err(format!("the planted kernel gave other findings: {others:?}").into()),
    }
}
