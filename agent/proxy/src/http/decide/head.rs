//! The head of a request as routes see it.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::{HeaderName, HeaderValue, Method, header};
use portcullis_model::RequestHead;

use crate::core::head::{Fields, Head, joined};
use crate::http::decide::decision::{Decision, Guarded, Next, Step};
use crate::http::edge::Target;
use crate::http::headers::{is_claim, is_seen};
use crate::http::host_value::host_value;
use crate::http::search_time::SearchTime;
use crate::http::sender;
use crate::http::templates::Connected;

/// The head as routes see it.
pub(crate) struct RoutedHead<'r, H> {
    pub(super) head: &'r H,
    pub(super) method: &'r Method,
    pub(super) target: &'r Target<'r>,
    /// The sender of what is said of the client. `None` if of what it says only that is left which
    /// is believed.
    claimant: Option<Connected<'r>>,
    query: OnceCell<Vec<(Cow<'r, str>, Cow<'r, str>)>>,
    pub(crate) search: SearchTime,
}

impl<'r, H: Head> RoutedHead<'r, H> {
    pub(crate) fn new(head: &'r H, method: &'r Method, target: &'r Target<'r>) -> Self {
        let (query, search) = (OnceCell::new(), SearchTime::default());
        Self { head, method, target, claimant: None, query, search }
    }

    /// The same, of a sender who is believed as far as backends are told what it claims.
    pub(super) fn of(self, claimant: Option<Connected<'r>>) -> Self {
        Self { claimant, ..self }
    }

    /// The host with port, as the target names it; or else as the field does.
    pub(super) fn named_and_field(&self) -> (Option<HeaderValue>, Option<HeaderValue>) {
        let named = self.head.authority().and_then(|authority| host_value(authority.as_bytes()));
        let field = || self.head.fields().get(&header::HOST).and_then(host_value);
        let field = if named.is_none() { field() } else { None };
        (named, field)
    }

    /// True if no backend gets such a field as it came: it is the client's word alone.
    fn is_hidden(&self, name: &HeaderName) -> bool {
        self.claimant.is_some_and(|Connected { peer, address, proxies, .. }| {
            let chain = || sender::chain(self.head.fields(), proxies, (peer.ip(), address));
            !is_seen(name) || is_claim(name) && chain().is_none()
        })
    }

    pub(super) fn guarded<'s>(&self, steps: Vec<Step<'s>>, next: Next<'s>) -> Decision<'s> {
        let (named, field) = self.named_and_field();
        let authority = named.or(field).unwrap_or(HeaderValue::from_static(""));
        let (path, fields) = (self.target.path.clone().into_owned(), self.target.fields);
        let (begun, said) = (None, Vec::new());
        Decision::Guarded(Box::new(Guarded { steps, next, begun, path, authority, fields, said }))
    }
}

impl<H: Head> RequestHead for RoutedHead<'_, H> {
    fn method(&self) -> &Method {
        self.method
    }

    fn host(&self) -> &str {
        &self.target.host
    }

    fn path(&self) -> &str {
        &self.target.path
    }

    fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>> {
        if self.is_hidden(name) { None } else { joined(self.head.fields(), name) }
    }

    fn query_param(&self, name: &str) -> Option<Cow<'_, str>> {
        let pairs = self.query.get_or_init(|| {
            form_urlencoded::parse(self.head.query().unwrap_or_default().as_bytes()).collect()
        });
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| Cow::Borrowed(&**value))
    }

    fn may_search(&self, bytes: usize) -> bool {
        self.search.permits(bytes)
    }
}
