//! Credentials that TrafficPolicies want of requests: tokens, API keys, passwords. What they are
//! checked against is in ConfigMaps and Secrets of the policy's namespace; each is parsed once,
//! however many policies refer to it. Nothing here knows whom they are wanted of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use portcullis_api::types::trafficpolicies::{
    TrafficPolicyApiKeys, TrafficPolicyBasic, TrafficPolicyJwt, TrafficPolicyJwtProviders,
    TrafficPolicyJwtProvidersJwks, TrafficPolicySpec,
};
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{
    ApiKeys, BasicPasswords, ClaimHeader, ClaimPath, ClientKeys, CredentialForwarding, CredentialSource,
    Expiry, JwtProvider, KeyKinds, KeySet, KeySource, ObjectName, PasswordFile, RemoteKeySet, RequiredClaim,
    Requirement,
};

use super::credential_fields;
use crate::field_names::is_reserved;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Entries of Secrets with passwords: as Envoy Gateway has it, and as ingress-nginx.
const PASSWORD_ENTRIES: [&str; 2] = [".htpasswd", "auth"];
const CLOCK_SKEW: i32 = 60;
const MOST_CLOCK_SKEW: i32 = 300;
const MOST_PROVIDERS: usize = 8;
/// Clients with API keys. Every agent keeps them.
const MOST_CLIENTS: usize = 4096;

/// Contents of ConfigMaps and Secrets, by object and entry.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    client_keys: BTreeMap<ObjectKey, Result<Arc<ClientKeys>, String>>,
    key_sets: BTreeMap<(ObjectKey, Box<str>), Result<Arc<KeySet>, String>>,
    password_files: BTreeMap<(ObjectKey, Box<str>), Result<Arc<PasswordFile>, String>>,
}

/// The objects that hold what credentials are checked against, and what has been read of them.
pub(crate) struct Holders<'o> {
    pub(crate) objects: &'o Objects,
    pub(crate) parsed: &'o mut Parsed,
    pub(crate) remote: &'o RemoteKeySets,
}

/// The key sets of a policy that are fetched, by the name of their provider; or the reasons why
/// they cannot be.
pub(crate) type RemoteKeySets = BTreeMap<Box<str>, Result<Arc<RemoteKeySet>, String>>;

// === impl Parsed ===

impl Parsed {
    /// The object has changed, or is referred to no more.
    pub(crate) fn forget(&mut self, holder: &ObjectKey) {
        self.client_keys.remove(holder);
        self.key_sets.retain(|(object, _), _| object != holder);
        self.password_files.retain(|(object, _), _| object != holder);
    }
}

/// The objects that a policy of the namespace refers to.
pub(crate) fn references(namespace: &Arc<str>, spec: &TrafficPolicySpec) -> BTreeSet<ObjectKey> {
    let named = |kind, name: &str| ObjectKey { kind, name: ObjectName::new(namespace.clone(), name) };
    let providers = spec.jwt.iter().flat_map(|jwt| &jwt.providers);
    let key_sets = providers.filter_map(|provider| provider.jwks.as_ref());
    let key_sets = key_sets.filter_map(|jwks| Some(named(holder_kind(&jwks.kind)?, &jwks.name)));
    let keys = spec.api_keys.iter().flat_map(|keys| &keys.secret_refs);
    let keys = keys.map(|reference| named(Kind::Secret, &reference.name));
    let passwords = spec.basic.iter().map(|basic| named(Kind::Secret, &basic.secret_ref.name));
    key_sets.chain(keys).chain(passwords).collect()
}

/// All that a policy wants.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn requirements(
    namespace: &Arc<str>,
    spec: &TrafficPolicySpec,
    holders: &mut Holders<'_>,
) -> Result<Box<[Arc<Requirement>]>, Vec<String>> {
    let (mut requirements, mut faults) = (Vec::new(), Vec::new());
    let mut add = |requirement: Result<Requirement, String>| match requirement {
        Ok(requirement) => requirements.push(Arc::new(requirement)),
        Err(fault) => faults.push(fault),
    };
    if let Some(jwt) = &spec.jwt {
        add(tokens(namespace, jwt, holders));
        let only_bearer = jwt.providers.iter().all(|provider| provider.from.is_none());
        if only_bearer && spec.basic.is_some() {
            add(Err("jwt and basic both want the field Authorization: write another place as jwt's from"
                .to_owned()));
        }
    }
    if let Some(keys) = &spec.api_keys {
        add(api_keys(namespace, keys, holders));
    }
    if let Some(basic) = &spec.basic {
        add(passwords(namespace, basic, holders));
    }
    faults.extend(credential_fields::faults(spec));
    if faults.is_empty() { Ok(requirements.into()) } else { Err(faults) }
}

