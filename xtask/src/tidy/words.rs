//! Words that this repository does not use: pronouns and people where a role has a name, and a
//! private vocabulary where the Gateway API or networking has a term. Only what a program can see:
//! a short list, which says what to write instead.

use super::prose::is_written;
use super::source::{code, comments};
use super::{File, Problem};

const ROLE: &str = "\"they\", or the role: client, backend, tenant, operator";

/// In documents and comments, each with what to write instead.
const PEOPLE: &[(&str, &str)] = &[
    ("he", ROLE),
    ("him", ROLE),
    ("his", ROLE),
    ("she", ROLE),
    ("her", ROLE),
    ("somebody", ROLE),
    ("someone", ROLE),
    ("anybody", ROLE),
    ("anyone", ROLE),
    ("nobody", "\"no client\", \"no process\", \"no other\" …"),
    ("everybody", "\"all\" with the role"),
    ("whoever", "\"a client that\", \"a process that\", \"users who\" …"),
];

/// Words that no name has as a part; those with a capital are ordinary verbs and nouns, too, which
/// only names of types and constants do not have.
const VOCABULARY: &[(&str, &str)] = &[
    ("bell", "changed, Notify"),
    ("board", "StatusQueue"),
    ("Clash", "Fault"),
    ("contest", "a conflict between kinds"),
    ("contestant", "the thing itself: a proxy, an agent"),
    ("crowd", "connection counts"),
    ("crowds", "connection counts"),
    ("desk", "StatusReporter"),
    ("lineage", "the chain of parents"),
    ("losers", "conflicted routes"),
    ("outbox", "WriteBuffer"),
    ("patience", "a timeout"),
    ("pulse", "progress"),
    ("Said", "a type for what is logged once"),
    ("teller", "StatusReporter"),
    ("Told", "Published"),
    ("Trouble", "Fault"),
];

/// Names that types do not have; parts of names they may be.
const TYPES: &[(&str, &str)] = &[
    ("Gate", "ConnectionLimit, or what it holds back"),
    ("Place", "Attachment, or what it is"),
    ("Standing", "Leadership"),
    ("Unit", "the state of what it is: ParentState, RouteState"),
];

pub(super) fn people(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        let comments = text(file);
        problems.extend(words(&comments).filter_map(|(at, word)| {
            let (_, instead) = PEOPLE.iter().find(|(people, _)| people.eq_ignore_ascii_case(word))?;
            Some(problem(file, &comments, at, word, instead))
        }));
    }
    problems
}

pub(super) fn vocabulary(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_written(file)) {
        let code = code(&file.text);
        let mut before = "";
        problems.extend(words(&code).filter_map(|(at, name)| {
            let is_defined = ["struct", "enum", "trait", "type", "as"].contains(&before);
            before = name;
            let types = TYPES.iter().filter(|(word, _)| is_defined && *word == name);
            let (_, instead) =
                VOCABULARY.iter().filter(|(word, _)| is_named_after(name, word)).chain(types).next()?;
            Some(problem(file, &code, at, name, instead))
        }));
    }
    problems
}

/// The words of a file that are for people: a document, or the comments of code. Blank where the
/// file is not for people; lines keep their numbers.
fn text(file: &File) -> String {
    let extension = file.path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "md" => without_code(&file.text),
        "rs" if is_written(file) => without_code(&comments(&file.text)),
        "yaml" | "toml" | "tpl" | "sh" if !is_kept(&file.path) => {
            let comment =
                |line: &str| line.split_once('#').map_or(String::new(), |(_, text)| text.to_owned());
            file.text.lines().map(comment).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The Gateway API's CRDs have its comments, and the inputs of golden files stay as they are.
fn is_kept(path: &str) -> bool {
    ["deploy/crds/", "agent/gateway/tests/cases/", "agent/gateway/tests/stories/"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

/// Names in backticks are as they are. They do not go on in the next line.
fn without_code(text: &str) -> String {
    let blank = |line: &str| {
        let parts = line.split('`').enumerate();
        parts.map(|(at, part)| if at % 2 == 0 { part } else { " " }).collect::<Vec<_>>().concat()
    };
    text.lines().map(blank).collect::<Vec<_>>().join("\n")
}

/// Words of letters and underscores, with where they begin.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = text.split(move |c| !is_word(c)).filter(|word| !word.is_empty());
    words.map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

fn is_named_after(name: &str, word: &str) -> bool {
    let is_capital = |name: &str| name.starts_with(|c: char| c.is_uppercase());
    (is_capital(name) || !is_capital(word)) && parts(name).any(|part| part.eq_ignore_ascii_case(word))
}

/// `write`, `buffer` of `WriteBuffer` and of `WRITE_BUFFER`.
fn parts(name: &str) -> impl Iterator<Item = String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        parts.last_mut().into_iter().for_each(|part| part.extend(c.to_lowercase().filter(|c| *c != '_')));
        before = c;
    }
    parts.into_iter()
}

fn problem(file: &File, text: &str, at: usize, word: &str, instead: &str) -> Problem {
    let line = text[..at].matches('\n').count() + 1;
    Problem(format!("{}:{line}: {word:?}: write {instead}", file.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> [File; 1] {
        [File { path: path.to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn people_have_roles() {
        assert_eq!(people(&file("a.md", "a\n\nNobody may, `nobody` but he did.")).len(), 2);
        let problems = people(&file("a.rs", "fn he() {} // \"x\"\nlet a = \"whoever\"; // his\n"));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].0.starts_with("a.rs:2: \"his\": write \"they\""), "{problems:?}");
        assert_eq!(people(&file("a.yaml", "name: nobody # of him\n")).len(), 1);
        assert!(people(&file("a.rs", "// the others, this, here, where")).is_empty());
        assert!(people(&file("a.rs", "// Generated by a command\n// nobody")).is_empty());
    }

    #[test]
    fn names_are_the_gateway_apis_and_networkings() {
        for code in [
            "struct StatusBoard;",
            "const PATIENCE: u8 = 1;",
            "let bell = 1;",
            "enum Told {}",
            "self.status_board",
            "struct Gate;",
            "use a::LastGood as Place;",
        ] {
            assert_eq!(vocabulary(&file("a.rs", code)).len(), 1, "{code}");
        }
        for code in [
            "let told = 1;",
            "fn is_told() {}",
            "struct Labels;",
            "let keyboard = \"bell\"; // Board",
            "Aboard",
            "fn gate(unit: Unit) -> GateClosed",
        ] {
            assert!(vocabulary(&file("a.rs", code)).is_empty(), "{code}");
        }
    }
}
