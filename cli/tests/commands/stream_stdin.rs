use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use ringmem_kernels::IMAGE;

use crate::bytes::{file, noise, text};
use crate::program::{Ran, call, finish_fed};

fn piped(bytes: Vec<u8>, piece: usize, arguments: &[&str]) -> Ran {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(["stream", "-"]).args(arguments);
    finish_fed(program, Stdio::piped(), move |mut pipe| {
        let _ = bytes.chunks(piece.max(1)).try_for_each(|piece| pipe.write_all(piece));
    })
}

#[test]
fn a_pipe_and_a_file_give_equal_results() {
    for (length, piece) in [(0, 1), (1, 1), (4096, 4096), (4097, 7), (3_000_001, 65_537)] {
        let bytes = noise(length);
        let file = file(&bytes);
        let expected = call(&IMAGE, ["stream", text(file.path()), "--json"]).json();
        let found = piped(bytes, piece, &["--json", "--chunk-size", "64KiB"]).json();
        for fact in ["bytes", "checksum", "histogram", "verified"] {
            assert_eq!(found[fact], expected[fact], "{fact} of {length} bytes");
        }
    }
    let page = piped(noise(10_000), 100, &[]);
    assert!(page.code == 0 && page.out.starts_with("standard input: "), "{page:?}");
}

#[test]
fn a_file_on_standard_input_is_streamed_from_its_start() {
    let file = file(&noise(100_000));
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(["stream", "-", "--json"]);
    let found = finish_fed(program, Stdio::from(File::open(file.path()).expect("it is ours")), |_| {}).json();
    assert_eq!((&found["bytes"], &found["verified"]), (&100_000.into(), &true.into()));
}

#[test]
fn a_pipe_is_transformed_into_a_file() {
    let place = tempfile::tempdir().expect("a directory");
    let to = place.path().join("to");
    let bytes = noise(1_000_001);
    let expected: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x5A).collect();
    let found = piped(bytes, 10_000, &["--out", text(&to), "--transform", "xor:90", "--json"]).json();
    assert_eq!((&found["bytes"], &found["verified"]), (&1_000_001.into(), &true.into()));
    assert!(std::fs::read(&to).expect("it is there") == expected);
}
