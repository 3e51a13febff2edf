//! The question, and the request or connection that it is about, made from a URL and header lines.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use http::{HeaderName, Method, Uri, header};
use portcullis_model::{FrontendKey, L4Protocol, PortKey, RequestHead, field_size, separator};
use serde::{Deserialize, Serialize};

/// A request to explain, or a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Question {
    pub url: String,
    #[serde(default = "get")]
    pub method: String,
    /// `Name: value`
    #[serde(default)]
    pub headers: Vec<String>,
    /// List every candidate.
    #[serde(default)]
    pub all: bool,
}

fn get() -> String {
    Method::GET.to_string()
}

/// A question that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    #[error("{url:?} is no URL")]
    NoUrl { url: String, source: http::uri::InvalidUri },
    #[error("{0:?} is no URL of http://, https://, tls://, tcp:// or udp://")]
    Scheme(String),
    #[error("{0:?} is no port: use one of 1 to 65535")]
    Port(String),
    #[error("{0:?} names no port: add one")]
    NoPort(String),
    #[error("{0:?} is no HTTP method")]
    Method(String),
    #[error("{0:?} is no \"Name: value\"")]
    Header(String),
}

/// Reads a part of a request as the data plane does: normalised, or refused.
pub type ReadPart = fn(&str) -> Result<Cow<'_, str>, EarlyAnswer>;

/// The data plane's own reading of requests.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Of an authority: the host alone.
    pub host: ReadPart,
    pub path: ReadPart,
    pub method: fn(&Method) -> Result<(), EarlyAnswer>,
    /// True unless rules see no such field of any client, or of a proxy that is believed.
    pub sees: fn(&HeaderName) -> bool,
    /// True for a statement about the client, which rules see only of a proxy that is believed.
    pub is_claim: fn(&HeaderName) -> bool,
    pub search: fn() -> Search,
    /// The answer to header fields that are too many or too long.
    pub fields: fn() -> EarlyAnswer,
}

/// The limits of a search for the rule of one request.
pub struct Search {
    /// True as long as one more regular expression may look at so many bytes.
    pub permits: Box<dyn Fn(usize) -> bool>,
    /// The answer once it may not.
    pub over: EarlyAnswer,
}

/// An answer that the data plane gives before any route is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyAnswer {
    pub status: u16,
    pub words: &'static str,
}

/// The fate of statements about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claims {
    /// They are a believed proxy's.
    Seen,
    Hidden,
}

/// The traffic that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
    /// A connection in TLS, whatever is said in it.
    Tls,
    Tcp,
    Udp,
}

pub(crate) struct Request {
    pub scheme: Scheme,
    pub port: u16,
    /// The TLS server name: the URL's host, unless that is an address; in a connection of which no
    /// more is asked, the `Host` given with it.
    pub server_name: Option<String>,
    /// Address that it is sent to, if the URL has one.
    address: Option<IpAddr>,
    method: Method,
    /// As routes see it; empty if it is refused.
    host: String,
    /// As routes see it, unless it, the host or the method is refused.
    path: Result<String, EarlyAnswer>,
    /// The answer to its method, which comes before all others.
    refused_method: Option<EarlyAnswer>,
    fields: FieldSizes,
    reading: Reading,
    search: RefCell<Search>,
    is_given_up: Cell<bool>,
    /// At the listener that it has come to.
    claims: Cell<Claims>,
    /// As asked.
    target: String,
    headers: BTreeMap<String, String>,
    query: Vec<(String, String)>,
    /// Of path and query, as asked.
    target_bytes: usize,
}

/// The header fields as a client of HTTP/1 sends them, `Host` among them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FieldSizes {
    pub count: usize,
    pub bytes: usize,
}

