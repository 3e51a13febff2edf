//! Messages of HTTP/1 as the strictest of readers takes them (RFC 9112): what it reads, every other
//! one reads the same.

/// A message that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Request line or status line.
    pub start: String,
    /// Names in lower case, in order of names.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// With its length in bytes.
    Message(Message, usize),
    /// There is more to come.
    Incomplete,
    Malformed,
}

/// The end of a body.
enum Length {
    Bytes(usize),
    Chunked,
    UntilClose,
}

struct Head {
    start: String,
    fields: Vec<(String, String)>,
    size: usize,
}

type Parsed<T> = Result<T, Reading>;

pub(crate) fn request(bytes: &[u8]) -> Reading {
    read_request(bytes).unwrap_or_else(|reading| reading)
}

/// The response to a request of this method; `is_closed` if nothing is to follow the bytes.
pub(crate) fn response(bytes: &[u8], method: &str, is_closed: bool) -> Reading {
    read_response(bytes, method, is_closed).unwrap_or_else(|reading| reading)
}

fn read_request(bytes: &[u8]) -> Parsed<Reading> {
    let head = head(bytes)?;
    let words: Vec<&str> = head.start.split(' ').collect();
    let [method, target, version] = words[..] else { return Err(Reading::Malformed) };
    let is_target = !target.is_empty() && target.chars().all(|c| c > ' ' && c != '\u{7f}');
    let is_fine = is_token(method) && is_target;
    if !is_fine || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(Reading::Malformed);
    }
    let length = match length(&head.fields)? {
        Some(Length::Chunked) if version == "HTTP/1.0" => return Err(Reading::Malformed),
        Some(length) => length,
        None => Length::Bytes(0),
    };
    body(bytes, head, &length, false)
}

fn read_response(bytes: &[u8], method: &str, is_closed: bool) -> Parsed<Reading> {
    let head = head(bytes)?;
    let (version, rest) = head.start.split_at_checked("HTTP/1.1 ".len()).ok_or(Reading::Malformed)?;
    let status = rest.get(..3).and_then(|digits| digits.parse::<u16>().ok()).ok_or(Reading::Malformed)?;
    if !matches!(version, "HTTP/1.1 " | "HTTP/1.0 ") || !rest[3..].starts_with(' ') || status < 100 {
        return Err(Reading::Malformed);
    }
    let has_none = method == "HEAD" || status < 200 || status == 204 || status == 304;
    let length = if has_none {
        length(&head.fields)?;
        Length::Bytes(0)
    } else {
        length(&head.fields)?.unwrap_or(Length::UntilClose)
    };
    body(bytes, head, &length, is_closed)
}

fn head(bytes: &[u8]) -> Parsed<Head> {
    let mut lines = Vec::new();
    let mut at = 0;
    loop {
        let line = line(bytes, &mut at)?;
        match line.is_empty() {
            true if lines.is_empty() => return Err(Reading::Malformed),
            true => break,
            false => lines.push(line),
        }
    }
    Ok(Head { start: lines[0].clone(), fields: fields(&lines[1..])?, size: at })
}

/// The next line, which ends in CRLF and has neither of them, nor other characters of control.
fn line(bytes: &[u8], at: &mut usize) -> Parsed<String> {
    let line = any_line(bytes, at)?;
    let is_text = line.chars().all(|c| c == '\t' || !c.is_ascii_control());
    if is_text { Ok(line) } else { Err(Reading::Malformed) }
}

/// The next line, which ends in CRLF and has neither of them. Its bytes are characters each.
fn any_line(bytes: &[u8], at: &mut usize) -> Parsed<String> {
    let rest = &bytes[*at..];
    let stop = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    match stop.map(|stop| (stop, &rest[stop..])) {
        None | Some((_, b"\r")) => Err(Reading::Incomplete),
        Some((stop, [b'\r', b'\n', ..])) => {
            *at += stop + 2;
            Ok(rest[..stop].iter().copied().map(char::from).collect())
        }
        Some(_) => Err(Reading::Malformed),
    }
}

fn fields(lines: &[String]) -> Parsed<Vec<(String, String)>> {
    let field = |line: &String| {
        let (name, value) = line.split_once(':').filter(|(name, _)| is_token(name))?;
        Some((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
    };
    let mut fields: Vec<_> =
        lines.iter().map(|line| field(line).ok_or(Reading::Malformed)).collect::<Result<_, _>>()?;
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(fields)
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn length(fields: &[(String, String)]) -> Parsed<Option<Length>> {
    let named = |name: &str| fields.iter().filter(|field| field.0 == name).map(|field| &*field.1).collect();
    let codings: Vec<&str> = named("transfer-encoding");
    let lengths: Vec<&str> = named("content-length");
    match (&codings[..], &lengths[..]) {
        ([], []) => Ok(None),
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(Length::Chunked)),
        ([], [length]) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Some(Length::Bytes(length.parse().map_err(|_| Reading::Malformed)?)))
        }
        _ => Err(Reading::Malformed),
    }
}

fn body(bytes: &[u8], head: Head, length: &Length, is_closed: bool) -> Parsed<Reading> {
    let Head { start, fields, size } = head;
    let rest = &bytes[size..];
    let message = |body: &[u8], trailers| Message { start, fields, body: body.to_vec(), trailers };
    match length {
        Length::Bytes(length) => {
            let body = rest.get(..*length).ok_or(Reading::Incomplete)?;
            Ok(Reading::Message(message(body, Vec::new()), size + length))
        }
        Length::UntilClose if is_closed => Ok(Reading::Message(message(rest, Vec::new()), bytes.len())),
        Length::UntilClose => Err(Reading::Incomplete),
        Length::Chunked => {
            let (mut at, mut body) = (size, Vec::new());
            loop {
                // What an extension is made of is the sender's.
                let chunk = any_line(bytes, &mut at)?;
                let size = chunk.split(';').next().unwrap_or_default();
                let is_number = !size.is_empty() && size.bytes().all(|digit| digit.is_ascii_hexdigit());
                let size = usize::from_str_radix(size, 16).ok().filter(|_| is_number);
                let size = size.ok_or(Reading::Malformed)?;
                if size == 0 {
                    break;
                }
                let end = at.checked_add(size).ok_or(Reading::Malformed)?;
                body.extend_from_slice(bytes.get(at..end).ok_or(Reading::Incomplete)?);
                at = end;
                if !line(bytes, &mut at)?.is_empty() {
                    return Err(Reading::Malformed);
                }
            }
            let mut lines = Vec::new();
            loop {
                match line(bytes, &mut at)? {
                    line if line.is_empty() => break,
                    line => lines.push(line),
                }
            }
            let trailers = self::fields(&lines)?;
            Ok(Reading::Message(message(&body, trailers), at))
        }
    }
}

#[test]
fn reads_what_is_beyond_doubt_only() {
    for (bytes, expected) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", Some("")),
        ("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab", Some("ab")),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: y\r\n\r\n", Some("a")),
        ("GET / HTTP/1.1\nhost: a\n\n", None),
        ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", None),
        ("POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na", None),
        ("POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\na", None),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n", None),
    ] {
        let read = match request(bytes.as_bytes()) {
            Reading::Message(message, size) if size == bytes.len() => Some(message.body),
            _ => None,
        };
        assert_eq!(read.as_deref(), expected.map(str::as_bytes), "{bytes:?}");
    }
}
