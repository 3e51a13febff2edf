//! The places in requests that a TrafficPolicy reads credentials from, and the fields that it
//! writes about them: where one would take the place of another, the policy does not say what it
//! seems to. Nothing here knows what credentials are checked against.

use portcullis_api::types::trafficpolicies::TrafficPolicySpec;
use portcullis_model::origin::is_alike;

/// A field that a policy writes for the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written<'p> {
    by: Writer,
    pub(super) name: &'p str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Claims,
    ClientHeader,
    UserHeader,
    /// It sees what the others have written, and may put something else there.
    AuthService,
}

/// A credential: where it is looked for, and if the backend is to find it there.
#[derive(Clone, Copy)]
struct Credential<'p> {
    of: &'static str,
    at: Carrier<'p>,
    is_forwarded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier<'p> {
    Header(&'p str),
    Cookie(&'p str),
}

/// The fields that a policy writes once credentials have been checked, and its auth service has
/// been asked, as far as they are known.
pub(super) fn written(spec: &TrafficPolicySpec) -> Vec<Written<'_>> {
    let providers = spec.jwt.iter().flat_map(|jwt| &jwt.providers);
    let claims = providers.flat_map(|provider| provider.claims_to_headers.iter().flatten());
    let claims = claims.map(|claim| Written { by: Writer::Claims, name: &claim.header });
    let clients = spec.api_keys.iter().filter_map(|keys| keys.client_header.as_deref());
    let clients = clients.map(|name| Written { by: Writer::ClientHeader, name });
    let users = spec.basic.iter().filter_map(|basic| basic.user_header.as_deref());
    let users = users.map(|name| Written { by: Writer::UserHeader, name });
    let auth = spec.external_auth.iter().filter_map(|auth| auth.http.as_ref());
    let answered = auth.flat_map(|http| http.allowed_response_headers.iter().flatten());
    let answered = answered.map(|name| Written { by: Writer::AuthService, name });
    claims.chain(clients).chain(users).chain(answered).collect()
}

/// The faults of places and fields that get in the way of each other.
pub(super) fn faults(spec: &TrafficPolicySpec) -> Vec<String> {
    let (places, written) = (credentials(spec), written(spec));
    let mut faults = Vec::new();
    faults.extend(pairs(&places).find_map(|(one, other)| one.fault_beside(other)));
    faults.extend(pairs(&written).find_map(|(one, other)| one.fault_beside(other)));
    let overwritten = places.iter().filter(|place| place.is_forwarded);
    let overwritten = overwritten.flat_map(|place| written.iter().map(move |it| (place, it)));
    let mut overwritten =
        overwritten.filter(|(place, it)| it.by != Writer::AuthService && place.is_in(it.name));
    faults.extend(overwritten.next().map(|(place, it)| {
        format!(
            "{} writes {} over the credential of {}, which the backend is to get: write another field, or set forward to \
             false",
            it.by.field(),
            it.name,
            place.of
        )
    }));
    faults
}

fn credentials(spec: &TrafficPolicySpec) -> Vec<Credential<'_>> {
    let tokens = spec.jwt.iter().flat_map(|jwt| &jwt.providers).filter_map(|provider| {
        let from = provider.from.as_ref()?;
        let at = Carrier::of(from.header.as_deref(), from.cookie.as_deref())?;
        Some(Credential { of: "jwt", at, is_forwarded: provider.forward.unwrap_or(true) })
    });
    let keys = spec.api_keys.iter().filter_map(|keys| {
        let at = match &keys.from {
            None => Carrier::Header("x-api-key"),
            Some(from) => Carrier::of(from.header.as_deref(), from.cookie.as_deref())?,
        };
        Some(Credential { of: "apiKeys", at, is_forwarded: keys.forward.unwrap_or(false) })
    });
    tokens.chain(keys).collect()
}