// === tokens ===

fn tokens(
    namespace: &Arc<str>,
    jwt: &TrafficPolicyJwt,
    holders: &mut Holders<'_>,
) -> Result<Requirement, String> {
    if jwt.providers.is_empty() || jwt.providers.len() > MOST_PROVIDERS {
        return Err(format!(
            "jwt.providers has {} entries: write 1 to {MOST_PROVIDERS}",
            jwt.providers.len()
        ));
    }
    let providers = jwt.providers.iter().map(|written| {
        let provider = provider(namespace, written, holders);
        provider.map_err(|why| format!("jwt.providers {}: {why}", written.name))
    });
    Ok(Requirement::Jwt(providers.collect::<Result<_, _>>()?))
}

fn provider(
    namespace: &Arc<str>,
    written: &TrafficPolicyJwtProviders,
    holders: &mut Holders<'_>,
) -> Result<JwtProvider, String> {
    if written.issuer.is_empty() {
        return Err("issuer is empty".to_owned());
    }
    if written.audiences.as_ref().is_some_and(Vec::is_empty) {
        return Err("audiences is empty: write one, or leave it out if any will do".to_owned());
    }
    let keys = match (&written.jwks, &written.remote_jwks) {
        (Some(jwks), None) => given(namespace, jwks, holders).map(KeySource::Given),
        (None, Some(_)) => holders.remote(&written.name).map(KeySource::Remote),
        (Some(_), Some(_)) | (None, None) => Err("write one of jwks and remoteJwks".to_owned()),
    };
    let skew = written.clock_skew_seconds.unwrap_or(CLOCK_SKEW);
    let clock_skew = u64::try_from(skew).ok().filter(|_| skew <= MOST_CLOCK_SKEW);
    let clock_skew =
        clock_skew.ok_or_else(|| format!("clockSkewSeconds is {skew}: write 0 to {MOST_CLOCK_SKEW}"))?;
    let expiry = match written.expiration.as_deref() {
        None | Some("Required") => Expiry::Required,
        Some("Optional") => Expiry::Optional,
        Some(other) => return Err(format!("expiration is {other:?}: write Required or Optional")),
    };
    let required = written.required_claims.iter().flatten().map(|required| {
        if required.claim.is_empty() || required.values.is_empty() {
            return Err("requiredClaims: write a claim, and one value or more".to_owned());
        }
        let values = required.values.iter().map(|value| Box::from(value.as_str())).collect();
        Ok(RequiredClaim { claim: ClaimPath(required.claim.as_str().into()), values })
    });
    let headers = written.claims_to_headers.iter().flatten().map(|written| {
        let header = written_header("claimsToHeaders", &written.header)?;
        Ok::<_, String>(ClaimHeader { claim: ClaimPath(written.claim.as_str().into()), header })
    });
    let place = written.from.as_ref().map(|from| (from.header.as_deref(), from.cookie.as_deref()));
    Ok(JwtProvider {
        name: written.name.as_str().into(),
        issuer: written.issuer.as_str().into(),
        audiences: written.audiences.iter().flatten().map(|audience| audience.as_str().into()).collect(),
        source: source(place, CredentialSource::Bearer)?,
        forwarding: match written.forward {
            None | Some(true) => CredentialForwarding::Keep,
            Some(false) => CredentialForwarding::Remove,
        },
        required: required.collect::<Result<_, _>>()?,
        headers: headers.collect::<Result<_, _>>()?,
        clock_skew: Duration::from_secs(clock_skew),
        expiry,
        keys: keys?,
    })
}

fn given(
    namespace: &Arc<str>,
    written: &TrafficPolicyJwtProvidersJwks,
    holders: &mut Holders<'_>,
) -> Result<Arc<KeySet>, String> {
    let kind = holder_kind(&written.kind)
        .ok_or_else(|| format!("jwks.kind is {:?}: write ConfigMap or Secret", written.kind))?;
    let holder = ObjectKey { kind, name: ObjectName::new(namespace.clone(), &*written.name) };
    holders.key_set(&holder, written.key.as_deref().unwrap_or("jwks.json"))
}

// === API keys and passwords ===

