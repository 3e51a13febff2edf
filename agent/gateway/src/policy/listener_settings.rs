//! Limits and access log of a ListenerPolicy, in the ranges that they have in GatewayParameters.

use std::num::NonZeroU32;

use portcullis_api::types::gatewayparameters::GatewayParametersLimits;
use portcullis_api::types::listenerpolicies::ListenerPolicyLimits;
use portcullis_api::types::shared::AccessLogSpec;
use portcullis_model::{AccessLog, Limits, ListenerLimits, LogLines, LogPatch};

use crate::infra;

pub(super) fn limits(given: &ListenerPolicyLimits) -> Result<ListenerLimits, String> {
    let same = GatewayParametersLimits {
        header_timeout: given.header_timeout.clone(),
        idle_timeout: given.idle_timeout.clone(),
        http2_idle_timeout: given.http2_idle_timeout.clone(),
        http2_streams: given.http2_streams,
        target_bytes: given.target_bytes,
        header_bytes: given.header_bytes,
        header_fields: given.header_fields,
        ..GatewayParametersLimits::default()
    };
    let mut read = Limits::default();
    infra::overlay_limits(&mut read, &same).map_err(|fault| fault.message)?;
    let requests = given.requests_per_connection.map(|requests| {
        let number = u32::try_from(requests).ok().and_then(NonZeroU32::new);
        number
            .ok_or_else(|| format!("limits.requestsPerConnection {requests} is out of range: use 1 or more"))
    });
    let limits = ListenerLimits {
        requests: requests.transpose()?,
        header_timeout: same.header_timeout.map(|_| read.header_timeout),
        idle_timeout: same.idle_timeout.map(|_| read.idle_timeout),
        http2_idle_timeout: same.http2_idle_timeout.map(|_| read.http2_idle_timeout),
        http2_streams: same.http2_streams.map(|_| read.http2_streams),
        target_bytes: same.target_bytes.map(|_| read.target_bytes),
        header_bytes: same.header_bytes.map(|_| read.header_bytes),
        header_fields: same.header_fields.map(|_| read.header_fields),
    };
    match limits == ListenerLimits::default() {
        true => Err("limits is empty: write one of them".to_owned()),
        false => Ok(limits),
    }
}

pub(super) fn log(given: &AccessLogSpec) -> Result<LogPatch, String> {
    let mut read = AccessLog::default();
    infra::overlay_log(&mut read, given).map_err(|fault| fault.message)?;
    Ok(LogPatch {
        lines: if given.enabled.unwrap_or(true) { LogLines::Some } else { LogLines::None },
        format: given.format.as_ref().map(|_| read.format),
        minimum_status: given.minimum_status.map(|_| read.minimum_status),
        omit: given.omit.as_ref().map(|_| read.omit),
    })
}
