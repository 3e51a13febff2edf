//! YAML text to manifests: documents of a stream one by one, so that a broken one leaves its
//! neighbours alone. Documents are separated as `kubectl` separates them, by lines that start with
//! `---`.

use std::borrow::Cow;

use portcullis_api::admission::{Admission, admit, is_plain_key};
use portcullis_api::schema::LEFT_OUT;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Budget, Error, UserMessageFormatter};

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

/// Text that is not YAML, or more of it than is read.
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
    documents.into_iter().flat_map(json_stream).collect()
}

/// The JSON values of a document that is nothing but several of them, as `kubectl` reads them; else
/// the document as it is.
fn json_stream(document: Document<'_>) -> Vec<Document<'_>> {
    let Document { line, text } = document;
    if !text.trim_start().starts_with('{') {
        return vec![document];
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut documents, mut start, mut first_line) = (Vec::new(), 0, line);
    while let Some(value) = values.next() {
        if value.is_err() {
            return vec![document];
        }
        let value = &text[start..values.byte_offset()];
        documents.push(Document { line: first_line, text: value });
        first_line += value.matches('\n').count();
        start = values.byte_offset();
    }
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
            Ok(mut value) => {
                shorten_numbers(&mut value);
                return Ok(value);
            }
            Err(error) if error.message.contains(QUOTED_AT_PARENTS_INDENT) && tries > 0 => error,
            Err(error) => return Err(error),
        };
        let Some(indented) = with_indent(&text, error.line) else { return Err(error) };
        text = Cow::Owned(indented);
        tries -= 1;
    }
}

/// Comments are no data, however many of them there are. Scalars mean what they mean to kubectl,
/// whose YAML is 1.1: `yes` is a boolean, `0100` is 64.
fn parse_strictly(text: &str) -> Result<Value, SyntaxError> {
    let options = serde_saphyr::options! {
        strict_booleans: false,
        legacy_octal_numbers: true,
        with_snippet: false,
        emit_comments: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| SyntaxError {
        line: error.location().map_or(0, |location| location.line().saturating_sub(1) as usize),
        message: beyond_limit(&error).unwrap_or_else(|| format!("not YAML: {}", plain(&error))),
    })
}

