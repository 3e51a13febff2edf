//! TrafficPolicy: what requests have to meet at the listeners of a Gateway or a ListenerSet, or at
//! the rules of a route. A policy that cannot be followed protects all the same: no request passes.
//! Nothing here knows whether its targets exist.

use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::trafficpolicies::{
    TrafficPolicy, TrafficPolicyCompression, TrafficPolicySpec, TrafficPolicyTracing,
};
use portcullis_model::origin::is_alike;
use portcullis_model::{
    ClientList, ClientRules, Coding, Compression, Defaults, ExternalAuth, GrpcWeb, Level, ObjectName,
    PolicyState, Protection, RateKey, RateLimit, Share,
};

use super::credential_fields::{self, Written};
use super::credentials::{self, Holders};
use super::declared::Target;
use super::listener::ranges;
use super::rate_limit;
use crate::{Fault, Reason, retry, timeouts};

/// A TrafficPolicy as it was read.
pub(crate) type Declared = super::declared::Declared<Terms>;

/// The say of one policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Adds up with that of other levels.
    pub(crate) protection: Arc<Protection>,
}

/// Bytes of a body from which on it is compressed by default: a shorter one takes a packet anyway.
const LEAST_COMPRESSED: i64 = 1024;

/// `auth` is the service of `externalAuth`, looked up.
pub(crate) fn declared(
    name: &ObjectName,
    policy: &TrafficPolicy,
    holders: &mut Holders<'_>,
    auth: Result<Option<ExternalAuth>, Fault>,
) -> Declared {
    let references = &policy.spec.target_refs;
    let terms = Terms::of(name, &policy.spec, holders, auth);
    let kinds = Kind::TrafficPolicy.targets();
    Declared::new(&policy.metadata, name, references, kinds, terms, || Terms::closed(name))
}

// === impl Terms ===

impl Terms {
    fn of(
        name: &ObjectName,
        spec: &TrafficPolicySpec,
        holders: &mut Holders<'_>,
        auth: Result<Option<ExternalAuth>, Fault>,
    ) -> Result<Self, Fault> {
        if let Some(reasons) = &spec.refused {
            return Err(closing(reasons));
        }
        let list = |field, texts: &Option<Vec<String>>| ranges(field, texts.as_deref().unwrap_or_default());
        let (allow, deny) = (list("allow", &spec.allow), list("deny", &spec.deny));
        let most_body_bytes = spec.max_request_body.map(body_bytes).transpose();
        let limits = rate_limit::limits(spec.rate_limits.as_deref().unwrap_or_default());
        let limits = limits.and_then(|limits| not_written(limits, &credential_fields::written(spec)));
        let limits = limits.and_then(|limits| with_tokens(limits, spec));
        let compression = spec.compression.as_ref().map(compression).transpose();
        let grpc_web = spec.grpc_web.as_deref().map(grpc_web).transpose();
        let tracing = spec.tracing.as_ref().map(sampling).transpose();
        let defaults = defaults(spec);
        let external_auth = auth.map_err(|fault| fault.within("externalAuth").message);
        let faults = [
            allow.clone().err(),
            deny.clone().err(),
            most_body_bytes.clone().err(),
            limits.clone().err(),
            compression.clone().err(),
            grpc_web.clone().err(),
            tracing.clone().err(),
            external_auth.clone().err(),
        ];
        let credentials = credentials::requirements(&name.namespace, spec, holders);
        let others = [defaults.as_ref().err(), credentials.as_ref().err()];
        let others = others.into_iter().flatten().flatten().cloned();
        let texts: Vec<_> = faults.into_iter().flatten().chain(others).collect();
        let (
            Ok(allow),
            Ok(deny),
            Ok(most_body_bytes),
            Ok(rate_limits),
            Ok(credentials),
            Ok(external_auth),
            Ok(compression),
            Ok(grpc_web),
            Ok(tracing),
            Ok(defaults),
        ) = (
            allow,
            deny,
            most_body_bytes,
            limits,
            credentials,
            external_auth,
            compression,
            grpc_web,
            tracing,
            defaults,
        )
        else {
            return Err(closing(&texts.join("; ")));
        };
        let is_any = allow.is_empty() && deny.is_empty();
        let clients = (!is_any).then(|| ClientRules::new(vec![ClientList { allow, deny }]));
        let protection = Protection {
            clients,
            most_body_bytes,
            rate_limits,
            credentials,
            external_auth: external_auth.map(Arc::new),
            compression: compression.map(Arc::new),
            grpc_web,
            tracing,
            defaults: defaults.map(Arc::new),
            ..Protection::by(name.clone())
        };
        if protection == Protection::by(name.clone()) {
            return Err(closing(
                "the policy's lists are empty, and it says nothing: fill them, or remove it",
            ));
        }
        Ok(Self { protection: Arc::new(protection) })
    }

