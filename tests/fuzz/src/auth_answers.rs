//! Answers of auth services in Envoy's protocol: a request passes only if the message says so and
//! nothing in it says otherwise, and what the service changes is neither where the request goes nor
//! how messages are framed.

use form_urlencoded::parse;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use portcullis_proxy::fuzzing::{AuthOutcome, by_grpc};

/// Fields of the request that no service may change, in the spelling of the client.
const OWN: [(&str, &str); 7] = [
    ("connection", "keep-alive"),
    ("content-length", "5"),
    ("host", "shop.example"),
    ("te", "trailers"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "websocket"),
    ("cdn-loop", "a"),
];
const TARGET: &str = "/a%2Fb?a=1&b=%202&a=3&c";

pub(crate) fn run(bytes: &[u8]) {
    let Ok(length) = u32::try_from(bytes.len()) else { return };
    let message = [&[0][..], &length.to_be_bytes(), bytes].concat();
    let mut given: HeaderMap = OWN.map(|(name, value)| field(name, value)).into_iter().collect();
    given.extend([field("x-user", "eve"), field("x_user", "eve"), field("authorization", "Bearer a")]);
    let outcome = by_grpc(&message, Uri::from_static(TARGET), given.clone());
    // One byte less, or more, is no message.
    for other in [&message[..message.len() - 1], &[&message[..], &[0]].concat()] {
        let outcome = by_grpc(other, Uri::from_static(TARGET), given.clone());
        assert!(matches!(outcome, AuthOutcome::Failed), "{outcome:?} of {} bytes", other.len());
    }
    match outcome {
        AuthOutcome::Allowed { target, fields, response } => {
            let Some(said) = said(bytes) else { unreachable!("it passes by a malformed message") };
            assert!(said.passes(), "{said:?}");
            assert_eq!(target.path(), "/a%2Fb");
            is_edited(target.query().unwrap_or_default(), &said);
            for (name, value) in OWN {
                let values: Vec<_> = fields.get_all(name).iter().collect();
                assert_eq!(values, [value], "{name}");
                assert!(!response.contains_key(name), "{name} of the response");
            }
        }
        AuthOutcome::Denied(answer) => {
            assert!(!answer.status().is_informational(), "{}", answer.status());
            for (name, _) in OWN {
                assert!(!answer.headers().contains_key(name), "{name} of the answer");
            }
        }
        AuthOutcome::Failed => {}
    }
}

/// Parameters that the service says nothing of stay as they were written; those that it sets are
/// behind them.
fn is_edited(query: &str, said: &Grounds) {
    let edited =
        |name: &str| said.set.iter().any(|(it, _)| it == name) || said.removed.iter().any(|it| it == name);
    let pairs = |query: &'static str| query.split('&').filter(|pair| !pair.is_empty());
    let given = pairs(TARGET.split_once('?').map_or("", |(_, query)| query));
    let kept: Vec<_> = given.filter(|pair| !edited(pair.split('=').next().unwrap_or_default())).collect();
    let mut all = query.split('&').filter(|pair| !pair.is_empty());
    let first: Vec<_> = all.by_ref().take(kept.len()).collect();
    assert_eq!(first, kept, "of {query:?}");
    let set: Vec<(String, String)> = all
        .map(|pair| match &*parse(pair.as_bytes()).into_owned().collect::<Vec<_>>() {
            [pair] => pair.clone(),
            pairs => unreachable!("{pairs:?} of {query:?}"),
        })
        .collect();
    assert_eq!(set, said.set, "of {query:?}");
}

/// The parts of an answer that decide.
#[derive(Debug, Default)]
struct Grounds {
    /// A message whose parts may come in several pieces: of each number, the last counts.
    code: Option<u64>,
    has_status: bool,
    denies: bool,
    consents: bool,
    /// Parameters of the query.
    set: Vec<(String, String)>,
    removed: Vec<String>,
}

impl Grounds {
    fn passes(&self) -> bool {
        let is_good = if self.has_status { self.code.unwrap_or(0) == 0 } else { self.consents };
        is_good && !self.denies
    }
}

/// By the encoding alone: `CheckResponse` has `status` (1, with `code` 1), `denied_response` (2)
/// and `ok_response` (3), that parameters to set (7, with key 1 and value 2) and to remove (8).
fn said(message: &[u8]) -> Option<Grounds> {
    let mut said = Grounds::default();
    for (number, value) in parts(message)? {
        match (number, value) {
            (1, Part::Bytes(status)) => {
                said.has_status = true;
                for part in parts(status)? {
                    if let (1, Part::Number(code)) = part {
                        // Of 32 bits.
                        said.code = Some(code & 0xffff_ffff);
                    }
                }
            }
            (2, Part::Bytes(_)) => said.denies = true,
            (3, Part::Bytes(consent)) => {
                said.consents = true;
                for part in parts(consent)? {
                    match part {
                        (7, Part::Bytes(parameter)) => said.set.push(parameter_of(parameter)?),
                        (8, Part::Bytes(name)) => said.removed.push(text(name)?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(said)
}

fn parameter_of(message: &[u8]) -> Option<(String, String)> {
    let (mut name, mut value) = (String::new(), String::new());
    for part in parts(message)? {
        match part {
            (1, Part::Bytes(bytes)) => name = text(bytes)?,
            (2, Part::Bytes(bytes)) => value = text(bytes)?,
            _ => {}
        }
    }
    Some((name, value))
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

enum Part<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    Other,
}

fn parts(mut message: &[u8]) -> Option<Vec<(u64, Part<'_>)>> {
    let mut parts = Vec::new();
    let mut groups = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message)?;
        let part = match key & 7 {
            0 => Part::Number(number(&mut message)?),
            1 => take(&mut message, 8).map(|_| Part::Other)?,
            2 => {
                let length = usize::try_from(number(&mut message)?).ok()?;
                Part::Bytes(take(&mut message, length)?)
            }
            3 => {
                groups.push(key >> 3);
                continue;
            }
            4 => {
                groups.pop().filter(|begun| *begun == key >> 3)?;
                continue;
            }
            5 => take(&mut message, 4).map(|_| Part::Other)?,
            _ => return None,
        };
        if groups.is_empty() {
            parts.push((key >> 3, part));
        }
    }
    groups.is_empty().then_some(parts)
}

fn take<'m>(message: &mut &'m [u8], length: usize) -> Option<&'m [u8]> {
    let (taken, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(taken)
}

fn number(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..10 {
        let byte = take(message, 1)?[0];
        number |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn field(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}
