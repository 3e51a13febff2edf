//! gRPC calls as far as a gateway has a part in them: their deadline. The client's `grpc-timeout`
//! and the time-outs of the rule hold both, the shorter one first; the backend is told of it, so
//! that it stops in time, and the call ends as `DEADLINE_EXCEEDED` if it does not
//! (`PROTOCOL-HTTP2.md` of gRPC, "Requests").

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use http_body::Frame;

use crate::core::head::{Fields, Head};
use crate::core::reason::{GrpcCode, Reason};
use crate::http::grpc_web::GrpcWebCall;

pub(crate) const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Digits of a time-out: "positive integer as ASCII string of at most 8 digits".
const DIGITS: usize = 8;

/// A request that is a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// From when the request came.
    pub timeout: Option<Duration>,
    pub ends_by: EndsBy,
    /// `None` for gRPC itself.
    pub web: Option<GrpcWebCall>,
}

/// The way in which a response that has begun can be ended with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndsBy {
    Trailers,
    /// gRPC-Web has its trailers among the messages, one of which may be under way.
    Nothing,
}

impl Call {
    /// A call with this content type.
    pub(crate) fn of(head: &impl Head, content_type: &HeaderValue) -> Self {
        const WEB: &[u8] = b"application/grpc-web";
        let begin = content_type.as_bytes().get(..WEB.len());
        let is_web = begin.is_some_and(|begin| begin.eq_ignore_ascii_case(WEB));
        let ends_by =
            if head.version() == Version::HTTP_2 && !is_web { EndsBy::Trailers } else { EndsBy::Nothing };
        let timeout = head.fields().get(&TIMEOUT).and_then(duration);
        let web = if is_web { GrpcWebCall::of(head.fields(), content_type) } else { None };
        Self { timeout, ends_by, web }
    }

    /// The time-out to tell the backend, where the gateway's `limit` is shorter than the client's
    /// own.
    pub(crate) fn shortened(self, limit: Option<Duration>) -> Option<HeaderValue> {
        limit.filter(|limit| self.timeout.is_some_and(|given| *limit < given)).and_then(timeout)
    }
}

/// The trailers of a call whose time is over.
pub(crate) fn deadline_exceeded<B: Into<Bytes>>() -> Frame<B> {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(STATUS, HeaderValue::from(GrpcCode::DeadlineExceeded as u16));
    trailers.insert(MESSAGE, HeaderValue::from_static(Reason::Timeout.text().trim_end()));
    Frame::trailers(trailers)
}

/// `None` if it is malformed: then it is the backend's to judge.
pub(crate) fn duration(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS {
        return None;
    }
    let mut number = 0_u64;
    for digit in digits {
        number = number * 10 + u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// In the smallest unit in which it has no more digits than it may.
pub(crate) fn timeout(limit: Duration) -> Option<HeaderValue> {
    let most = 10_u128.pow(u32::try_from(DIGITS).ok()?) - 1;
    let units = [(limit.as_millis(), 'm'), (u128::from(limit.as_secs()), 'S')];
    let (number, unit) = units.into_iter().find(|(number, _)| *number <= most)?;
    HeaderValue::try_from(format!("{number}{unit}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        for (written, expected) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("15S", Some(Duration::from_secs(15))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("0n", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("123456789m", None),
            ("", None),
            ("m", None),
            ("5", None),
            ("-1S", None),
            ("1.5S", None),
            ("1s", None),
            (" 1S", None),
        ] {
            assert_eq!(duration(written.as_bytes()), expected, "{written:?}");
        }
    }

    #[test]
    fn the_backend_is_told_a_shorter_limit_only() {
        let call = |timeout| Call { timeout, ends_by: EndsBy::Trailers, web: None };
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(1_000_000));
        assert_eq!(call(Some(long)).shortened(Some(short)), Some(HeaderValue::from_static("50m")));
        assert_eq!(call(Some(long * 2)).shortened(Some(long)), Some(HeaderValue::from_static("1000000S")));
        assert_eq!(call(Some(short)).shortened(Some(long)), None);
        assert_eq!(call(Some(long)).shortened(None), None);
        assert_eq!(call(None).shortened(Some(short)), None);
    }
}
