//! Rules about text.

use super::{File, Problem};

const LONG: usize = 600;

/// Directories that exist on one machine only. Written apart, so that this file is in order
/// too.
const MACHINE: &[&str] =
    &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("/tmp/", "bg/")];

pub(super) fn machine_paths(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            if MACHINE.iter().any(|path| is_path(line, path)) {
                let place = format!("{}:{}", file.path, number + 1);
                problems.push(Problem(format!("{place} names a path of one machine")));
            }
        }
    }
    problems
}

/// True if a path begins there, and not a part of another path or of an address.
fn is_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_ascii_alphanumeric() && !"._-}*".contains(before))
    })
}

/// Only a warning: a long file of one idea reads better than two of half an idea.
pub(super) fn long_files(files: &[File]) -> Vec<Problem> {
    let rust =
        files.iter().filter(|file| file.path.ends_with(".rs") && !file.text.starts_with("// Generated"));
    let long = rust.map(|file| (file, file.text.lines().count())).filter(|(_, lines)| *lines > LONG);
    long.map(|(file, lines)| Problem(format!("{} has {lines} lines", file.path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_paths_of_a_machine() {
        let [home, root] = [MACHINE[2], MACHINE[1]];
        assert!(is_path(&format!("cd {home}me"), home));
        assert!(is_path(&format!("\"{root}x\""), root));
        assert!(!is_path("https://example.com/home/page", home));
    }
}