impl Request {
    pub(crate) fn parse(question: &Question, reading: Reading) -> Result<Self, QuestionError> {
        let url = || question.url.clone();
        let uri: Uri = url().parse().map_err(|source| QuestionError::NoUrl { url: url(), source })?;
        let scheme = uri.scheme_str().and_then(Scheme::of);
        let scheme = scheme.ok_or_else(|| QuestionError::Scheme(url()))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
        let url_host = uri.host().unwrap_or_default().to_ascii_lowercase();
        let address: Option<IpAddr> = url_host.trim_matches(['[', ']']).parse().ok();
        let headers = headers(&question.headers)?;
        let method: Method =
            question.method.parse().map_err(|_| QuestionError::Method(question.method.clone()))?;
        let host = (reading.host)(headers.get("host").map_or(authority, String::as_str));
        let path = host.as_ref().map_err(|refused| *refused).and_then(|_| (reading.path)(uri.path()));
        Ok(Self {
            scheme,
            port: match port(authority)?.or(scheme.default_port()) {
                Some(port) => port,
                None => return Err(QuestionError::NoPort(url())),
            },
            server_name: match headers.get("host").filter(|_| scheme == Scheme::Tls) {
                Some(name) => Some(name.to_ascii_lowercase()),
                None => (scheme.is_tls() && address.is_none())
                    .then(|| url_host.strip_suffix('.').unwrap_or(&url_host).to_owned()),
            },
            address,
            refused_method: (reading.method)(&method).err(),
            fields: field_sizes(&question.headers, authority),
            reading,
            search: RefCell::new((reading.search)()),
            is_given_up: Cell::new(false),
            claims: Cell::new(Claims::Seen),
            method,
            path: path.map(Cow::into_owned),
            host: host.map(Cow::into_owned).unwrap_or_default(),
            target: uri.path().to_owned(),
            headers,
            query: pairs(uri.query().unwrap_or_default()),
            target_bytes: uri.path().len() + uri.query().map_or(0, str::len),
        })
    }

    /// The data plane's answer to the method, before anything else is looked at.
    pub(crate) fn answer_to_method(&self) -> Option<EarlyAnswer> {
        self.refused_method
    }

    /// The data plane's answer to host and path before anything is routed.
    pub(crate) fn early_answer(&self) -> Option<EarlyAnswer> {
        self.path.as_ref().err().copied()
    }

    pub(crate) fn fields(&self) -> FieldSizes {
        self.fields
    }

    /// The data plane's answer to fields that are too many or too long.
    pub(crate) fn answer_to_fields(&self) -> EarlyAnswer {
        (self.reading.fields)()
    }

    /// Begins a search, with all the time that there is for one.
    pub(crate) fn begin_search(&self) {
        self.search.replace((self.reading.search)());
        self.is_given_up.set(false);
    }

    /// The answer if the search is given up: the rule that was found need not be the right one.
    pub(crate) fn given_up(&self) -> Option<EarlyAnswer> {
        self.is_given_up.get().then(|| self.search.borrow().over)
    }

    /// Has rules see its statements about the client, or not.
    pub(crate) fn take(&self, claims: Claims) {
        self.claims.set(claims);
    }

    /// The names of fields with statements about the client.
    pub(crate) fn claims(&self) -> impl Iterator<Item = HeaderName> {
        let names = self.headers.keys().filter_map(|name| name.parse().ok());
        names.filter(|name| (self.reading.is_claim)(name))
    }

    /// Returns `true` if routes see another path than the one asked for.
    pub(crate) fn is_rewritten(&self) -> bool {
        self.path.as_ref().is_ok_and(|path| *path != self.target)
    }

    /// Bytes of path and query.
    pub(crate) fn target_bytes(&self) -> usize {
        self.target_bytes
    }

    /// The address that it is sent to, if the URL has one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(crate) fn is_for_port(&self, frontend: &FrontendKey) -> bool {
        frontend.port_key() == PortKey { number: self.port, protocol: self.scheme.transport() }
    }
}

// === impl Scheme ===