fn pairs<T>(all: &[T]) -> impl Iterator<Item = (&T, &T)> {
    all.iter().enumerate().flat_map(|(at, one)| all[at + 1..].iter().map(move |other| (one, other)))
}

/// True for names of fields that are the same, or read the same at some backends.
fn are_alike(one: &str, other: &str) -> bool {
    is_alike(one.to_ascii_lowercase(), other.to_ascii_lowercase())
}

// === impl Credential ===

impl Credential<'_> {
    fn fault_beside(&self, other: &Self) -> Option<String> {
        let is_of_one = self.of == other.of;
        let is_wrong = self.at.is_alike(other.at) && !(is_of_one && self.at.is_same(other.at));
        is_wrong.then(|| match is_of_one {
            true => format!(
                "{}: the places {} and {} read as one at some backends: write one of them",
                self.of,
                self.at.name(),
                other.at.name()
            ),
            false => format!(
                "{} and {} both want {}, where a request has one of them: write another place as from",
                self.of,
                other.of,
                self.at.name()
            ),
        })
    }

    fn is_in(&self, field: &str) -> bool {
        self.at.is_alike(Carrier::Header(field))
    }
}

// === impl Carrier ===

impl<'p> Carrier<'p> {
    /// `None` if it is none or both, which is a fault elsewhere.
    fn of(header: Option<&'p str>, cookie: Option<&'p str>) -> Option<Self> {
        match (header, cookie) {
            (Some(name), None) => Some(Self::Header(name)),
            (None, Some(name)) => Some(Self::Cookie(name)),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Header(one), Self::Header(other)) => one.eq_ignore_ascii_case(other),
            (one, other) => one == other,
        }
    }

    fn is_alike(self, other: Self) -> bool {
        match (self, other) {
            (Self::Header(one), Self::Header(other)) => are_alike(one, other),
            (Self::Cookie(one), Self::Cookie(other)) => one.eq_ignore_ascii_case(other),
            (Self::Header(_), Self::Cookie(_)) | (Self::Cookie(_), Self::Header(_)) => false,
        }
    }

    fn name(self) -> &'p str {
        match self {
            Self::Header(name) | Self::Cookie(name) => name,
        }
    }
}

// === impl Written ===

impl Written<'_> {
    /// Of two that write the same, only an auth service is to have the last word.
    fn fault_beside(&self, other: &Self) -> Option<String> {
        let is_same = self.name.eq_ignore_ascii_case(other.name);
        let may_be = self.by == other.by || other.by == Writer::AuthService;
        let is_wrong = are_alike(self.name, other.name) && !(is_same && may_be);
        is_wrong.then(|| {
            format!(
                "{} and {} write {} and {}, which backends read as one field: choose another for one of them",
                self.by.field(),
                other.by.field(),
                self.name,
                other.name
            )
        })
    }
}

