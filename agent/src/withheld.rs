//! Values that a report leaves out: those that rules write into header fields, those that they want
//! header fields and parameters of a telling name to have, and those that messages quote. They are
//! no Secrets, but people write credentials there.

use std::collections::BTreeSet;

use serde_json::Value;

const LEFT_OUT: &str = "(left out)";

/// Parts of names of fields and parameters whose values may be credentials.
const TELLING: [&str; 9] =
    ["auth", "cookie", "token", "secret", "password", "passwd", "key", "credential", "session"];

/// By name, what was left out.
#[derive(Default)]
pub(crate) struct Withheld(BTreeSet<(String, String)>);

impl Withheld {
    /// Takes them out of a configuration or statuses.
    pub(crate) fn take_out_of(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), &mut *value) {
                        ("set" | "add", Value::Array(pairs)) => self.pairs(pairs),
                        ("headers" | "query", Value::Object(wanted)) => {
                            for (name, value) in wanted.iter_mut().filter(|(name, _)| is_telling(name)) {
                                self.leave_out(name, value);
                            }
                        }
                        _ => self.take_out_of(value),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.take_out_of(value)),
            Value::String(text) => *text = without_quoted_values(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Takes those out of text that were in a configuration: `authorization=Bearer x`.
    pub(crate) fn removed_from(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| {
            ["=", "~"].iter().fold(text, |text, operator| {
                text.replace(&format!("{name}{operator}{value}"), &format!("{name}{operator}{LEFT_OUT}"))
            })
        })
    }

    /// Fields that a rule writes, each a name and a value.
    fn pairs(&mut self, pairs: &mut [Value]) {
        for pair in pairs {
            match pair.as_array_mut().map(Vec::as_mut_slice) {
                Some([Value::String(name), value]) => self.leave_out(&name.clone(), value),
                _ => self.take_out_of(pair),
            }
        }
    }

    fn leave_out(&mut self, name: &str, value: &mut Value) {
        if let Some(text) = value.as_str() {
            // As a dump shows values that are wanted.
            let plain = text.strip_prefix("Exact ").or_else(|| text.strip_prefix("RegularExpression "));
            self.0.insert((name.to_owned(), plain.unwrap_or(text).to_owned()));
        }
        *value = LEFT_OUT.into();
    }
}

fn is_telling(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    TELLING.iter().any(|part| name.contains(part))
}

/// The text of a message without values that it quotes: `Invalid value: "…"` of schemas and rules,
/// `invalid type: string "…"` of parsers.
pub(crate) fn without_quoted_values(text: &str) -> String {
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
        let mut withheld = Withheld::default();
        let mut config = json!({"routes": [{
            "headers": {"x-channel": "Exact beta", "X-Api-Key": "Exact s1"},
            "query": {"access_token": "RegularExpression s2|s3"},
            "filters": [{"RequestHeaders": {"set": [["x-partner", "s4"]], "add": [["b", "s5"]], "remove": ["c"]}}],
            "message": "a: Invalid value: \"s\\\"6\": no; b: invalid type: string \"s7\", not value: 12: c; string d",
        }]});
        withheld.take_out_of(&mut config);
        let expected = json!({"routes": [{
            "headers": {"x-channel": "Exact beta", "X-Api-Key": "(left out)"},
            "query": {"access_token": "(left out)"},
            "filters": [{"RequestHeaders": {"set": [["x-partner", "(left out)"]], "add": [["b", "(left out)"]], "remove": ["c"]}}],
            "message": "a: Invalid value: (left out): no; b: invalid type: string (left out), not value: (left out): c; string d",
        }]});
        assert_eq!(config, expected);
        assert_eq!(
            withheld.removed_from("header x-channel=beta, header X-Api-Key=s1, query access_token~s2|s3"),
            "header x-channel=beta, header X-Api-Key=(left out), query access_token~(left out)"
        );
    }
}
