//! `cargo xtask tidy`: the rules of this repository that no compiler checks. Each is a function from files to problems; the
//! same rules run as a test.

mod dependencies;
mod layers;
mod links;
mod metadata;
mod text;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use portcullis_testbed::{command, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {}

/// A file of the repository, by its path from the root.
struct File {
    path: String,
    text: String,
}

/// What is wrong, where, and what to do.
#[derive(Debug)]
struct Problem(String);

pub(crate) fn run(_: &Args) -> Result<()> {
    let files = files()?;
    for warning in text::long_files(&files) {
        println!("tidy: warning: {}", warning.0);
    }
    let problems = problems(&files)?;
    for problem in &problems {
        println!("tidy: {}", problem.0);
    }
    if !problems.is_empty() {
        bail!("{} to tidy", problems.len());
    }
    println!("tidy: {} files are in order", files.len());
    Ok(())
}

fn problems(files: &[File]) -> Result<Vec<Problem>> {
    let packages = metadata::packages()?;
    let mut problems = layers::problems(&packages);
    problems.extend(dependencies::problems(&packages, files));
    problems.extend(text::machine_paths(files));
    problems.extend(links::problems(files));
    Ok(problems)
}

/// What git tracks or would track, of text.
fn files() -> Result<Vec<File>> {
    let root = workspace::root().display().to_string();
    let listed = ["-C", &root, "ls-files", "--cached", "--others", "--exclude-standard"];
    let listed =
        command::ask("git", &listed).context("`git ls-files` failed; tidy looks at a git checkout")?;
    let read = |path: &str| {
        let text = fs::read_to_string(PathBuf::from(&root).join(path)).ok()?;
        Some(File { path: path.to_owned(), text })
    };
    Ok(listed.lines().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_repository_is_tidy() {
        let problems = super::problems(&super::files().unwrap()).unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