impl Writer {
    fn field(self) -> &'static str {
        match self {
            Self::Claims => "jwt's claimsToHeaders",
            Self::ClientHeader => "apiKeys.clientHeader",
            Self::UserHeader => "basic.userHeader",
            Self::AuthService => "externalAuth.http.allowedResponseHeaders",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults_of(fields: Value) -> String {
        let mut spec = json!({"targetRefs": []});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        faults(&serde_json::from_value(spec).unwrap()).join("; ")
    }

    /// Providers with places and the fields of claims.
    fn jwt(providers: &[(Value, &[&str])]) -> Value {
        let providers = providers.iter().enumerate().map(|(at, (fields, headers))| {
            let headers: Vec<_> = headers.iter().map(|it| json!({"claim": "sub", "header": it})).collect();
            let mut provider = json!({"name": at.to_string(), "issuer": "i", "claimsToHeaders": headers});
            provider.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            provider
        });
        json!({"providers": providers.collect::<Vec<_>>()})
    }

    fn keys(fields: Value) -> Value {
        let mut keys = json!({"secretRefs": []});
        keys.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        keys
    }

    #[test]
    fn one_field_has_one_writer() {
        let basic = |header: &str| json!({"secretRef": {"name": "users"}, "userHeader": header});
        let auth = |headers: Value| {
            json!({"protocol": "HTTP", "backendRef": {"name": "auth", "port": 80},
                "http": {"allowedResponseHeaders": headers}})
        };
        for (fields, told) in [
            (json!({"jwt": jwt(&[(json!({}), &["x-user", "X-User"]), (json!({}), &["x-user"])])}), ""),
            (json!({"jwt": jwt(&[(json!({}), &["x-user"])]), "externalAuth": auth(json!(["X-User"]))}), ""),
            (
                json!({"jwt": jwt(&[(json!({}), &["x-user"]), (json!({}), &["X_User"])])}),
                "jwt's claimsToHeaders and jwt's claimsToHeaders write x-user and X_User",
            ),
            (
                json!({"jwt": jwt(&[(json!({}), &["x_client"])]), "apiKeys": keys(json!({"clientHeader": "X-Client"}))}),
                "jwt's claimsToHeaders and apiKeys.clientHeader write x_client and X-Client, which backends read as one",
            ),
            (
                json!({"apiKeys": keys(json!({"clientHeader": "X-User"})), "basic": basic("x-user")}),
                "apiKeys.clientHeader and basic.userHeader write X-User and x-user",
            ),
            (
                json!({"basic": basic("x_user"), "externalAuth": auth(json!(["x-user"]))}),
                "basic.userHeader and externalAuth.http.allowedResponseHeaders write x_user and x-user",
            ),
        ] {
            let faults = faults_of(fields);
            assert!(faults.starts_with(told) && faults.is_empty() == told.is_empty(), "{faults}");
        }
    }

    #[test]
    fn one_place_has_one_credential() {
        let header = |name: &str| json!({"from": {"header": name}});
        let cookie = |name: &str| json!({"from": {"cookie": name}});
        for (fields, told) in [
            (json!({"jwt": jwt(&[(header("x-token"), &[]), (header("X-Token"), &[])])}), ""),
            (json!({"jwt": jwt(&[(header("t"), &[]), (cookie("t"), &[])]), "apiKeys": keys(json!({}))}), ""),
            (
                json!({"jwt": jwt(&[(header("x-token"), &[]), (header("X_Token"), &[])])}),
                "jwt: the places x-token and X_Token read as one",
            ),
            (
                json!({"jwt": jwt(&[(cookie("t"), &[]), (cookie("T"), &[])])}),
                "jwt: the places t and T read as one",
            ),
            (
                json!({"jwt": jwt(&[(header("X-Api-Key"), &[])]), "apiKeys": keys(json!({}))}),
                "jwt and apiKeys both want X-Api-Key",
            ),
            (
                json!({"jwt": jwt(&[(cookie("t"), &[])]), "apiKeys": keys(cookie("t"))}),
                "jwt and apiKeys both want t",
            ),
        ] {
            let faults = faults_of(fields);
            assert!(faults.starts_with(told) && faults.is_empty() == told.is_empty(), "{faults}");
        }
    }

    #[test]
    fn what_the_backend_is_to_get_is_not_written_over() {
        let token = |forward: bool| json!({"from": {"header": "X-Token"}, "forward": forward});
        let keys = |forward: bool| json!({"apiKeys": keys(json!({"clientHeader": "X_API-Key", "forward": forward}))});
        for (fields, told) in [
            (json!({"jwt": jwt(&[(token(false), &["x-token"])])}), ""),
            (keys(false), ""),
            (
                json!({"jwt": jwt(&[(token(true), &["x_token"])])}),
                "jwt's claimsToHeaders writes x_token over the credential of jwt",
            ),
            (keys(true), "apiKeys.clientHeader writes X_API-Key over the credential of apiKeys"),
        ] {
            let faults = faults_of(fields);
            assert!(faults.starts_with(told) && faults.is_empty() == told.is_empty(), "{faults}");
        }
    }
}
