use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;

use super::{Failure, Outcome, shown};

pub(super) const COMPLETIONS: &str = "\
Examples:
  ringmem completions bash > ringmem.bash
  ringmem completions zsh > ~/.zfunc/_ringmem
  ringmem completions fish";

pub(super) const PAGES: &str = "\
Examples:
  ringmem man | man -l -
  ringmem man --output ~/.local/share/man/man1";

#[derive(clap::Args)]
pub(super) struct Shell {
    /// The shell
    shell: clap_complete::Shell,
}

#[derive(clap::Args)]
pub(super) struct Pages {
    /// Write ringmem.1 and a page for each command to this folder, which is created
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn complete(Shell { shell }: &Shell, out: &mut dyn Write) -> Outcome {
    // The generator panics if the output is closed.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut super::Arguments::command(), "ringmem", &mut script);
    Ok(out.write_all(&script)?)
}

pub(super) fn run(Pages { output }: &Pages, out: &mut dyn Write) -> Outcome {
    let command = super::Arguments::command();
    let Some(folder) = output else { return Ok(clap_mangen::Man::new(command).render(out)?) };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| Failure::Fact(format!("cannot write to {}: {error}", shown(folder))))
}
