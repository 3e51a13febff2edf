//! Pages that tell a reader to type something: their files and commands, and a shell in a network
//! namespace of its own that does as the page says. Knows nothing of what is tried.

mod page;
mod shell;

use std::time::Duration;
use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use page::Step;
use portcullis_testbed::{until, workspace};
use shell::Shell;

/// Time for an edit to take effect, or a server to start, on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

/// Does what a page says, in its order. A command that the page shows no output of has to succeed;
/// of others the output has to be as shown, soon.
pub fn follow(page: &str) -> Result<()> {
    let text = fs::read_to_string(workspace::root().join(page)).with_context(|| page.to_owned())?;
    let steps = page::steps(&text).with_context(|| page.to_owned())?;
    ensure!(steps.iter().any(|step| matches!(step, Step::Command(_))), "{page} has no command");
    let mut shell = Shell::start()?;
    for step in steps {
        match step {
            Step::File { name, text } => write(&shell.directory().join(name), &text)?,
            Step::Command(command) => {
                let tried = run(&mut shell, &command);
                tried.with_context(|| format!("{page}:{}: $ {}", command.line, command.text))?;
            }
        }
    }
    Ok(())
}

/// A file that a page shows.
pub fn file(page: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(workspace::root().join(page)).with_context(|| page.to_owned())?;
    let shown =
        page::steps(&text).with_context(|| page.to_owned())?.into_iter().find_map(|step| match step {
            Step::File { name: shown, text } => (shown == name).then_some(text),
            Step::Command(_) => None,
        });
    shown.with_context(|| format!("{page} shows no {name}"))
}

fn run(shell: &mut Shell, command: &page::Command) -> Result<()> {
    if command.output.is_empty() {
        let (status, output) = shell.run(&command.text)?;
        ensure!(status == 0, "status {status}:\n{output}\n{}", shell.logs());
        return Ok(());
    }
    let as_shown = until(SOON, || {
        let (_, output) = shell.run(&command.text)?;
        if page::matches(&command.output, &output) {
            return Ok(());
        }
        bail!("it should say\n{}\nand says\n{output}", command.output.join("\n"))
    });
    as_shown.with_context(|| shell.logs())
}

/// As editors do, so that no half of it is read.
fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().context("a file without directory")?;
    fs::create_dir_all(directory)?;
    shell::hand_over(directory)?;
    let new = tempfile::Builder::new().prefix(".").tempfile_in(directory)?;
    fs::write(&new, text)?;
    shell::hand_over(new.path())?;
    new.persist(path)?;
    Ok(())
}
