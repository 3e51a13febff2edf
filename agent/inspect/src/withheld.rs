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
        Value::String(text) => *text = without_quoted_values(text),
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

/// The text of a message without values that it quotes: `Invalid value: "…"` of schemas and rules,
/// `invalid type: string "…"` of parsers.
pub fn without_quoted_values(text: &str) -> String {
    const BEFORE: [&str; 2] = ["value: ", "string "];
    let (mut kept, mut rest) = (String::new(), text);
    let next = |rest: &str| BEFORE.iter().filter_map(|it| Some(rest.find(it)? + it.len())).min();
    while let Some(begin) = next(rest) {
        let (before, after) = rest.split_at(begin);
        kept += before;
        rest = after;
        let length = match after.strip_prefix('"') {
            Some(quoted) => 1 + end_of_quoted(quoted),
            None if before.ends_with("value: ") => after.find([':', ',', '\n']).unwrap_or(after.len()),
            None => continue,
        };
        kept += LEFT_OUT;
        rest = &after[length..];
    }
    kept + rest
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
            "message": "a: Invalid value: \"s\\\"6\": no; b: invalid type: string \"s7\", not value: 12: c; string d",
        }]});
        withhold(&mut config);
        let expected = json!({"routes": [{
            "headers": {"x-channel": "(left out)", "X-Api-Key": "(left out)"},
            "query": {"access_token": "(left out)"},
            "filters": [{"RequestHeaders": {"set": [["x-partner", "(left out)"]], "add": [["b", "(left out)"]], "remove": ["c"]}}],
            "respond": {"status": 200, "body": "(left out)"},
            "message": "a: Invalid value: (left out): no; b: invalid type: string (left out), not value: (left out): c; string d",
        }]});
        assert_eq!(config, expected);
    }
}