    /// No request passes.
    pub(crate) fn closed(name: &ObjectName) -> Self {
        let protection = Protection { state: PolicyState::Closed, ..Protection::by(name.clone()) };
        Self { protection: Arc::new(protection) }
    }

    pub(crate) fn at(&self, target: &Target) -> Level {
        let section = match (&target.section, target.object.kind) {
            (None, _) => String::new(),
            (Some(section), Kind::Gateway | Kind::ListenerSet) => format!(" listener {section}"),
            (Some(section), _) => format!(" rule {section}"),
        };
        let target = format!("{}{section}", target.object).into();
        Level { target, protection: self.protection.clone() }
    }
}

fn closing(faults: &str) -> Fault {
    let closed = "until that is right, no request passes at what the policy is about";
    Fault::not_accepted(Reason::Invalid, format!("{faults}; {closed}"))
}

/// The limits, unless one is by a field that the policy writes itself, or removes because it reads
/// like one: they are taken before credentials are looked at and services asked, when that field is
/// still the client's word.
fn not_written(limits: Box<[RateLimit]>, written: &[Written<'_>]) -> Result<Box<[RateLimit]>, String> {
    let forged = limits.iter().find_map(|limit| match &limit.key {
        RateKey::Header(name) => {
            written.iter().map(|it| it.name).find(|it| is_alike(it.to_ascii_lowercase(), name.as_str()))
        }
        RateKey::All | RateKey::ClientAddress | RateKey::Claim(_) => None,
    });
    match forged {
        None => Ok(limits),
        Some(name) => Err(format!(
            "rateLimits: {name} is written when the request has been authenticated, and limits are taken before: key them by \
             ClientAddress"
        )),
    }
}

/// The limits, unless one is by a claim and the policy verifies no token that could have it.
fn with_tokens(limits: Box<[RateLimit]>, spec: &TrafficPolicySpec) -> Result<Box<[RateLimit]>, String> {
    if spec.jwt.is_none() && limits.iter().any(|limit| limit.key.is_claim()) {
        return Err(
            "rateLimits: a key of type Claim is for policies with jwt, whose token it is of: write that, too"
                .to_owned(),
        );
    }
    Ok(limits)
}

fn body_bytes(bytes: i64) -> Result<u64, String> {
    let positive = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    positive.ok_or_else(|| format!("maxRequestBody is {bytes}: write 1 or more bytes"))
}

fn compression(written: &TrafficPolicyCompression) -> Result<Compression, String> {
    let coding = |name: &String| {
        let known = Coding::ALL.into_iter().find(|coding| coding.name() == name);
        known.ok_or_else(|| format!("compression.algorithms: {name:?}: write br, gzip or zstd"))
    };
    let codings = written.algorithms.iter().map(coding).collect::<Result<_, _>>()?;
    let least = written.min_length.unwrap_or(LEAST_COMPRESSED);
    let least_bytes = u64::try_from(least)
        .map_err(|_| format!("compression.minLength is {least}: write 0 or more bytes"))?;
    Ok(Compression { codings, least_bytes })
}

fn grpc_web(written: &str) -> Result<GrpcWeb, String> {
    let known = GrpcWeb::ALL.into_iter().find(|grpc_web| grpc_web.name() == written);
    known.ok_or_else(|| format!("grpcWeb: {written:?}: write Translate or Pass"))
}

fn sampling(written: &TrafficPolicyTracing) -> Result<Share, String> {
    let (numerator, denominator) = match (&written.percent, &written.fraction) {
        (Some(percent), None) => (*percent, 100),
        (None, Some(fraction)) => (fraction.numerator, fraction.denominator.unwrap_or(100)),
        _ => return Err("tracing: write one of percent and fraction".to_owned()),
    };
    let parts = u32::try_from(numerator).ok().zip(u32::try_from(denominator).ok());
    let share = parts.and_then(|(numerator, denominator)| Share::new(numerator, denominator));
    share.ok_or_else(|| format!("tracing: {numerator} of {denominator} is no share: write from 0 to all"))
}

/// In the form that rules have. `None` if the policy has none.
///
/// # Errors
/// Everything that is wrong with them.
fn defaults(spec: &TrafficPolicySpec) -> Result<Option<Defaults>, Vec<String>> {
    let mut faults = Vec::new();
    let retry = spec.retry.as_ref().and_then(|written| retry::parse(written, &mut faults));
    let timeouts = spec.timeouts.as_ref().and_then(|written| timeouts::parse(written, &mut faults));
    if !faults.is_empty() {
        return Err(faults.into_iter().map(|fault| fault.message).collect());
    }
    let has_any = spec.retry.is_some() || spec.timeouts.is_some();
    Ok(has_any.then(|| Defaults { timeouts: timeouts.unwrap_or_default(), retry }))
}

#[cfg(test)]
mod tests {
    use portcullis_api::Objects;
    use serde_json::json;

    use super::*;
    use crate::policy::credentials::Parsed;

    fn declared(spec: serde_json::Value) -> Declared {
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "TrafficPolicy",
            "metadata": {"name": "p"}, "spec": spec});
        let (objects, mut parsed) = (Objects::default(), Parsed::default());
        let remote =
            [("login".into(), Err("remoteJwks: Service shop/login does not exist".to_owned()))].into();
        let mut holders = Holders { objects: &objects, parsed: &mut parsed, remote: &remote };
        let policy = serde_json::from_value(policy).unwrap();
        super::declared(&ObjectName::new("shop", "p"), &policy, &mut holders, Ok(None))
    }

    fn jwt(fields: serde_json::Value) -> serde_json::Value {
        let mut provider = json!({"name": "p", "issuer": "i", "jwks": {"kind": "ConfigMap", "name": "keys"}});
        provider.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"jwt": {"providers": [provider]}})
    }

    #[test]
    fn a_policy_that_cannot_be_meant_lets_no_request_pass() {
        for (spec, told) in [
            (json!({"allow": ["10.0.0.0/33"]}), "allow: \"10.0.0.0/33\": write a range of addresses"),
            (json!({"tracing": {"percent": 101}}), "tracing: 101 of 100 is no share: write from 0 to all"),
            (json!({"tracing": {}}), "tracing: write one of percent and fraction"),
            (json!({"allow": []}), "the policy's lists are empty, and it says nothing"),
            (json!({"deny": [], "rateLimits": []}), "the policy's lists are empty, and it says nothing"),
            (json!({"deny": ["::ffff:10.0.0.1"]}), "write an IPv4 address as such"),
            (json!({"maxRequestBody": 0}), "maxRequestBody is 0: write 1 or more bytes"),
            (json!({"maxRequestBody": -1, "allow": ["x"]}), "allow: \"x\""),
            (
                json!({"rateLimits": [{"requests": 1, "per": "Hour", "key": {"type": "Header", "header": "X-User"}}],
                    "basic": {"secretRef": {"name": "users"}, "userHeader": "x-user"}}),
                "x-user is written when the request has been authenticated",
            ),
            (
                json!({"rateLimits": [{"requests": 1, "per": "Hour", "key": {"type": "Header", "header": "x_user"}}],
                    "basic": {"secretRef": {"name": "users"}, "userHeader": "X-User"}}),
                "X-User is written when the request has been authenticated",
            ),
            (json!({"compression": {"algorithms": ["deflate"]}}), "\"deflate\": write br, gzip or zstd"),
            (json!({"compression": {"algorithms": [], "minLength": -1}}), "compression.minLength is -1"),
            (json!({"grpcWeb": "translate"}), "grpcWeb: \"translate\": write Translate or Pass"),
            (
                json!({"rateLimits": [{"requests": 1, "per": "Hour", "key": {"type": "Header", "header": "X-User"}}],
                    "externalAuth": {"protocol": "HTTP", "backendRef": {"name": "auth", "port": 80},
                    "http": {"allowedResponseHeaders": ["x-user"]}}}),
                "x-user is written when the request has been authenticated",
            ),
            (json!({"rateLimits": [{"requests": 0, "per": "Second"}]}), "rateLimits[0]: requests is 0"),
            (json!({"retry": {"attempts": 1001}}), "retry: attempts: 1001 is not between 0 and 1000"),
            (json!({"retry": {"attempts": -1}}), "retry: attempts: -1 is not between 0 and 1000"),
            (json!({"retry": {"codes": [503, 200]}}), "retry: codes: 200 is not between 400 and 599"),
            (json!({"retry": {"backoff": "soon"}}), "retry: backoff: \"soon\" is not a duration"),
            (json!({"retry": {"backoff": "61s"}}), "retry: backoff: 61s is longer than 1m"),
            (json!({"timeouts": {"request": "10"}}), "timeouts.request: \"10\" is not a duration"),
            (json!({"timeouts": {"backendRequest": "1 s"}}), "timeouts.backendRequest: \"1 s\" is not"),
            (
                json!({"retry": {"attempts": -1, "codes": [200, 503, 600]}, "timeouts": {"request": "1s", "backendRequest": "2s"}}),
                "retry: attempts: -1 is not between 0 and 1000; retry: codes: 200, 600 are not between 400 and 599; \
                 timeouts: backendRequest cannot be longer than request",
            ),
            (
                json!({"timeouts": {"request": "10", "backendRequest": "1 s"}}),
                "for example 1m30s (GEP-2257); timeouts.backendRequest: \"1 s\" is not a duration",
            ),
            (
                json!({"timeouts": {"request": "1s", "backendRequest": "2s"}}),
                "timeouts: backendRequest cannot be longer than request",
            ),
            (
                json!({"rateLimits": [{"requests": 1, "per": "Hour", "key": {"type": "Claim", "claim": "sub"}}]}),
                "a key of type Claim is for policies with jwt",
            ),
            (json!({"basic": {"secretRef": {"name": "users"}}}), "basic: Secret shop/users does not exist"),
            (
                json!({"apiKeys": {"secretRefs": [{"name": "keys"}]}}),
                "apiKeys: Secret shop/keys does not exist",
            ),
            (json!({"apiKeys": {"secretRefs": []}}), "apiKeys: no Secret of secretRefs has an entry"),
            (jwt(json!({})), "jwt.providers p: ConfigMap shop/keys does not exist"),
            (jwt(json!({"issuer": ""})), "jwt.providers p: issuer is empty"),
            (jwt(json!({"jwks": null})), "jwt.providers p: write one of jwks and remoteJwks"),
            (
                jwt(json!({"remoteJwks": {"backendRef": {"name": "login", "port": 80}, "path": "/"}})),
                "jwt.providers p: write one of jwks and remoteJwks",
            ),
            (
                jwt(json!({"name": "login", "jwks": null,
                    "remoteJwks": {"backendRef": {"name": "login", "port": 80}, "path": "/"}})),
                "jwt.providers login: remoteJwks: Service shop/login does not exist",
            ),
            (jwt(json!({"clockSkewSeconds": 301})), "clockSkewSeconds is 301: write 0 to 300"),
            (jwt(json!({"expiration": "Never"})), "expiration is \"Never\": write Required or Optional"),
            (jwt(json!({"from": {}})), "from: write header or cookie"),
            (jwt(json!({"from": {"header": "a b"}})), "from.header: \"a b\" is no name of a header field"),
            (jwt(json!({"from": {"header": "Authorization"}})), "from.header: authorization is no place"),
            (jwt(json!({"from": {"cookie": "a;b"}})), "from.cookie: \"a;b\" is no name of a cookie"),
            (jwt(json!({"requiredClaims": [{"claim": "a", "values": []}]})), "write a claim, and one value"),
            (
                jwt(json!({"claimsToHeaders": [{"claim": "sub", "header": "X_Forwarded_For"}]})),
                "claimsToHeaders: x_forwarded_for has another meaning",
            ),
        ] {
            let mut spec = spec;
            spec["targetRefs"] = json!([]);
            let declared = declared(spec);
            let message = declared.fault.unwrap().message;
            assert!(message.contains(told) && message.contains("no request passes"), "{message}");
            assert_eq!(declared.terms.protection.state, PolicyState::Closed);
        }
    }
}