impl Scheme {
    fn of(text: &str) -> Option<Self> {
        match text {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            "tls" => Some(Self::Tls),
            "tcp" => Some(Self::Tcp),
            "udp" => Some(Self::Udp),
            _ => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    fn transport(self) -> L4Protocol {
        match self {
            Self::Http | Self::Https | Self::Tls | Self::Tcp => L4Protocol::Tcp,
            Self::Udp => L4Protocol::Udp,
        }
    }

    fn default_port(self) -> Option<u16> {
        match self {
            Self::Http => Some(80),
            Self::Https | Self::Tls => Some(443),
            Self::Tcp | Self::Udp => None,
        }
    }
}

fn headers(lines: &[String]) -> Result<BTreeMap<String, String>, QuestionError> {
    let mut headers = BTreeMap::<String, String>::new();
    for line in lines {
        let unreadable = || QuestionError::Header(line.clone());
        let (name, value) = line.split_once(':').ok_or_else(unreadable)?;
        let name: HeaderName = name.trim().parse().map_err(|_| unreadable())?;
        let value = value.trim().to_owned();
        let is_left_out = |value: &str| value.is_empty() && name == header::COOKIE;
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|before| {
                if is_left_out(before) {
                    before.clone_from(&value);
                } else if !is_left_out(&value) {
                    *before = [before, separator(&name), &value].concat();
                }
            })
            .or_insert(value);
    }
    Ok(headers)
}

fn field_sizes(lines: &[String], authority: &str) -> FieldSizes {
    let fields = lines.iter().filter_map(|line| line.split_once(':'));
    let fields: Vec<_> = fields.map(|(name, value)| (name.trim(), value.trim())).collect();
    let has_host = fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = (!has_host).then_some(("host", authority));
    let sizes = fields.into_iter().chain(host).map(|(name, value)| field_size(name.len(), value.len()));
    sizes
        .fold(FieldSizes::default(), |all, size| FieldSizes { count: all.count + 1, bytes: all.bytes + size })
}

/// The port that a URL names. The library takes one that is none for one that is not there.
fn port(authority: &str) -> Result<Option<u16>, QuestionError> {
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && !port.ends_with(']') => {
            let number = port.parse().ok().filter(|port| *port != 0);
            number.map(Some).ok_or_else(|| QuestionError::Port(port.to_owned()))
        }
        _ => Ok(None),
    }
}

/// The names and values of a query.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(k, v)| (decoded(k), decoded(v)))
        .collect()
}

/// `application/x-www-form-urlencoded`, as the data plane reads queries.
fn decoded(text: &str) -> String {
    let hex = |bytes: &[u8]| u8::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok();
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, bytes.get(at + 1..at + 3).and_then(hex)) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (other, _) => out.push(*other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl RequestHead for Request {
    fn method(&self) -> &Method {
        &self.method
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }

    fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>> {
        let is_seen = (self.reading.sees)(name)
            && (self.claims.get() == Claims::Seen || !(self.reading.is_claim)(name));
        let value = self.headers.get(name.as_str()).filter(|_| is_seen);
        value.map(|value| Cow::Borrowed(value.as_bytes()))
    }

    fn query_param(&self, name: &str) -> Option<Cow<'_, str>> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| Cow::Borrowed(value.as_str()))
    }

    fn may_search(&self, bytes: usize) -> bool {
        let is_permitted = (self.search.borrow().permits)(bytes);
        self.is_given_up.set(!is_permitted);
        is_permitted
    }
}

/// `GET shop.example/cart`; if routes see another path, with both. `a tcp connection`.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Http | Scheme::Https => {}
            Scheme::Tls => {
                return write!(f, "TLS with server name {}", self.server_name.as_deref().unwrap_or("none"));
            }
            Scheme::Tcp => return f.write_str("a connection"),
            Scheme::Udp => return f.write_str("a datagram"),
        }
        write!(f, "{} {}{}", self.method, self.host, self.target)?;
        if self.is_rewritten() { write!(f, ", routed as {}", self.path()) } else { Ok(()) }
    }
}