fn api_keys(
    namespace: &Arc<str>,
    written: &TrafficPolicyApiKeys,
    holders: &mut Holders<'_>,
) -> Result<Requirement, String> {
    let (mut all, mut clients) = (Vec::<Arc<ClientKeys>>::new(), 0);
    for reference in &written.secret_refs {
        let holder =
            ObjectKey { kind: Kind::Secret, name: ObjectName::new(namespace.clone(), &*reference.name) };
        let keys = holders.client_keys(&holder).map_err(|why| format!("apiKeys: {why}"))?;
        clients += keys.len();
        if clients > MOST_CLIENTS {
            return Err(format!("apiKeys: the Secrets have more than {MOST_CLIENTS} entries: write fewer"));
        }
        let mut others = all.iter();
        let checked = others.try_for_each(|others| keys.check_beside(others));
        checked.map_err(|why| format!("apiKeys: {holder}: {why}"))?;
        all.push(keys);
    }
    if clients == 0 {
        return Err("apiKeys: no Secret of secretRefs has an entry, so no request would pass".to_owned());
    }
    let place = written.from.as_ref().map(|from| (from.header.as_deref(), from.cookie.as_deref()));
    let source = source(place, CredentialSource::Header(API_KEY)).map_err(|why| format!("apiKeys: {why}"))?;
    Ok(Requirement::ApiKey(ApiKeys {
        keys: all.into(),
        source,
        forwarding: match written.forward {
            Some(true) => CredentialForwarding::Keep,
            None | Some(false) => CredentialForwarding::Remove,
        },
        client_header: optional_header("apiKeys.clientHeader", written.client_header.as_deref())?,
    }))
}

fn passwords(
    namespace: &Arc<str>,
    written: &TrafficPolicyBasic,
    holders: &mut Holders<'_>,
) -> Result<Requirement, String> {
    let holder =
        ObjectKey { kind: Kind::Secret, name: ObjectName::new(namespace.clone(), &*written.secret_ref.name) };
    let entries: Vec<_> = match &written.secret_ref.key {
        Some(key) => vec![key.as_str()],
        None => PASSWORD_ENTRIES.to_vec(),
    };
    Ok(Requirement::Basic(BasicPasswords {
        namespace: namespace.clone(),
        users: holders.password_file(&holder, &entries)?,
        forwarding: match written.forward {
            Some(true) => CredentialForwarding::Keep,
            None | Some(false) => CredentialForwarding::Remove,
        },
        user_header: optional_header("basic.userHeader", written.user_header.as_deref())?,
    }))
}

// === parts ===

fn holder_kind(kind: &str) -> Option<Kind> {
    match kind {
        "ConfigMap" => Some(Kind::ConfigMap),
        "Secret" => Some(Kind::Secret),
        _ => None,
    }
}

/// The place that is written as a header or a cookie.
fn source(
    place: Option<(Option<&str>, Option<&str>)>,
    default: CredentialSource,
) -> Result<CredentialSource, String> {
    match place {
        None => Ok(default),
        Some((Some(name), None)) => match name.parse::<HeaderName>() {
            Ok(name) if is_reserved(&name) => {
                Err(format!("from.header: {name} is no place for it; choose another field"))
            }
            Ok(name) => Ok(CredentialSource::Header(name)),
            Err(_) => Err(format!("from.header: {name:?} is no name of a header field")),
        },
        // A cookie's name is a token, too.
        Some((None, Some(name))) if name.parse::<HeaderName>().is_ok() => {
            Ok(CredentialSource::Cookie(name.into()))
        }
        Some((None, Some(name))) => Err(format!("from.cookie: {name:?} is no name of a cookie")),
        Some(_) => Err("from: write header or cookie".to_owned()),
    }
}

fn optional_header(field: &str, name: Option<&str>) -> Result<Option<HeaderName>, String> {
    name.map(|name| written_header(field, name)).transpose()
}

fn written_header(field: &str, name: &str) -> Result<HeaderName, String> {
    match name.parse::<HeaderName>() {
        Ok(name) if is_reserved(&name) => {
            Err(format!("{field}: {name} has another meaning; choose another field"))
        }
        Ok(name) => Ok(name),
        Err(_) => Err(format!("{field}: {name:?} is no name of a header field")),
    }
}

// === impl Holders ===

