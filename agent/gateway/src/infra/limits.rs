//! The limits of a Gateway's clients as GatewayParameters give them, checked and laid over what
//! held before. The ranges are those of the CRD's schema, which may be newer than we are, or not be
//! asked.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use portcullis_api::types::gatewayparameters::GatewayParametersLimits;
use portcullis_model::Limits;

use crate::Fault;
use crate::route::parse_duration;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn overlay(limits: &mut Limits, given: &GatewayParametersLimits) -> Result<(), Fault> {
    if let Some(connections) = number("connections", given.connections, 1..=i32::MAX.unsigned_abs())? {
        limits.connections = Some(connections);
    }
    if let Some(bytes) = given.body_bytes {
        let fits = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        limits.body_bytes = Some(fits.ok_or_else(|| out_of_range("bodyBytes", bytes, 1, i64::MAX))?);
    }
    let times = [
        ("tlsHandshakeTimeout", &mut limits.tls_handshake_timeout, &given.tls_handshake_timeout),
        ("headerTimeout", &mut limits.header_timeout, &given.header_timeout),
        ("idleTimeout", &mut limits.idle_timeout, &given.idle_timeout),
        ("http2IdleTimeout", &mut limits.http2_idle_timeout, &given.http2_idle_timeout),
    ];
    for (field, limit, given) in times {
        *limit = time(field, given.as_deref())?.unwrap_or(*limit);
    }
    let numbers = [
        ("http2Streams", &mut limits.http2_streams, given.http2_streams, 1..=10_000),
        ("targetBytes", &mut limits.target_bytes, given.target_bytes, 256..=32 << 10),
        ("headerBytes", &mut limits.header_bytes, given.header_bytes, 1 << 10..=64 << 10),
        ("headerFields", &mut limits.header_fields, given.header_fields, 10..=1_000),
    ];
    for (field, limit, given, range) in numbers {
        *limit = number(field, given, range)?.unwrap_or(*limit);
    }
    Ok(())
}

fn number(field: &str, given: Option<i32>, range: RangeInclusive<u32>) -> Result<Option<u32>, Fault> {
    let Some(given) = given else { return Ok(None) };
    let fits = u32::try_from(given).ok().filter(|number| range.contains(number));
    fits.map(Some).ok_or_else(|| out_of_range(field, given, range.start(), range.end()))
}

fn time(field: &str, given: Option<&str>) -> Result<Option<Duration>, Fault> {
    let Some(given) = given else { return Ok(None) };
    let time = parse_duration(given)
        .map_err(|error| Fault::invalid_parameters(format!("limits.{field} {error}")))?;
    let fits = (SHORTEST..=LONGEST).contains(&time);
    fits.then_some(Some(time)).ok_or_else(|| out_of_range(field, given, "1s", "24h"))
}

fn out_of_range<T: Display>(field: &str, given: impl Display, least: T, most: T) -> Fault {
    Fault::invalid_parameters(format!("limits.{field} {given} is out of range: use {least} to {most}"))
}