/// Writes `1.0` and `1e3` as the integers that they are, as kubectl does on the way from YAML to
/// JSON.
fn shorten_numbers(value: &mut Value) {
    /// Up to here, every integer has a floating point number of its own.
    const EXACT: f64 = (1_u64 << 53) as f64;
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            if float.fract() == 0.0 && float.abs() <= EXACT {
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Object(fields) => fields.values_mut().for_each(shorten_numbers),
        _ => {}
    }
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

/// `kind: List`, and the typed lists that `kubectl get -o yaml` does not write but clients do. An
/// API server leaves kind and version of a typed list's items to the list.
fn unpacked(manifest: Value) -> Vec<Value> {
    let list = manifest.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
    let Some(kind) = list.map(str::to_owned) else { return vec![manifest] };
    let Value::Object(mut list) = manifest else { return Vec::new() };
    let Some(Value::Array(items)) = list.remove("items") else { return Vec::new() };
    let version = list.remove("apiVersion").unwrap_or_default();
    let typed = |mut item: Value| {
        if let Value::Object(fields) = &mut item
            && !kind.is_empty()
            && !fields.contains_key("kind")
        {
            fields.insert("kind".to_owned(), kind.as_str().into());
            fields.entry("apiVersion").or_insert_with(|| version.clone());
        }
        item
    };
    items.into_iter().map(typed).flat_map(unpacked).collect()
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

const DIVIDE: &str = "divide it into several documents, by lines of ---, or into files";
const WRITE_OUT: &str = "write out what its aliases stand for";

/// A limit of the parser: how many, of what, and what to do with a document that has more.
type Limit = (usize, &'static str, &'static str);

/// The limit that the document is beyond, in words; `None` for other errors.
fn beyond_limit(error: &Error) -> Option<String> {
    let (limit, of, advice) = match error {
        Error::AliasError { error, .. } => return beyond_limit(error),
        Error::Budget { breach, .. } => limit_of_budget(breach)?,
        Error::AliasReplayLimitExceeded { max_total_replayed_events: most, .. } => {
            (*most, "values that aliases stand for", WRITE_OUT)
        }
        Error::AliasExpansionLimitExceeded { max_expansions_per_anchor: most, .. } => {
            (*most, "aliases of one anchor", WRITE_OUT)
        }
        Error::AliasReplayStackDepthExceeded { max_depth: most, .. } => {
            (*most, "aliases within each other", WRITE_OUT)
        }
        _ => return None,
    };
    Some(format!("has more than {limit} {of}, and no such document is read: {advice}"))
}

fn limit_of_budget(breach: &BudgetBreach) -> Option<Limit> {
    let limits = Budget::default();
    Some(match breach {
        BudgetBreach::Nodes { .. } => (limits.max_nodes, "values", DIVIDE),
        BudgetBreach::Events { .. } => (limits.max_events, "values, begins and ends", DIVIDE),
        BudgetBreach::ScalarBytes { .. } => (limits.max_total_scalar_bytes, "bytes of text", DIVIDE),
        BudgetBreach::Depth { .. } => (limits.max_depth, "levels", "nest it less deep"),
        BudgetBreach::Anchors { .. } => (limits.max_anchors, "anchors", DIVIDE),
        BudgetBreach::Aliases { .. } => (limits.max_aliases, "aliases", WRITE_OUT),
        BudgetBreach::MergeKeys { .. } => (limits.max_merge_keys, "merge keys (<<)", DIVIDE),
        BudgetBreach::AliasAnchorRatio { .. } => {
            (limits.alias_anchor_ratio_multiplier, "aliases for each anchor", WRITE_OUT)
        }
        BudgetBreach::RecordedAnchorEvents { .. } => {
            (limits.max_recorded_anchor_events, "values below anchors", WRITE_OUT)
        }
        BudgetBreach::RecordedAnchorBytes { .. } => {
            (limits.max_recorded_anchor_bytes, "bytes below anchors", WRITE_OUT)
        }
        _ => return None,
    })
}

/// One line, without the place, which counts from the document's start, and without what is written
/// there: it may be a Secret.
fn plain(error: &Error) -> String {
    const QUOTES: [char; 2] = ['"', '`'];
    if let Error::DuplicateMappingKey { key, .. } = error {
        return twice(key.as_deref());
    }
    let text = error.render_with_formatter(&UserMessageFormatter);
    let line = text.lines().next().unwrap_or_default();
    let message = line.split_once(" at line ").map_or(line, |(message, _)| message).trim();
    match message.find(QUOTES) {
        Some(quoted) => format!("{}{LEFT_OUT}", &message[..quoted]),
        None => message.to_owned(),
    }
}

fn twice(key: Option<&str>) -> String {
    match key.filter(|key| is_plain_key(key)) {
        Some(key) => format!("the key {key:?} is there twice: remove one of them"),
        None => "a key is there twice: remove one of them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let typed = "apiVersion: v1\nkind: SecretList\nitems: [{metadata: {name: a}}]";
        let nested =
            format!("apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: List, items: [{item}]}}");
        for text in [typed, &nested] {
            assert!(matches!(read(text).unwrap().admissions[..], [Admission::Admitted { .. }]), "{text}");
        }
    }

    #[test]
    fn syntax_errors_say_where() {
        let error = read("a: 1\nb: [1\nc: 2\n").unwrap_err();
        assert!(error.line >= 1, "{error:?}");
        assert!(!error.message.is_empty());
        let twice = read("a: 1\nb: {c: 1, c: 2}\n").unwrap_err();
        let message = "not YAML: the key \"c\" is there twice: remove one of them".to_owned();
        assert_eq!(twice, SyntaxError { line: 1, message });
    }

    #[test]
    fn an_alias_bomb_is_refused_quickly() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(", "));
        }
        let message = read(&bomb).unwrap_err().message;
        assert!(message.starts_with("has more than "), "{message}");
    }

    #[test]
    fn a_document_that_is_too_large_or_too_deep_is_told_of_the_limit() {
        let divide = "divide it into several documents, by lines of ---, or into files";
        for (text, says, advice) in [
            (format!("a:\n{}", "- x\n".repeat(250_000)), "250000 values", divide),
            (
                (0..70).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
                "64 levels",
                "nest it less deep",
            ),
        ] {
            let expected = format!("has more than {says}, and no such document is read: {advice}");
            assert_eq!(read(&text).unwrap_err().message, expected);
        }
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
    fn scalars_mean_what_they_mean_to_kubectl() {
        for (text, expected) in [
            ("yes", json!(true)),
            ("n", json!(false)),
            ("Off", json!(false)),
            ("\"yes\"", json!("yes")),
            ("!!str yes", json!("yes")),
            ("yesterday", json!("yesterday")),
            ("0100", json!(64)),
            ("0o100", json!(64)),
            ("0190", json!(190)),
            ("0x50", json!(80)),
            ("0b101", json!(5)),
            ("8_0", json!(80)),
            ("+80", json!(80)),
            ("1:20", json!("1:20")),
            ("1.0", json!(1)),
            ("1e3", json!(1000)),
            ("-1.0", json!(-1)),
            ("1.5", json!(1.5)),
            ("1e30", json!(1e30)),
            ("'1.0'", json!("1.0")),
            ("2024-01-01", json!("2024-01-01")),
            ("v1.0", json!("v1.0")),
            ("10.0.0.1", json!("10.0.0.1")),
            ("~", json!(null)),
        ] {
            assert_eq!(parse(&format!("a: [{text}]")).unwrap()["a"][0], expected, "{text}");
        }
    }

    #[test]
    fn json_values_may_follow_each_other() {
        let text = "{\"a\": 1}\n{\n  \"b\": 2.0\n}{\"c\": \"}{\"}\n\n---\n{\"d\": 4}\n--- {e: 5}\n";
        let documents: Vec<_> = split(text).iter().map(|d| (d.line, parse(d.text).unwrap())).collect();
        let expected = [
            (1, json!({"a": 1})),
            (1, json!({"b": 2})),
            (4, json!({"c": "}{"})),
            (6, json!({"d": 4})),
            (8, json!({"e": 5})),
        ];
        assert_eq!(documents, expected);
        // What is only nearly JSON may be YAML.
        assert_eq!(split("{a: 1}\n").len(), 1);
        assert_eq!(parse("{\"a\": 1,}\n").unwrap(), json!({"a": 1}));
        assert!(read("{\"a\": 1}\n{\"b\"\n").is_err());
    }
}
