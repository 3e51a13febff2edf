//! `cargo xtask book`: the documents as a site, in target/book, by mdBook. Whether all pages are in
//! it, and all links lead somewhere, is checked by `cargo xtask tidy`, which needs no mdBook.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::versions::MDBOOK;
use portcullis_testbed::{cargo_tool, command, workspace};

/// The table of contents; its links are relative to it.
pub(crate) const CONTENTS: &str = "docs/SUMMARY.md";

/// As `book.toml` has it.
const SOURCE: &str = "target/book-source";

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<()> {
    let mdbook = cargo_tool::ensure(MDBOOK)?;
    lay_out(&workspace::root().join(SOURCE))?;
    command::run(Command::new(mdbook).arg("build").current_dir(workspace::root()))?;
    println!("book: target/book/index.html");
    Ok(())
}

/// Copies the pages, and what they link to, to where mdBook looks for them: below one directory,
/// with the table of contents at its top.
fn lay_out(source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    let contents = read(CONTENTS)?;
    for page in pages(&contents) {
        let text = read(&page)?;
        write(source, &page, with_index_pages(&text).as_bytes())?;
        for target in links(&text).filter_map(|link| resolved(&page, link)) {
            let path = workspace::root().join(&target);
            if !target.ends_with(".md") && path.is_file() {
                write(source, &target, &fs::read(path)?)?;
            }
        }
    }
    write(source, "SUMMARY.md", with_paths_from_root(&contents).as_bytes())
}

/// Paths of the pages in a table of contents, from the root of the repository.
pub(crate) fn pages(contents: &str) -> Vec<String> {
    links(contents).filter_map(|link| resolved(CONTENTS, link)).collect()
}

fn with_paths_from_root(contents: &str) -> String {
    let mut text = contents.to_owned();
    for link in links(contents) {
        if let Some(path) = resolved(CONTENTS, link) {
            text = text.replace(&format!("]({link})"), &format!("]({path})"));
        }
    }
    text
}

/// mdBook makes an `index.html` of each `README.md`, and leaves links to it as they are.
fn with_index_pages(text: &str) -> String {
    let mut linked = text.to_owned();
    for link in links(text).filter(|link| !link.contains("://")) {
        let index = link.replace("README.md", "index.md");
        linked = linked.replace(&format!("]({link})"), &format!("]({index})"));
    }
    linked
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// The path that a link of a page leads to, from the root; addresses and sections have none.
pub(crate) fn resolved(page: &str, link: &str) -> Option<String> {
    let path = link.split('#').next().filter(|path| !path.is_empty() && !path.contains("://"))?;
    let mut resolved = PathBuf::from(page).parent()?.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => _ = resolved.pop(),
            part => resolved.push(part),
        }
    }
    Some(resolved.display().to_string())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read {path}"))
}

fn write(source: &Path, path: &str, content: &[u8]) -> Result<()> {
    let path = source.join(path);
    fs::create_dir_all(path.parent().unwrap_or(source))?;
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_index_pages() {
        let text = "[A](../README.md#a) [B](README.md) [C](https://a.example/README.md) README.md";
        let linked = "[A](../index.md#a) [B](index.md) [C](https://a.example/README.md) README.md";
        assert_eq!(with_index_pages(text), linked);
    }

    #[test]
    fn pages_have_paths_from_the_root() {
        let contents = "[A](../README.md)\n- [B](b.md)\n  - [C](c/c.md)\n- [D](https://example.com)\n";
        assert_eq!(pages(contents), ["README.md", "docs/b.md", "docs/c/c.md"]);
        let moved = "[A](README.md)\n- [B](docs/b.md)\n  - [C](docs/c/c.md)\n- [D](https://example.com)\n";
        assert_eq!(with_paths_from_root(contents), moved);
    }
}
