//! External auth in Envoy's protocol: the service gets a description of the request, and answers
//! with what is to become of it.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use form_urlencoded::byte_serialize;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use jiff::Timestamp;
use portcullis_model::{BackendName, FieldNames};
use prost::Message;

use super::ext_authz::{
    Address, AppendAction, AttributeContext, CHECK, CheckRequest, CheckResponse, DeniedHttpResponse,
    HeaderValueOption, HttpRequest, OkHttpResponse, Peer, SocketAddress,
};
use super::{Consent, QueryEdit, Question, Verdict, ext_authz};
use crate::core::head::joined;
use crate::core::window::Windows;
use crate::http::change::{self, Change};
use crate::upstream::attempt::UpstreamResponse;
use crate::upstream::endpoint::ResponseBody;

/// Bytes of an answer: a service that has more to say serves pages over HTTP.
const LONGEST_ANSWER: usize = 64 << 10;
/// Bytes in front of a message: a flag, and its length.
const PREFIX: usize = 5;

/// The question, and its body.
pub(super) fn request(
    names: &FieldNames,
    backend: &BackendName,
    question: &Question<'_>,
    limit: Duration,
) -> Option<(Request<()>, Bytes)> {
    let message = check(names, question);
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).ok()?);
    message.encode(&mut body).ok()?;
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = CHECK.parse().ok()?;
    let fields = request.headers_mut();
    fields.insert(header::HOST, authority(backend)?);
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    fields.insert(header::TE, HeaderValue::from_static("trailers"));
    let limit = HeaderValue::from_str(&format!("{}m", limit.as_millis().min(99_999_999))).ok()?;
    fields.insert(HeaderName::from_static("grpc-timeout"), limit);
    question.sign(fields);
    Some((request, body.freeze()))
}

/// `service.namespace:port`, as the service is called inside of the cluster.
fn authority(BackendName(name): &BackendName) -> Option<HeaderValue> {
    let (namespace, rest) = name.split_once('/')?;
    let (service, port) = rest.split('/').next()?.split_once(':')?;
    HeaderValue::from_str(&format!("{service}.{namespace}:{port}")).ok()
}

fn check(names: &FieldNames, question: &Question<'_>) -> CheckRequest {
    let Question { client, method, fields, .. } = question;
    let host = String::from_utf8_lossy(question.authority.as_bytes()).into_owned();
    let mut headers = std::collections::BTreeMap::new();
    for name in fields.keys().filter(|name| names.contains(name)) {
        let value = joined(*fields, name).unwrap_or_default();
        headers.insert(name.as_str().to_owned(), String::from_utf8_lossy(&value).into_owned());
    }
    // As Envoy has it, whose services look for them here.
    if *names == FieldNames::All {
        let pseudo = [
            (":method", method.as_str()),
            (":path", &question.target),
            (":authority", &host),
            (":scheme", client.scheme()),
        ];
        headers.extend(pseudo.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    let (body, raw_body) = match &question.body {
        None => Default::default(),
        Some(body) => match std::str::from_utf8(body) {
            Ok(_) => (body.clone(), Bytes::new()),
            Err(_) => (Bytes::new(), body.clone()),
        },
    };
    let length = fields.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let http = HttpRequest {
        id: question.request_id.to_str().unwrap_or_default().to_owned(),
        method: method.as_str().to_owned(),
        headers,
        path: question.target.clone(),
        host,
        scheme: client.scheme().to_owned(),
        size: length.unwrap_or(-1),
        protocol: protocol(question.version).to_owned(),
        body,
        raw_body,
    };
    let now = Timestamp::now();
    let time = ext_authz::Timestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond() };
    let request = ext_authz::Request { time: Some(time), http: Some(http) };
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(peer(source(question))),
            destination: Some(peer(client.local)),
            request: Some(request),
        }),
    }
}

/// The client; with port 0 where proxies list its address, as Envoy has it.
fn source(question: &Question<'_>) -> SocketAddr {
    let peer = question.client.peer;
    match question.address {
        Some(address) if address.to_canonical() != peer.ip().to_canonical() => (address, 0).into(),
        Some(_) | None => peer,
    }
}

