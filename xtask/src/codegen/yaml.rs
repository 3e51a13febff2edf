//! YAML in and out. Printed the way upstream's generator prints it (sorted keys, literal blocks,
//! lists not indented), so that comparing our CRDs with a release shows our fields and little else.

use std::fmt::Write;

use anyhow::Result;
use serde_json::Value;

pub(super) fn parse(text: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(text)?)
}

pub(super) fn print(value: &Value, header: &str) -> String {
    let mut out = format!("{header}---\n");
    block(&mut out, value, 0);
    out
}

/// A value whose first line starts where the cursor is; its other lines are indented.
fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (position, (key, value)) in map.iter().enumerate() {
                pad(out, if position == 0 { 0 } else { indent });
                entry(out, key, value, indent);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (position, value) in list.iter().enumerate() {
                pad(out, if position == 0 { 0 } else { indent });
                out.push_str("- ");
                block(out, value, indent + 2);
            }
        }
        scalar => line(out, scalar, indent),
    }
}

fn entry(out: &mut String, key: &str, value: &Value, indent: usize) {
    out.push_str(&scalar(key));
    let indent = match value {
        Value::Object(map) if !map.is_empty() => indent + 2,
        Value::Array(list) if !list.is_empty() => indent,
        scalar => {
            out.push_str(": ");
            return line(out, scalar, indent + 2);
        }
    };
    out.push_str(":\n");
    pad(out, indent);
    block(out, value, indent);
}

fn line(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) if is_literal(text) => literal(out, text, indent),
        Value::String(text) => out.push_str(&scalar(text)),
        // JSON's numbers, booleans, null and empty collections are YAML's.
        other => out.push_str(&other.to_string()),
    }
    out.push('\n');
}

fn is_literal(text: &str) -> bool {
    text.contains('\n') && !text.starts_with([' ', '\n']) && !text.ends_with('\n') && !text.contains('\t')
}

fn literal(out: &mut String, text: &str, indent: usize) {
    out.push_str("|-");
    for line in text.lines() {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
    }
}

fn scalar(text: &str) -> String {
    let syntax = text.contains(": ") || text.contains(" #") || text.ends_with([':', ' ']);
    if text.contains(|c: char| c.is_control()) || is_other_type(text) {
        Value::from(text).to_string()
    } else if syntax || !text.starts_with(starts_plain) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        text.to_owned()
    }
}

fn starts_plain(first: char) -> bool {
    first.is_ascii_alphabetic() || "./^$(_".contains(first)
}

/// Text that a YAML 1.1 or 1.2 reader may take for a boolean, a number, a date or nothing.
fn is_other_type(text: &str) -> bool {
    let words = ["", "true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    words.contains(&text.to_ascii_lowercase().as_str())
        || text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
}

fn pad(out: &mut String, indent: usize) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{:indent$}", "");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_printed_reads_back_the_same() {
        let value = json!({
            "plain": "^a.b$", "quoted": "it's: so", "number": 3, "text": "12", "yes": "on", "empty": {}, "none": [],
            "long": "first\n\n  second", "tail": "ends\n", "tab": "a\tb\nc",
            "list": [{"a": 1, "b": ["x", ["y", {}]]}, "z", {"deep": {"k": "v"}}],
        });
        let printed = print(&value, "# head\n");
        assert_eq!(parse(&printed).unwrap(), value, "{printed}");
    }
}
