//! Completions and manual pages: there is one for each command and shell, and what is asked for
//! wrongly is named.

use std::collections::BTreeSet;
use std::fs;

use crate::{portcullis, printed};

/// As `--help` lists them.
fn commands() -> BTreeSet<String> {
    let help = printed(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    printed(&["man", "--dir", pages.to_str().unwrap()]);
    let names = |suffix: &str| commands().iter().map(|name| format!("portcullis-{name}{suffix}")).collect();
    let mut expected: BTreeSet<String> = names(".1");
    expected.insert("portcullis.1".to_owned());
    let written: BTreeSet<_> = fs::read_dir(&pages).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(written, expected.into_iter().map(Into::into).collect());
    for name in commands() {
        let page = fs::read_to_string(pages.join(format!("portcullis-{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH portcullis-{name} 1")), "{page}");
        assert_eq!(printed(&["man", &name]), page);
    }
    let page = fs::read_to_string(pages.join("portcullis-run.1")).unwrap();
    assert!(page.contains("PORTCULLIS_CONFIG_DIR") && page.contains("portcullis run"), "{page}");
}

#[test]
fn every_shell_has_a_script_with_all_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for name in commands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("own-addresses"), "{shell}");
    }
}

#[test]
fn a_page_or_shell_that_is_not_there_is_named() {
    for (arguments, complaint) in [
        (&["man", "none"][..], "there is no command none: the commands are run, check, "),
        (&["man", "run", "--dir", "/tmp"], "cannot be used with"),
        (&["man", "--dir", "/dev/null/none"], "cannot write pages into /dev/null/none"),
        (&["completions", "csh"], "possible values: bash, elvish, fish"),
    ] {
        let output = portcullis(arguments);
        let complaints = String::from_utf8(output.stderr).unwrap();
        assert!(complaints.contains(complaint), "{arguments:?}: {complaints}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
