//! Comments that read well: a doc comment opens with a noun phrase or a verb, and no line of a
//! comment is too wide for two files next to each other.

use super::{File, Problem};

pub(super) const COLUMNS: usize = 100;

/// A doc comment that opens with one of these is a clause, and no name of the thing.
const OPENINGS: &[&str] = &["What", "Whether", "Who", "Whoever", "How often", "Since when"];

pub(super) fn openings(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_written(file)) {
        let mut before = "";
        for (number, line) in file.text.lines().map(str::trim_start).enumerate() {
            let doc = |line: &str| line.starts_with("/// ") || line.starts_with("//! ");
            let opening = (doc(line) && !before.starts_with("//")).then(|| &line[4..]);
            let is_clause = |text: &str| OPENINGS.iter().any(|word| begins_with(text, word));
            if opening.is_some_and(is_clause) {
                let problem = format!("{}:{}: name the thing instead: {line}", file.path, number + 1);
                problems.push(Problem(problem));
            }
            before = line;
        }
    }
    problems
}

fn begins_with(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
}

pub(super) fn wide_lines(files: &[File]) -> Vec<Problem> {
    let of_file = |file: &File| {
        let lines = file.text.lines().enumerate();
        let is_wide = |line: &str| {
            let text = line.trim_start();
            let is_table = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
            text.starts_with("//") && line.chars().count() > COLUMNS && !is_table && !text.contains("://")
        };
        let wide = lines.filter(|(_, line)| is_wide(line));
        let problem =
            |number| Problem(format!("{}:{number}: a comment is over {COLUMNS} columns", file.path));
        wide.map(|(number, _)| problem(number + 1)).collect::<Vec<_>>()
    };
    files.iter().filter(|file| is_written(file)).flat_map(of_file).collect()
}

/// By people, in Rust.
pub(super) fn is_written(file: &File) -> bool {
    file.path.ends_with(".rs") && !file.text.starts_with("// Generated")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> [File; 1] {
        [File { path: "a.rs".to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn clauses_do_not_open_a_comment() {
        assert_eq!(openings(&file("/// What it is.\nfn f() {}")).len(), 1);
        assert_eq!(openings(&file("    //! Whether, and why.")).len(), 1);
        assert!(openings(&file("/// It is\n/// What it is.\n// Whose it is")).is_empty());
        assert!(openings(&file("/// Whole trees.")).is_empty());
    }

    #[test]
    fn comments_have_a_width() {
        let wide = "x".repeat(COLUMNS);
        assert_eq!(wide_lines(&file(&format!("fn f() {{}}\n    // {wide}"))).len(), 1);
        assert!(
            wide_lines(&file(&format!("let s = \"{wide}\";\n// https://{wide}\n//! | {wide} |"))).is_empty()
        );
    }
}
