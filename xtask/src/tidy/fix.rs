//! `cargo xtask tidy --fix`: what a program can put right before a commit. rustfmt, comments and
//! documents that are too wide, blanks at the end of lines.

use anyhow::Result;
use portcullis_testbed::{command, workspace};

use super::prose::{is_document, is_kept, marker};
use super::{File, Problem, wrap};

/// Formats all Rust, the kernel programs included, before files are read.
pub(super) fn format() -> Result<()> {
    command::run(workspace::cargo().args(["fmt", "--all"]))?;
    command::run(workspace::cargo().args(["fmt", "--manifest-path", "ebpf/Cargo.toml"]))
}

/// The text of a file as it should be.
pub(super) fn mended(file: &File) -> String {
    let text = if is_edited(file) { without_trailing_blanks(&file.text) } else { file.text.clone() };
    wrapped(&File { path: file.path.clone(), text })
}

/// The text of a file with what is too wide filled anew.
pub(super) fn wrapped(file: &File) -> String {
    match marker(file) {
        Some(marker) => wrap::comments(&file.text, marker),
        None if is_document(file) => wrap::document(&file.text),
        None => file.text.clone(),
    }
}

pub(super) fn trailing_blanks(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_edited(file)) {
        let ends_in_blank = |line: &str| line.ends_with([' ', '\t']);
        for (number, _) in file.text.lines().enumerate().filter(|(_, line)| ends_in_blank(line)) {
            problems.push(Problem(format!("{}:{}: blanks at the end", file.path, number + 1)));
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            problems.push(Problem(format!("{}: the last line has no end", file.path)));
        }
    }
    problems
}

/// True for what people write. Blanks at the end of a line mean nothing there.
fn is_edited(file: &File) -> bool {
    let extension = file.path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_text = ["go", "md", "rs", "sh", "toml", "tpl", "yaml", "yml"].contains(&extension);
    is_text && !is_kept(&file.path)
}

fn without_trailing_blanks(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim_end_matches([' ', '\t']), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn blanks_at_the_end_are_found_and_removed() {
        let bad = file("a.md", "# A \n\nb\t\n\n\nc");
        assert_eq!(trailing_blanks(&[file("a.md", &bad.text)]).len(), 3);
        assert_eq!(mended(&bad), "# A\n\nb\n\n\nc\n");
        assert!(trailing_blanks(&[file("a.md", &mended(&bad))]).is_empty());
    }

    #[test]
    fn golden_files_and_binaries_stay_as_they_are() {
        for path in ["agent/gateway/tests/cases/a/in.yaml", "hello.bin", "deploy/crds/a.yaml"] {
            let kept = file(path, "a: 1 \n# b \nc");
            assert!(trailing_blanks(&[file(path, &kept.text)]).is_empty());
            assert_eq!(mended(&kept), kept.text);
        }
    }
}
