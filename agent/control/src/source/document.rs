//! YAML text to manifests: documents of a stream one by one, so that a broken one leaves its
//! neighbours alone. Documents are separated as `kubectl` separates them, by lines that start with
//! `---`.

use std::borrow::Cow;

use portcullis_api::admission::{Admission, admit};
use serde_json::Value;
use serde_saphyr::UserMessageFormatter;

/// The text of one document and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'t> {
    /// The line of the file, from 1, at which `text` starts.
    pub line: usize,
    pub text: &'t str,
}

/// The manifests of a document. Lines are relative to the document's start, because edits above
/// move it.
#[derive(Clone, Debug)]
pub struct Manifests {
    /// The first line that is neither empty nor a comment.
    pub line: usize,
    pub admissions: Vec<Admission>,
}

/// Text that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    pub message: String,
}

pub fn split(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if is_separator(line) && offset > start {
            documents.push(Document { line: first_line, text: &text[start..offset] });
            (start, first_line) = (offset, index + 1);
        }
        offset += line.len();
    }
    documents.push(Document { line: first_line, text: &text[start..] });
    documents.retain(|document| document.text.lines().any(has_content));
    documents
}

/// Reads a document; of a `List`, every item.
///
/// # Errors
/// When it is not YAML, or YAML that only makes a parser work (alias bombs, endless nesting).
pub fn read(text: &str) -> Result<Manifests, SyntaxError> {
    let admissions = manifests(text)?.into_iter().map(admit).collect();
    Ok(Manifests { line: first_content(text), admissions })
}

/// The manifests of a document as they are written.
///
/// # Errors
/// As [`read`].
pub fn manifests(text: &str) -> Result<Vec<Value>, SyntaxError> {
    match parse(text)? {
        Value::Null => Ok(Vec::new()),
        manifest => Ok(unpacked(manifest)),
    }
}

/// The line, from 0, at which a document's content starts.
pub fn first_content(text: &str) -> usize {
    text.lines().position(has_content).unwrap_or(0)
}

fn parse(text: &str) -> Result<Value, SyntaxError> {
    let mut text = Cow::Borrowed(text);
    let mut tries = MOST_PARSED / text.len().max(1);
    loop {
        let error = match parse_strictly(&text) {
            Err(error) if error.message.contains(QUOTED_AT_PARENTS_INDENT) && tries > 0 => error,
            result => return result,
        };
        let Some(indented) = with_indent(&text, error.line) else { return Err(error) };
        text = Cow::Owned(indented);
        tries -= 1;
    }
}

/// Comments are no data, however many of them there are.
fn parse_strictly(text: &str) -> Result<Value, SyntaxError> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false, emit_comments: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| SyntaxError {
        line: error.location().map_or(0, |location| location.line().saturating_sub(1) as usize),
        message: plain(&error),
    })
}

/// The parser's words for a line of a quoted scalar that is not indented more than its parent. YAML
/// forbids that, kubectl's parser takes it.
const QUOTED_AT_PARENTS_INDENT: &str = "indentation in multiline quoted scalar";

/// Bytes to parse for one document, over and over with one more line indented.
const MOST_PARSED: usize = 64 << 20;

/// Indents a line, from 0. In a quoted scalar, white space at the beginning of a line is no part of
/// the text, so the text stays the same.
fn with_indent(text: &str, line: usize) -> Option<String> {
    let start = match line {
        0 => 0,
        line => text.match_indices('\n').nth(line - 1)?.0 + 1,
    };
    let (before, after) = text.split_at(start);
    Some(format!("{before}{}{after}", " ".repeat(DEEPEST_INDENT)))
}

/// Deeper than any parent that a Kubernetes object has.
const DEEPEST_INDENT: usize = 64;

/// `kind: List`, and the typed lists that `kubectl get -o yaml` does not write but clients do.
fn unpacked(manifest: Value) -> Vec<Value> {
    let is_list = manifest.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match manifest {
        Value::Object(mut list) if is_list => match list.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        single => vec![single],
    }
}

/// `---` alone or followed by white space; not `-----BEGIN …`.
fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

fn has_content(line: &str) -> bool {
    let line = line.trim();
    let content = if is_separator(line) { line[3..].trim() } else { line };
    !content.is_empty() && !content.starts_with(['#', '%']) && content != "..."
}

/// One line, without the place, which counts from the document's start.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.render_with_formatter(&UserMessageFormatter);
    let line = text.lines().next().unwrap_or_default();
    line.split_once(" at line ").map_or(line, |(message, _)| message).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_know_their_lines() {
        let text = "# head\n---\na: 1\n---\n\n---   # note\nb: |\n  -----BEGIN\n--- {c: 1}\n";
        let documents: Vec<_> = split(text).iter().map(|d| (d.line, d.text)).collect();
        assert_eq!(
            documents,
            [(2, "---\na: 1\n"), (6, "---   # note\nb: |\n  -----BEGIN\n"), (9, "--- {c: 1}\n")]
        );
    }

    #[test]
    fn lists_are_unpacked() {
        let item = "{apiVersion: v1, kind: Secret, metadata: {name: a}}";
        let list = read(&format!("# c\n\napiVersion: v1\nkind: List\nitems: [{item}, {item}]")).unwrap();
        assert_eq!((list.line, list.admissions.len()), (2, 2));
    }

    #[test]
    fn syntax_errors_say_where() {
        let error = read("a: 1\nb: [1\nc: 2\n").unwrap_err();
        assert!(error.line >= 1, "{error:?}");
        assert!(!error.message.is_empty());
    }

    #[test]
    fn an_alias_bomb_is_refused_quickly() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(", "));
        }
        assert!(read(&bomb).is_err());
    }

    #[test]
    fn any_number_of_comments_is_none_of_the_data() {
        let comments = "# a line\n".repeat(200);
        let text = format!("{comments}a:\n{comments}- b\n{comments}- c:\n{comments}    d\n");
        assert_eq!(parse(&text).unwrap(), serde_json::json!({"a": ["b", {"c": "d"}]}));
    }

    /// As kubectl takes it.
    #[test]
    fn quoted_scalars_may_continue_at_their_parents_indent() {
        let text = "a:\n  b: \"one\n  two\n\n  three\"\n  c: 'x\ny'\nd: 1\n";
        let expected = serde_json::json!({"a": {"b": "one two\nthree", "c": "x y"}, "d": 1});
        assert_eq!(parse(text).unwrap(), expected);
        let long = format!("a:\n  b: \"{}\"\n", ["line"; 100].join("\n  "));
        assert_eq!(parse(&long).unwrap()["a"]["b"], ["line"; 100].join(" "));
        assert!(parse("a: \"one\ntwo\n").is_err(), "it never ends");
    }

    #[test]
    fn words_stay_words() {
        let Value::Object(map) = parse("a: yes\nb: n\nc: true\nd: 1.0\ne: 0x10").unwrap() else { panic!() };
        assert_eq!((&map["a"], &map["b"], &map["c"]), (&"yes".into(), &"n".into(), &true.into()));
    }
}
