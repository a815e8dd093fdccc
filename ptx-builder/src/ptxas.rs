//! NVIDIA's assembler, where it is installed: it refuses what a driver refuses.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Assembled for if an assembler has no support for the kernels' own processor any more.
const LATER: [&str; 2] = ["sm_75", "sm_100"];

/// `RINGMEM_PTXAS`, or the one in `PATH`.
fn find() -> Option<PathBuf> {
    if let Some(named) = env::var_os("RINGMEM_PTXAS").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join("ptxas")).find(|program| program.is_file())
}

/// Assembles a file, if there is an assembler.
pub(crate) fn assemble(file: &Path, processor: &str) -> Result<(), Error> {
    let Some(ptxas) = find() else { return Ok(()) };
    let run = |processor: &str| {
        let mut command = Command::new(&ptxas);
        command.args(["--gpu-name", processor, "--output-file"]).arg(file.with_extension("cubin")).arg(file);
        let output = command.output().map_err(|source| Error::Run { program: ptxas.clone(), source })?;
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        Ok((!output.status.success()).then(|| said.into_owned()))
    };
    let fault = |line: &str| format!("{}: {line}", ptxas.display());
    match refusal(processor, run)? {
        // A syntax error has many lines.
        Some(said) => Err(Error::Unusable { path: file.to_owned(), faults: said.lines().take(20).map(fault).collect() }),
        None => Ok(()),
    }
}

/// What the assembler says of a file that it refuses. `run` returns the output of a failed run for a processor.
fn refusal(processor: &str, mut run: impl FnMut(&str) -> Result<Option<String>, Error>) -> Result<Option<String>, Error> {
    for processor in [processor].into_iter().chain(LATER) {
        match run(processor)? {
            Some(said) if said.contains("is not defined for option 'gpu-name'") => {}
            // An assembler older than the text says nothing about newer drivers.
            Some(said) if said.contains("Unsupported .version") => return Ok(None),
            other => return Ok(other),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As ptxas 13 prints it.
    fn without_sm_70(processor: &str) -> Option<String> {
        (processor == "sm_70").then(|| "ptxas fatal   : Value 'sm_70' is not defined for option 'gpu-name'".to_owned())
    }

    #[test]
    fn the_assembler_s_words_of_a_refused_file_are_kept() {
        let syntax = "ptxas step.s, line 171865; fatal   : Parsing error near '$L__sec_end0': syntax error";
        let said = refusal("sm_70", |processor| Ok(without_sm_70(processor).or_else(|| Some(syntax.to_owned())))).unwrap();
        assert_eq!(said.as_deref(), Some(syntax));
    }

    #[test]
    fn an_assembler_without_the_processor_assembles_for_a_later_one() {
        let mut asked = Vec::new();
        let run = |processor: &str| {
            asked.push(processor.to_owned());
            Ok(without_sm_70(processor))
        };
        assert_eq!(refusal("sm_70", run).unwrap(), None);
        assert_eq!(asked, ["sm_70", "sm_75"]);
    }

    #[test]
    fn an_assembler_older_than_the_text_refuses_nothing() {
        let old = |_: &str| Ok(Some("ptxas fatal   : Unsupported .version 7.0; current version is '6.0'".to_owned()));
        assert_eq!(refusal("sm_70", old).unwrap(), None);
        assert!(refusal("sm_70", |_| Err(Error::NoBuildScript("PATH"))).is_err());
    }
}
