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

/// The text of a message without values that it quotes, be it in quotes, or bare behind the words
/// of schemas and rules, `Invalid value: …`.
pub fn without_quoted_values(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(begin) = next_value(rest) {
        let (before, after) = rest.split_at(begin);
        kept += before;
        let length = value_length(after);
        if length > 0 {
            kept += LEFT_OUT;
        }
        rest = &after[length..];
    }
    kept + rest
}

/// The next place at which a value may begin.
fn next_value(text: &str) -> Option<usize> {
    const BEFORE: [&str; 3] = ["Invalid value: ", "Unsupported value: ", "Duplicate value: "];
    let announced = BEFORE.iter().filter_map(|words| Some(text.find(words)? + words.len()));
    announced.chain(text.find('"')).min()
}

/// Bytes of the value at the beginning, 0 if there is none. Of an object or a list that a message
/// has cut off, nothing of the line is kept.
fn value_length(text: &str) -> usize {
    if let Some(quoted) = text.strip_prefix('"') {
        return 1 + end_of_quoted(quoted);
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => values.byte_offset(),
        Some(Err(_)) if text.starts_with(['{', '[']) => text.find('\n').unwrap_or(text.len()),
        Some(Err(_)) | None => 0,
    }
}

/// Bytes until behind the closing quote, or all if there is none.
fn end_of_quoted(text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|c: char| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 1)
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
        ] {
            assert_eq!(without_quoted_values(message), kept);
        }
    }
}
