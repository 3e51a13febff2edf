//! Directories of this machine, and what they are called in what is shipped: the same sources give
//! the same bytes wherever they lie, and say nothing of who built them.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::workspace;

/// Directories that compilers write into programs, with the names that take their place. Of two
/// that hold a file the later one counts, for rustc and GCC alike.
pub fn renamed() -> [(PathBuf, &'static str); 3] {
    [
        (workspace::root().to_owned(), "/portcullis"),
        (workspace::target_directory(), "/portcullis/target"),
        (cargo_home(), "/cargo"),
    ]
}

/// For rustc.
pub fn rust_flags() -> impl Iterator<Item = String> {
    renamed().into_iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
}

/// Has build scripts tell the compiler of C, which names files where it checks something, too. A
/// directory with a blank in its name keeps it: build scripts would take it for two flags.
pub fn rename_in_c(build: &mut Command, target: &str) {
    let flags =
        renamed().into_iter().filter(|(path, _)| !path.as_os_str().as_encoded_bytes().contains(&b' '));
    let flags = flags.map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display()));
    let variable = format!("CFLAGS_{}", target.replace('-', "_"));
    let given = env::var(&variable).ok();
    build.env(&variable, given.into_iter().chain(flags).collect::<Vec<_>>().join(" "));
}

/// Beginnings of paths that nothing names which was compiled with other names.
pub fn unnamed() -> Vec<PathBuf> {
    let sources = ["agent", "common", "ebpf"].map(|part| workspace::root().join(part));
    let of_machine = sources.into_iter().chain([cargo_home().join("registry")]);
    // In a build of everything under its new name, names are no one's.
    let renamed = |path: &PathBuf| renamed().iter().any(|(_, name)| path.starts_with(name));
    of_machine.filter(|path| !renamed(path)).collect()
}

/// cargo's own directory, with the sources of all dependencies.
fn cargo_home() -> PathBuf {
    let given = env::var_os("CARGO_HOME").map(PathBuf::from);
    given.unwrap_or_else(|| env::home_dir().unwrap_or_default().join(".cargo"))
}
