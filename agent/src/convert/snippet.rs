//! Snippets of nginx' configuration: directives that write header fields are filters here. Any
//! other may have kept requests out.

use serde_json::{Value, json};

/// Header fields that a snippet writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub request: Vec<Value>,
    pub response: Vec<Value>,
    pub removed: Vec<String>,
}

/// # Errors
/// The first directive that writes no header field.
pub(super) fn fields(snippet: &str) -> Result<Fields, String> {
    let mut fields = Fields::default();
    let lines = snippet.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let unknown = || format!("`{line}` is no header field");
        let directive = line.strip_suffix(';').ok_or_else(unknown)?;
        let words = words(directive);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let field = |name: &str, value: &str| {
            let fits = !value.contains(['$', ';']) && !name.is_empty();
            fits.then(|| json!({"name": name, "value": value})).ok_or_else(unknown)
        };
        match words.as_slice() {
            ["more_set_headers", fields_of @ ..] if !fields_of.is_empty() => {
                for pair in fields_of {
                    let (name, value) = pair.split_once(':').ok_or_else(unknown)?;
                    fields.response.push(field(name.trim(), value.trim())?);
                }
            }
            ["add_header", name, value] | ["add_header", name, value, "always"] => {
                fields.response.push(field(name, value)?);
            }
            ["proxy_set_header", name, value]
                if !name.eq_ignore_ascii_case("host") && !name.eq_ignore_ascii_case("connection") =>
            {
                fields.request.push(field(name, value)?);
            }
            ["more_clear_headers" | "proxy_hide_header", names @ ..] if !names.is_empty() => {
                fields.removed.extend(names.iter().map(|name| (*name).to_owned()));
            }
            _ => return Err(unknown()),
        }
    }
    Ok(fields)
}

/// Words of a directive, some in quotation marks.
fn words(directive: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in directive.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_nothing_else() {
        let snippet = "# A comment.\nmore_set_headers \"X-Frame-Options: DENY\";\n  proxy_set_header X-A 'b c';\nmore_clear_headers Server;\n";
        let fields = fields(snippet).ok();
        let expected = Fields {
            request: vec![json!({"name": "X-A", "value": "b c"})],
            response: vec![json!({"name": "X-Frame-Options", "value": "DENY"})],
            removed: vec!["Server".to_owned()],
        };
        assert_eq!(fields, Some(expected));
        for other in
            ["deny all;", "if ($x) { return 403; }", "add_header X $host;", "proxy_set_header Host a;"]
        {
            assert!(super::fields(other).is_err(), "{other}");
        }
    }
}
