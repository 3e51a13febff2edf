//! Types that say nothing: `f(true)` tells no reader what is true, nor does an option of a truth
//! value or of an option.

use super::source::{code, without_tests};
use super::{File, Problem};

const NAMELESS: &[&str] = &["Option<bool>", "Option<Option<", "Result<Result<"];

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let written =
        files.iter().filter(|file| file.path.ends_with(".rs") && !file.text.starts_with("// Generated"));
    written.filter(|file| !is_test(&file.path)).flat_map(of_file).collect()
}

/// Tests say `true` where they mean it.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

fn of_file(file: &File) -> Vec<Problem> {
    let code = without_tests(&code(&file.text));
    let at_line = |at: usize| code[..at].matches('\n').count() + 1;
    let problem = |at, what: &str| Problem(format!("{}:{}: {what}: name the cases", file.path, at_line(at)));
    let nameless = NAMELESS.iter().flat_map(|name| code.match_indices(name).map(|(at, _)| problem(at, name)));
    let parameters =
        code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric()));
    let parameters = parameters.filter(|(at, _)| takes_bool(&code[*at..]));
    let parameters = parameters.map(|(at, _)| problem(at, "a parameter is a bool"));
    parameters.chain(nameless).collect()
}

/// Looks at the parameters of a function, which begin with the first parenthesis that is not within
/// `<…>`.
fn takes_bool(function: &str) -> bool {
    let function = function.replace("->", "  ");
    let mut generics = 0;
    let begin = function.find(|c: char| {
        generics += i32::from(c == '<') - i32::from(c == '>');
        c == '(' && generics == 0
    });
    let Some(begin) = begin else { return false };
    let mut depth = 0;
    let mut parameter = String::new();
    for c in function[begin..].chars() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (c == ',' && depth == 1) {
            let is_bool = parameter.split_once(':').is_some_and(|(_, kind)| kind.trim() == "bool");
            if is_bool || depth == 0 {
                return is_bool;
            }
            parameter.clear();
        } else {
            parameter.push(c);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_values_need_names() {
        assert!(takes_bool("fn f(&self, a: u8, is_b: bool) -> u8"));
        assert!(takes_bool("fn f(is_b: bool, a: u8)"));
        assert!(takes_bool("fn f<F: Fn(u8) -> Vec<u8>>(f: F, is_b: bool)"));
        assert!(!takes_bool("fn f<F: Fn(bool) -> bool>(f: F)"));
        assert!(!takes_bool("fn f(a: impl Fn(bool, u8) -> bool, b: Vec<bool>) -> bool"));
        assert!(!takes_bool("fn f() -> bool"));
    }

    #[test]
    fn options_of_options_are_found() {
        let text =
            "struct A {\n  b: Option<bool>,\n}\n#[cfg(test)]\nmod tests { fn f(a: bool) {} }".to_owned();
        let problems = problems(&[File { path: "a.rs".to_owned(), text }]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].0.starts_with("a.rs:2: Option<bool>"));
    }
}
