//! Values that are left out: by explanations and an agent's answers those that rules write into
//! header fields; by a report also those that rules want fields and parameters to have, bodies of
//! responses, and what messages quote. They are no Secrets, but people write credentials there.

use serde_json::Value;

const LEFT_OUT: &str = "(left out)";

/// Takes them out of a configuration or statuses.
pub fn withhold(value: &mut Value) {
    withhold_written(value);
    withhold_others(value);
}

/// Takes out those that rules write into header fields; the names of the fields stay.
pub(crate) fn withhold_written(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &mut *value) {
                    ("set" | "add", Value::Array(pairs)) => pairs.iter_mut().for_each(withhold_second),
                    _ => withhold_written(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(withhold_written),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn withhold_others(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &mut *value) {
                    ("headers" | "query", Value::Object(wanted)) => {
                        wanted.values_mut().for_each(|value| *value = LEFT_OUT.into());
                    }
                    ("body", Value::String(body)) => LEFT_OUT.clone_into(body),
                    _ => withhold_others(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(withhold_others),
        Value::String(text) => *text = without_query(&without_quoted_values(text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Of a field that a rule writes: a name and a value.
fn withhold_second(pair: &mut Value) {
    match pair.as_array_mut().map(Vec::as_mut_slice) {
        Some([Value::String(_), value]) => *value = LEFT_OUT.into(),
        _ => withhold_written(pair),
    }
}

/// The text of messages, each in a line, without values that they quote, be it in quotes, or bare
/// behind the words of schemas and rules, `Invalid value: …`.
pub fn without_quoted_values(text: &str) -> String {
    text.split_inclusive('\n').map(line_without_values).collect()
}

/// With a quote that nothing closes it is not known which quotes belong together: nothing behind
/// the first of them is kept.
fn line_without_values(whole: &str) -> String {
    let line = whole.strip_suffix('\n').unwrap_or(whole);
    let (mut kept, mut done) = (String::new(), 0);
    let mut before_quotes = None;
    for begin in beginnings(line) {
        // This one is within a value before it.
        if begin < done {
            continue;
        }
        kept += &line[done..begin];
        let after = &line[begin..];
        let length = if after.starts_with('"') {
            let first = *before_quotes.get_or_insert(kept.len());
            let Some(length) = quoted_length(after) else {
                kept.truncate(first);
                return kept + LEFT_OUT + &whole[line.len()..];
            };
            length
        } else {
            bare_length(after)
        };
        if length > 0 {
            kept += LEFT_OUT;
        }
        done = begin + length;
    }
    kept + &whole[done..]
}

/// The places at which values may begin, in their order.
fn beginnings(line: &str) -> Vec<usize> {
    const BEFORE: [&str; 3] = ["Invalid value: ", "Unsupported value: ", "Duplicate value: "];
    let announced = BEFORE.iter().flat_map(|words| line.match_indices(words));
    let announced = announced.map(|(at, words)| at + words.len());
    let mut all: Vec<_> = announced.chain(line.match_indices('"').map(|(at, _)| at)).collect();
    all.sort_unstable();
    all
}

/// Bytes of the value at the beginning, 0 if there is none. Of an object or a list that a message
/// has cut off, nothing of the line is kept.
fn bare_length(text: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => values.byte_offset(),
        Some(Err(_)) if text.starts_with(['{', '[']) => text.len(),
        Some(Err(_)) | None => 0,
    }
}

/// Bytes of the text in quotes at the beginning, with both of them; `None` if one is missing.
fn quoted_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    let end = text.strip_prefix('"')?.find(|c: char| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    })?;
    Some(end + 2)
}

/// A path, as rules have them, without what follows it.
fn without_query(text: &str) -> String {
    match text.split_once('?') {
        Some((path, _)) if path.starts_with('/') => format!("{path}?{LEFT_OUT}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_may_be_credentials_are_left_out_everywhere() {
        let mut config = json!({"routes": [{
            "headers": {"x-channel": "Exact s0", "X-Api-Key": "Exact s1"},
            "query": {"access_token": "RegularExpression s2|s3"},
            "filters": [{"RequestHeaders": {"set": [["x-partner", "s4"]], "add": [["b", "s5"]], "remove": ["c"]}}],
            "respond": {"status": 200, "body": "s8"},
            "path": {"full": "/x?token=s9"},
            "message": "a: Invalid value: \"s\\\"6\": no; b: invalid type: string \"s7\", not value: 12: c; string d",
        }]});
        withhold(&mut config);
        let expected = json!({"routes": [{
            "headers": {"x-channel": "(left out)", "X-Api-Key": "(left out)"},
            "query": {"access_token": "(left out)"},
            "filters": [{"RequestHeaders": {"set": [["x-partner", "(left out)"]], "add": [["b", "(left out)"]], "remove": ["c"]}}],
            "respond": {"status": 200, "body": "(left out)"},
            "path": {"full": "/x?(left out)"},
            "message": "a: Invalid value: (left out): no; b: invalid type: string (left out), not value: 12: c; string d",
        }]});
        assert_eq!(config, expected);
    }

    #[test]
    fn messages_keep_their_words_and_lose_their_values() {
        for (message, kept) in [
            (
                "set[0].value: Invalid value: \"s1 \": should match '^a$'",
                "set[0].value: Invalid value: (left out): should match '^a$'",
            ),
            (
                "a.value: Invalid value: {\"set\":[{\"value\":\"s2\"}]}: no",
                "a.value: Invalid value: (left out): no",
            ),
            ("a: Invalid value: {\"set\":[{\"value\":\"s3… : no\nb: 1", "a: Invalid value: (left out)\nb: 1"),
            ("a: Invalid value: [\"s4\", 5]: no", "a: Invalid value: (left out): no"),
            (
                "a: Unsupported value: 12: supported values: 1",
                "a: Unsupported value: (left out): supported values: 1",
            ),
            (
                "a: Invalid value: should have at least 1 items",
                "a: Invalid value: should have at least 1 items",
            ),
            ("a: Duplicate value: {\"name\":\"s5\"}; b", "a: Duplicate value: (left out); b"),
            ("regular expression \"(s6\" cannot be used", "regular expression (left out) cannot be used"),
            ("unclosed \"s7", "unclosed (left out)"),
            (
                "a: Invalid value: \"s8…: no\nb: Invalid value: \"s9\": no\n",
                "a: Invalid value: (left out)\nb: Invalid value: (left out): no\n",
            ),
            ("field \"s10\"s11\": no", "field (left out)"),
            ("a: Invalid value: \"Invalid value: 1\": no", "a: Invalid value: (left out): no"),
            ("a: Invalid value: \"s\\\"12\"…: no", "a: Invalid value: (left out)…: no"),
        ] {
            assert_eq!(without_quoted_values(message), kept);
        }
    }

    /// With a search of the rest at each value, it would take minutes.
    #[test]
    fn a_text_is_gone_through_once() {
        const TIMES: usize = 40_000;
        let value = "Duplicate value: \"s1\", not [2; ";
        let without = "Duplicate value: (left out), not [2; ";
        for between in ["", "\n"] {
            let text = format!("{value}{between}").repeat(TIMES);
            assert!(text.len() > 1 << 20);
            let expected = format!("{without}{between}").repeat(TIMES);
            assert!(without_quoted_values(&text) == expected);
        }
        let open = format!("{}\"", value.repeat(TIMES));
        assert_eq!(without_quoted_values(&open), "Duplicate value: (left out)");
    }
}
