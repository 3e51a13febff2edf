//! Links between documents lead somewhere.

use std::path::Path;

use portcullis_testbed::workspace;

use super::{File, Problem};

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    files.iter().filter(|file| file.path.ends_with(".md")).flat_map(broken).collect()
}

fn broken(file: &File) -> Vec<Problem> {
    let directory = workspace::root().join(Path::new(&file.path).parent().unwrap_or(Path::new("")));
    let is_broken = |target: &&str| !directory.join(target).exists();
    let broken = targets(&file.text).filter(is_broken);
    broken.map(|target| Problem(format!("{} links to {target}, which does not exist", file.path))).collect()
}

/// Files that a Markdown text links to.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let paths = links.filter_map(|(target, _)| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains("://") && !path.contains(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_targets() {
        let text = "See [a](docs/a.md#part), [b](https://example.com/x), [c](#here) and [d](../d).";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["docs/a.md", "../d"]);
    }
}