fn peer(address: SocketAddr) -> Peer {
    let (ip, port) = (address.ip().to_canonical(), address.port());
    let socket_address = SocketAddress { address: ip.to_string(), port_value: Some(port.into()) };
    Peer { address: Some(Address { socket_address: Some(socket_address) }) }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// An answer lets the request pass only if it is there as a whole, and says so.
pub(super) async fn verdict(response: UpstreamResponse, windows: &Windows) -> Verdict {
    match read(response, windows).await {
        Ok(answer) => judge(&answer),
        Err(problem) => Verdict::Failed(problem),
    }
}

/// The verdict of an answer, which is one message.
pub(super) fn judge(answer: &[u8]) -> Verdict {
    const MALFORMED: Verdict = Verdict::Failed("the auth service's answer is malformed");
    let decoded = match answer.split_at_checked(PREFIX) {
        Some(([0, length @ ..], message)) if length == (message.len() as u32).to_be_bytes() => {
            CheckResponse::decode(message)
        }
        _ => return MALFORMED,
    };
    let Ok(CheckResponse { status, denied_response, ok_response }) = decoded else { return MALFORMED };
    match (status.map(|status| status.code), denied_response, ok_response) {
        (Some(0), None, consent) => allowed(consent.unwrap_or_default()),
        (None, None, Some(consent)) => allowed(consent),
        (None, None, None) => Verdict::Failed("the auth service's answer says nothing"),
        (_, denied, _) => denied_by(denied.unwrap_or_default()),
    }
}

async fn read(response: UpstreamResponse, windows: &Windows) -> Result<Vec<u8>, &'static str> {
    let (parts, mut body) = response.into_parts();
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if parts.status != StatusCode::OK || !content_type.is_some_and(|it| it.starts_with(b"application/grpc")) {
        return Err("the auth service does not answer in gRPC");
    }
    let (bytes, trailers) = collect(&mut body, windows).await?;
    let status = trailers.get("grpc-status").or_else(|| parts.headers.get("grpc-status"));
    if status.is_none_or(|status| status != "0") {
        return Err("the auth service answered with a gRPC error");
    }
    body.release();
    Ok(bytes)
}

async fn collect(body: &mut ResponseBody, windows: &Windows) -> Result<(Vec<u8>, HeaderMap), &'static str> {
    let (mut bytes, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx, LONGEST_ANSWER)).await {
        match frame.map_err(|_| "the auth service's answer broke off")?.into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
        if bytes.len() > LONGEST_ANSWER {
            return Err("the auth service's answer is too long");
        }
        windows.renew();
    }
    Ok((bytes, trailers))
}

/// Fields of the request are replaced unless the service says otherwise, those of the response
/// added, and what is to be removed is removed last: Envoy's order and defaults.
fn allowed(consent: OkHttpResponse) -> Verdict {
    let mut request = Vec::new();
    for option in &consent.headers {
        match changes(option, AppendAction::OverwriteIfExistsOrAdd) {
            Ok(changes) => request.extend(changes),
            Err(problem) => return Verdict::Failed(problem),
        }
    }
    for name in &consent.headers_to_remove {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) if change::is_own(&name) => {}
            Ok(name) => request.push(Change::Remove(name)),
            Err(_) if is_ignored(name) => {}
            Err(_) => return Verdict::Failed("the auth service named what is no header field"),
        }
    }
    let mut response = Vec::new();
    for option in &consent.response_headers_to_add {
        match changes(option, AppendAction::AppendIfExistsOrAdd) {
            Ok(changes) => response.extend(changes),
            Err(problem) => return Verdict::Failed(problem),
        }
    }
    let set = consent.query_parameters_to_set.into_iter();
    let set = set.map(|it| QueryEdit { name: it.key, value: Some(it.value) });
    let removed = consent.query_parameters_to_remove.into_iter();
    let query = set.chain(removed.map(|name| QueryEdit { name, value: None })).collect();
    Verdict::Allowed(Consent { request, response, query }, None)
}

/// Listeners are chosen by the host, which filters "MUST NOT modify": Envoy's services may try.
fn is_ignored(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case(":scheme")
}

