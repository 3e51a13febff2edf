//! The place of a request in a trace, as `traceparent` says it (W3C Trace Context).

use std::fmt;

use http::header::{HeaderName, HeaderValue};

use crate::core::head::Fields;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

const SAMPLED: u8 = 1;
/// Flags that are passed on: that one, and "random".
const KNOWN_FLAGS: u8 = SAMPLED | 2;
/// Characters of a field of version 00.
const LENGTH: usize = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".len();

/// Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(u128);

/// Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    flags: u8,
}

// === impl TraceId ===

impl TraceId {
    pub(crate) fn random() -> Self {
        Self(fastrand::u128(1..))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

// === impl SpanId ===

impl SpanId {
    pub(crate) fn random() -> Self {
        Self(fastrand::u64(1..))
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

// === impl TraceContext ===

impl TraceContext {
    /// The beginning of a trace, which is not recorded.
    pub(crate) fn begin() -> Self {
        Self { trace: TraceId::random(), span: SpanId::random(), flags: 0 }
    }

    /// The one that the request came with. "If the vendor failed to parse `traceparent`, it MUST
    /// NOT attempt to parse `tracestate`", and begins a trace; several fields are no context.
    pub(crate) fn given(fields: &impl Fields) -> Option<Self> {
        let name = TRACEPARENT;
        let mut values = fields.get_all(&name);
        let value = values.next()?;
        if values.next().is_some() { None } else { Self::parse(value) }
    }

    /// "Vendors MUST parse" what they know of a version that they do not, if that is in front and
    /// ends there or with a dash.
    fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let text = std::str::from_utf8(known).ok()?;
        let mut parts = text.split('-');
        let [version, trace, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let version: u8 = hexadecimal(version, 2)?.try_into().ok()?;
        let ends = match version {
            0 => rest.is_empty(),
            u8::MAX => false,
            _ => rest.is_empty() || rest.first() == Some(&b'-'),
        };
        if !ends || parts.next().is_some() {
            return None;
        }
        let (trace, span) = (hexadecimal(trace, 32)?, u64::try_from(hexadecimal(span, 16)?).ok()?);
        let flags: u8 = hexadecimal(flags, 2)?.try_into().ok()?;
        (trace != 0 && span != 0).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            flags: flags & KNOWN_FLAGS,
        })
    }

    pub(crate) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace with another parent for what comes next.
    pub(crate) fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    pub(crate) fn sampled(self) -> Self {
        Self { flags: self.flags | SAMPLED, ..self }
    }

    pub(crate) fn unsampled(self) -> Self {
        Self { flags: self.flags & !SAMPLED, ..self }
    }

    pub(crate) fn flags(self) -> u8 {
        self.flags
    }

    pub(crate) fn to_value(self) -> HeaderValue {
        let Self { trace, span, flags } = self;
        let text = format!("00-{trace}-{span}-{flags:02x}");
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// A number of so many digits, in lower case.
fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != digits || !text.bytes().all(is_digit) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn contexts_are_read_as_the_specification_wants_it() {
        let zero = "0".repeat(32);
        for (value, passed_on) in [
            (format!("00-{TRACE}-{SPAN}-01"), Some("01")),
            (format!("00-{TRACE}-{SPAN}-00"), Some("00")),
            (format!("00-{TRACE}-{SPAN}-03"), Some("03")),
            (format!("00-{TRACE}-{SPAN}-ff"), Some("03")),
            // Versions to come.
            (format!("cc-{TRACE}-{SPAN}-01"), Some("01")),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), Some("01")),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-01-x"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("00-{TRACE}-{SPAN}-1"), None),
            (format!("00-{zero}-{SPAN}-01"), None),
            (format!("00-{TRACE}-0000000000000000-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_ascii_uppercase()), None),
            (format!("00-{}-{SPAN}-01", TRACE.replace('0', "+")), None),
            (format!("00-{TRACE}-{SPAN}+01"), None),
            (format!("0-{TRACE}-{SPAN}-001"), None),
            (format!(" 00-{TRACE}-{SPAN}-01"), None),
            ("é".repeat(60), None),
            ("-".repeat(LENGTH), None),
            (String::new(), None),
        ] {
            let context = TraceContext::given(&PlainFields::of(&[("traceparent", &value)]));
            let expected = passed_on.map(|flags| format!("00-{TRACE}-{SPAN}-{flags}"));
            assert_eq!(context.map(|it| it.to_value().to_str().unwrap().to_owned()), expected, "{value}");
        }
        let one = format!("00-{TRACE}-{SPAN}-01");
        let twice = PlainFields::of(&[("traceparent", &one), ("traceparent", &one)]);
        assert_eq!(TraceContext::given(&twice), None);
    }

    #[test]
    fn what_begins_here_can_be_read() {
        for _ in 0..100 {
            let context = TraceContext::begin();
            assert!(!context.is_sampled() && context.sampled().is_sampled());
            assert_eq!(TraceContext::parse(context.to_value().as_bytes()), Some(context));
            assert_eq!(context.sampled().unsampled(), context);
        }
    }
}
