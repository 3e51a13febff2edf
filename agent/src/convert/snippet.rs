//! Snippets of nginx' configuration: directives that write header fields are filters here. Any
//! other may have kept requests out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Header fields that a snippet writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub request: Vec<Value>,
    pub response: Vec<Value>,
    /// Names that clients do not get.
    pub removed: Vec<Value>,
    /// Names that backends do not get.
    pub hidden: Vec<Value>,
}

/// # Errors
/// The first directive that writes no header field.
pub(super) fn fields(snippet: &str) -> Result<Fields, String> {
    let mut fields = Fields::default();
    for words in directives(snippet)? {
        let unknown = || format!("`{}` is no header field", words.join(" "));
        let field = |name: &str, value: &str| {
            let is_value = value.chars().all(|c| c == '\t' || !c.is_control());
            let fits = is_value && !value.contains('$') && is_name(name);
            fits.then(|| json!({"name": name, "value": value})).ok_or_else(unknown)
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["more_set_headers", fields_of @ ..] if !fields_of.is_empty() => {
                for pair in fields_of {
                    let (name, value) = pair.split_once(':').ok_or_else(unknown)?;
                    let name = name.trim_matches(is_blank);
                    match value.trim_matches(is_blank) {
                        "" => fields.removed.push(field(name, "")?["name"].clone()),
                        value => fields.response.push(field(name, value)?),
                    }
                }
            }
            ["add_header", name, value] | ["add_header", name, value, "always"] if !value.is_empty() => {
                fields.response.push(field(name, value)?);
            }
            // Without a value, backends do not get what the client sent.
            ["proxy_set_header", name, ""] => fields.hidden.push(field(name, "")?["name"].clone()),
            ["proxy_set_header", name, value]
                if !name.eq_ignore_ascii_case("host") && !name.eq_ignore_ascii_case("connection") =>
            {
                fields.request.push(field(name, value)?);
            }
            ["more_clear_headers" | "proxy_hide_header", names @ ..]
                if !names.is_empty() && names.iter().all(|name| is_name(name)) =>
            {
                fields.removed.extend(names.iter().map(|name| json!(name)));
            }
            _ => return Err(unknown()),
        }
    }
    for of in [&fields.request, &fields.response] {
        let mut names = BTreeSet::new();
        let name = |field: &Value| field["name"].as_str().unwrap_or_default().to_ascii_lowercase();
        if let Some(twice) = of.iter().map(name).find(|name| !names.insert(name.clone())) {
            return Err(format!("{twice} is written twice"));
        }
    }
    Ok(fields)
}

/// True of the name of a field; of the modules' own languages there are options (`-t`) and `*`.
fn is_name(text: &str) -> bool {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#%&'+.^_`|~-".contains(&b);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_token)
}

/// Directives as nginx reads them: words, some in quotation marks, up to a semicolon, wherever the
/// lines end.
fn directives(snippet: &str) -> Result<Vec<Vec<String>>, String> {
    let (mut directives, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut chars = snippet.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => drop(chars.by_ref().find(|c| *c == '\n')),
            ';' => {
                words.extend(word.take());
                directives.push(std::mem::take(&mut words));
            }
            '"' | '\'' if word.is_none() => {
                let quoted: Option<String> = quoted(&mut chars, c);
                words.push(quoted.ok_or_else(|| format!("`{} …` is no header field", words.join(" ")))?);
            }
            '{' | '}' | '\\' | '"' | '\'' => {
                words.extend(word.take());
                return Err(format!("`{} {c}` is no header field", words.join(" ")));
            }
            c if is_blank(c) => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.is_empty() { Ok(directives) } else { Err(format!("`{}` does not end", words.join(" "))) }
}

fn quoted(chars: &mut std::str::Chars<'_>, mark: char) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            c if c == mark => break,
            '\\' => return None,
            c => text.push(c),
        }
    }
    let next = chars.clone().next();
    next.is_none_or(|c| c == ';' || is_blank(c)).then_some(text)
}

/// True of what nginx takes for a blank: all others are part of a word.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_nothing_else() {
        let snippet = "# A comment.\nmore_set_headers \"X-Frame-Options: DENY\";\n  proxy_set_header X-A 'b c';\nmore_clear_headers Server; # Another.\nproxy_set_header\n  X-User \"\";";
        let fields = fields(snippet).ok();
        let expected = Fields {
            request: vec![json!({"name": "X-A", "value": "b c"})],
            response: vec![json!({"name": "X-Frame-Options", "value": "DENY"})],
            removed: vec![json!("Server")],
            hidden: vec![json!("X-User")],
        };
        assert_eq!(fields, Some(expected));
        for other in [
            "deny all;",
            "if ($x) { return 403; }",
            "add_header X $host;",
            "proxy_set_header Host a;",
            "more_clear_headers Server; deny all;",
            "more_clear_headers -t text/html X;",
            "more_clear_headers X-*;",
            "proxy_hide_header X;auth_basic off",
            "more_set_headers \"A: b\"; more_set_headers \"a: c\";",
            "more_set_headers 'A: b'deny all;",
            "add_header A \"b",
            "add_header A \"b\nC: d\";",
            "more_clear_headers A\u{a0}B;",
        ] {
            assert!(super::fields(other).is_err(), "{other}");
        }
    }
}