/// The changes that an option asks for; `usual` is meant where it does not say.
fn changes(option: &HeaderValueOption, usual: AppendAction) -> Result<Vec<Change>, &'static str> {
    let Some(header) = &option.header else { return Ok(Vec::new()) };
    let name = match HeaderName::from_bytes(header.key.as_bytes()) {
        Ok(name) if change::is_own(&name) => return Ok(Vec::new()),
        Ok(name) => name,
        Err(_) if is_ignored(&header.key) => return Ok(Vec::new()),
        Err(_) => return Err("the auth service named what is no header field"),
    };
    let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
    let value =
        HeaderValue::from_bytes(value).map_err(|_| "the auth service sent what is no field's value")?;
    let action = match (option.append, option.append_action()) {
        (Some(append), _) if append.value => AppendAction::AppendIfExistsOrAdd,
        (Some(_), _) => AppendAction::OverwriteIfExistsOrAdd,
        (None, AppendAction::AppendIfExistsOrAdd) => usual,
        (None, action) => action,
    };
    Ok(match action {
        AppendAction::AppendIfExistsOrAdd => vec![Change::Append(name, value)],
        AppendAction::AddIfAbsent => vec![Change::Add(name, value)],
        AppendAction::OverwriteIfExistsOrAdd => Change::set(&name, [value]),
        AppendAction::OverwriteIfExists => vec![Change::Replace(name, value)],
    })
}

/// The answer for the client; 403 unless the service says otherwise.
fn denied_by(denied: DeniedHttpResponse) -> Verdict {
    let status = denied.status.map_or(0, |status| status.code);
    let status = match u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok()) {
        Some(status) if !status.is_informational() => status,
        _ if status == 0 => StatusCode::FORBIDDEN,
        _ => return Verdict::Failed("the auth service denied with what is no status"),
    };
    let mut response = Response::new(Bytes::from(denied.body));
    *response.status_mut() = status;
    for option in &denied.headers {
        match changes(option, AppendAction::AppendIfExistsOrAdd) {
            Ok(changes) => changes.iter().for_each(|change| change.apply(response.headers_mut())),
            Err(problem) => return Verdict::Failed(problem),
        }
    }
    if !response.body().is_empty() {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().entry(header::CONTENT_TYPE).or_insert(text);
    }
    Verdict::DeniedWith(response)
}

// === impl QueryEdit ===

impl QueryEdit {
    /// The query after the edits; parameters that none of them is about stay as they are written.
    pub(super) fn apply(edits: &[Self], query: Option<&str>) -> Option<String> {
        let written = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let is_edited = |pair: &&str| {
            let name = form_urlencoded::parse(pair.as_bytes()).next().map(|(name, _)| name);
            name.is_some_and(|name| edits.iter().any(|edit| edit.name == name))
        };
        let kept = written.filter(|pair| !is_edited(pair)).map(str::to_owned);
        let set = edits.iter().filter_map(|QueryEdit { name, value }| {
            let value = byte_serialize(value.as_ref()?.as_bytes()).collect::<String>();
            Some(format!("{}={value}", byte_serialize(name.as_bytes()).collect::<String>()))
        });
        let pairs: Vec<_> = kept.chain(set).collect();
        (!pairs.is_empty()).then(|| pairs.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::PortKey;

    use super::*;

    #[test]
    fn a_service_is_called_by_its_name() {
        let plain = BackendName::new("edge", "auth", PortKey::tcp(9000));
        assert_eq!(authority(&plain).unwrap(), "auth.edge:9000");
        assert_eq!(authority(&BackendName("edge/auth:9000/h2c".into())).unwrap(), "auth.edge:9000");
    }

    #[test]
    fn parameters_of_the_query_are_edited() {
        let set =
            |name: &str, value: &str| QueryEdit { name: name.to_owned(), value: Some(value.to_owned()) };
        let removed = |name: &str| QueryEdit { name: name.to_owned(), value: None };
        for (edits, query, expected) in [
            (vec![removed("token")], Some("a=%20b&token=x&token=y&c"), Some("a=%20b&c")),
            (vec![removed("token")], Some("tok%65n=x"), None),
            (vec![set("a", "1 2&3"), removed("b")], Some("b=1&a=0"), Some("a=1+2%263")),
            (vec![set("a", "1")], None, Some("a=1")),
        ] {
            assert_eq!(QueryEdit::apply(&edits, query).as_deref(), expected, "{edits:?} {query:?}");
        }
    }
}
