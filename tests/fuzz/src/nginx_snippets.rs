//! Snippets of nginx' configuration in annotations of Ingresses: what is converted is fields alone,
//! for nginx as for us, each of which a message can have; and written anew it is the same.

#[path = "../../../agent/src/convert/snippet.rs"]
mod snippet;

use http::{HeaderName, HeaderValue};
use serde_json::Value;
use snippet::{Fields, fields};

const DIRECTIVES: [&str; 5] =
    ["more_set_headers", "add_header", "proxy_set_header", "more_clear_headers", "proxy_hide_header"];

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(read) = fields(text) else { return };
    let Some(directives) = directives(text) else { unreachable!("nginx refuses {text:?}") };
    let mut names = Vec::new();
    for directive in &directives {
        let Some((name, words)) = directive.split_first() else { continue };
        assert!(DIRECTIVES.contains(&&**name), "{name} is converted, in {text:?}");
        match &**name {
            "add_header" | "proxy_set_header" => names.extend(words.first().cloned()),
            "more_set_headers" => {
                names.extend(words.iter().map(|word| word.split(':').next().unwrap_or_default().to_owned()))
            }
            _ => names.extend(words.iter().cloned()),
        }
    }
    let Fields { request, response, removed, hidden } = &read;
    let written = request.iter().chain(response).map(|field| (&field["name"], &field["value"]));
    let gone = removed.iter().chain(hidden).map(|name| (name, &Value::Null));
    let all: Vec<_> = written.chain(gone).collect();
    assert_eq!(all.len(), names.len(), "fields of {text:?}");
    for (name, value) in all {
        let name = name.as_str().unwrap_or_default();
        assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?} of {text:?}");
        assert!(names.iter().any(|given| given.trim() == name), "{name} of {names:?}");
        let value = value.as_str().unwrap_or_default();
        assert!(HeaderValue::from_bytes(value.as_bytes()).is_ok(), "{value:?} of {text:?}");
    }
    if let Some(written) = written_anew(&read) {
        assert_eq!(fields(&written).as_ref(), Ok(&read), "{text:?} is {written:?}");
    }
}

/// `None` if a value has both kinds of quotation marks.
fn written_anew(fields: &Fields) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for (directive, fields) in [("proxy_set_header", &fields.request), ("add_header", &fields.response)] {
        for field in fields {
            let value = text(&field["value"]);
            let mark = ['"', '\''].into_iter().find(|mark| !value.contains(*mark))?;
            lines.push(format!("{directive} \"{}\" {mark}{value}{mark};", text(&field["name"])));
        }
    }
    lines.extend(fields.removed.iter().map(|name| format!("proxy_hide_header \"{}\";", text(name))));
    lines.extend(fields.hidden.iter().map(|name| format!("proxy_set_header \"{}\" \"\";", text(name))));
    Some(lines.join("\n"))
}

/// Directives by the rules of nginx' own reader (`ngx_conf_read_token`); `None` of blocks, escapes
/// and what it refuses.
fn directives(text: &str) -> Option<Vec<Vec<String>>> {
    let (mut directives, mut words) = (Vec::new(), Vec::new());
    let mut chars = text.chars().peekable();
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    while let Some(c) = chars.next() {
        match c {
            c if is_blank(c) => {}
            '#' => drop(chars.by_ref().find(|c| *c == '\n')),
            ';' if words.is_empty() => return None,
            ';' => directives.push(std::mem::take(&mut words)),
            '{' | '}' => return None,
            '"' | '\'' => {
                let word: String = chars.by_ref().take_while(|next| *next != c).collect();
                // It is the text of the mark's own end.
                chars.peek().filter(|next| is_blank(**next) || **next == ';')?;
                words.push(word);
            }
            c => {
                let mut word = String::from(c);
                while let Some(next) = chars.next_if(|next| !is_blank(*next) && *next != ';') {
                    word.push(next);
                }
                if word.contains(['{', '\\']) {
                    return None;
                }
                words.push(word);
            }
        }
    }
    words.is_empty().then_some(directives)
}