impl Holders<'_> {
    fn remote(&self, provider: &str) -> Result<Arc<RemoteKeySet>, String> {
        self.remote.get(provider).cloned().unwrap_or_else(|| Err("remoteJwks was not looked up".to_owned()))
    }

    fn client_keys(&mut self, holder: &ObjectKey) -> Result<Arc<ClientKeys>, String> {
        if let Some(known) = self.parsed.client_keys.get(holder) {
            return known.clone();
        }
        let read = self.read_client_keys(holder).map(Arc::new);
        self.parsed.client_keys.insert(holder.clone(), read.clone());
        read
    }

    fn read_client_keys(&self, holder: &ObjectKey) -> Result<ClientKeys, String> {
        let secret = self.objects.secrets.get(&holder.name);
        let data = &secret.ok_or_else(|| format!("{holder} does not exist"))?.data;
        if data.as_ref().is_some_and(|data| data.len() > MOST_CLIENTS) {
            return Err(format!("{holder} has more than {MOST_CLIENTS} entries: write fewer"));
        }
        let mut keys = ClientKeys::default();
        for (client, key) in data.iter().flatten() {
            keys.add(client, &key.0).map_err(|why| format!("{holder}: {why}"))?;
        }
        Ok(keys)
    }

    fn key_set(&mut self, holder: &ObjectKey, entry: &str) -> Result<Arc<KeySet>, String> {
        let at = (holder.clone(), Box::from(entry));
        if let Some(known) = self.parsed.key_sets.get(&at) {
            return known.clone();
        }
        // A ConfigMap is no place for a secret.
        let kinds = if holder.kind == Kind::Secret { KeyKinds::PublicAndSecret } else { KeyKinds::Public };
        let read = self.entry(holder, &[entry]).and_then(|document| {
            let parsed = KeySet::parse(document, kinds).map(Arc::new);
            parsed.map_err(|why| format!("{entry} of {holder} {why}"))
        });
        self.parsed.key_sets.insert(at, read.clone());
        read
    }

    fn password_file(&mut self, holder: &ObjectKey, entries: &[&str]) -> Result<Arc<PasswordFile>, String> {
        let at = (holder.clone(), entries.join(",").into());
        if let Some(known) = self.parsed.password_files.get(&at) {
            return known.clone();
        }
        let read = self.entry(holder, entries).and_then(|file| {
            let parsed = PasswordFile::parse(file).map(Arc::new);
            parsed.map_err(|why| format!("the password file of {holder} {why}"))
        });
        let read = read.map_err(|why| format!("basic: {why}"));
        self.parsed.password_files.insert(at, read.clone());
        read
    }

    /// The first of the entries that is there.
    fn entry(&self, holder: &ObjectKey, entries: &[&str]) -> Result<&[u8], String> {
        let missing = || format!("{holder} does not exist");
        let found = if holder.kind == Kind::Secret {
            let secret = self.objects.secrets.get(&holder.name).ok_or_else(missing)?;
            let data = secret.data.iter();
            data.flat_map(|data| entries.iter().find_map(|entry| data.get(*entry)))
                .map(|bytes| bytes.0.as_slice())
                .next()
        } else {
            let map = self.objects.config_maps.get(&holder.name).ok_or_else(missing)?;
            let data = map.data.iter();
            data.flat_map(|data| entries.iter().find_map(|entry| data.get(*entry)))
                .map(String::as_bytes)
                .next()
        };
        found.ok_or_else(|| format!("{holder} has no entry {}", entries.join(" or ")))
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object};
    use serde_json::json;

    use super::*;

    #[test]
    fn policies_share_the_keys_of_a_secret() {
        let secret = |name: &str, client: &str, key: &str| {
            let manifest = json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": "edge"}, "data": {client: key}});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let mut objects = Objects::default();
        for change in [
            secret("shops", "shop", "MQ=="),
            secret("tills", "till", "Mg=="),
            secret("others", "shop", "Mg=="),
        ] {
            objects.apply(change);
        }
        let (mut parsed, remote) = (Parsed::default(), RemoteKeySets::default());
        let mut read = |secrets: &[&str]| {
            let references: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
            let written = serde_json::from_value(json!({"secretRefs": references})).unwrap();
            let mut holders = Holders { objects: &objects, parsed: &mut parsed, remote: &remote };
            match api_keys(&"edge".into(), &written, &mut holders) {
                Ok(Requirement::ApiKey(keys)) => Ok(keys),
                Ok(_) => panic!("other credentials"),
                Err(why) => Err(why),
            }
        };
        let (one, other) = (read(&["shops", "tills"]).unwrap(), read(&["tills"]).unwrap());
        assert_eq!(
            [one.client(b"1"), one.client(b"2"), one.client(b"3")],
            [Some("shop"), Some("till"), None]
        );
        assert!(Arc::ptr_eq(&one.keys[1], &other.keys[0]));
        let why = read(&["tills", "others"]).unwrap_err();
        assert_eq!(why, "apiKeys: Secret edge/others: clients till and shop have the same key");
    }
}
