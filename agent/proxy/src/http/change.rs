//! Changes to the fields of a message that an external auth service asks for. Nothing here depends
//! on the protocol that it is asked in.

use http::{HeaderName, HeaderValue, header};

use crate::core::head::{FieldName, FieldsMut, KnownField};
use crate::core::origin::is_alike;

/// A change to the fields of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// In whatever spelling; see [`is_alike`].
    Remove(HeaderName),
    Append(HeaderName, HeaderValue),
    /// Unless there is one.
    Add(HeaderName, HeaderValue),
    /// If there is one.
    Replace(HeaderName, HeaderValue),
}

// === impl Change ===

impl Change {
    pub(crate) fn apply(&self, fields: &mut impl FieldsMut) {
        match self {
            Self::Remove(name) => remove(fields, name),
            Self::Append(name, value) => fields.append(name.clone(), value.clone()),
            Self::Add(name, value) => {
                if fields.get(name).is_none() {
                    fields.append(name.clone(), value.clone());
                }
            }
            Self::Replace(name, value) => {
                if fields.get(name).is_some() {
                    remove(fields, name);
                    fields.append(name.clone(), value.clone());
                }
            }
        }
    }

    pub(crate) fn name(&self) -> &HeaderName {
        match self {
            Self::Remove(name) | Self::Append(name, _) | Self::Add(name, _) | Self::Replace(name, _) => name,
        }
    }

    /// The changes after which the fields of a name have these values, and no others.
    pub(crate) fn set(name: &HeaderName, values: impl IntoIterator<Item = HeaderValue>) -> Vec<Self> {
        let values = values.into_iter().map(|value| Self::Append(name.clone(), value));
        std::iter::once(Self::Remove(name.clone())).chain(values).collect()
    }
}

/// Another spelling of a field that is not for others to change takes no field of that away.
fn remove(fields: &mut impl FieldsMut, name: &HeaderName) {
    fields.remove_if(|there| is_alike(there.as_bytes(), name.as_str()) && !is_own(there));
}

/// True for fields that frame messages, belong to one connection, decide where a request goes, or
/// say whose certificate the client has shown: they are not for others to change.
pub(crate) fn is_own(name: &impl FieldName) -> bool {
    name.as_bytes() == header::TRAILER.as_str().as_bytes()
        || match name.known() {
            Some(
                KnownField::CdnLoop
                | KnownField::ClientIdentity
                | KnownField::Connection
                | KnownField::ContentLength
                | KnownField::Expect
                | KnownField::Host
                | KnownField::Http2Settings
                | KnownField::KeepAlive
                | KnownField::ProxyConnection
                | KnownField::Te
                | KnownField::TransferEncoding
                | KnownField::Upgrade,
            ) => true,
            Some(
                KnownField::Claim
                | KnownField::Cookie
                | KnownField::DisguisedClaim
                | KnownField::Forwarded
                | KnownField::RequestId,
            )
            | None => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn fields_are_changed_whatever_their_spelling() {
        let name = HeaderName::from_static("x-user");
        let value = HeaderValue::from_static("ann");
        let forged = [("x-user", "eve"), ("x_user", "eve"), ("x-users", "kept"), ("x-user", "mallory")];
        let changed = |changes: &[Change], fields: &[(&str, &str)]| {
            let mut fields = PlainFields::of(fields);
            changes.iter().for_each(|change| change.apply(&mut fields));
            fields
        };
        let kept = ("x-users", "kept");
        assert_eq!(changed(&[Change::Remove(name.clone())], &forged), PlainFields::of(&[kept]));
        let set = Change::set(&name, [value.clone(), HeaderValue::from_static("staff")]);
        let expected = PlainFields::of(&[kept, ("x-user", "ann"), ("x-user", "staff")]);
        assert_eq!(changed(&set, &forged), expected);
        let framed = [("content-length", "5"), ("content_length", "6"), ("transfer-encoding", "chunked")];
        let respelled = ["content_length", "transfer_encoding"].map(HeaderName::from_static);
        let removed = respelled.map(Change::Remove);
        let expected = PlainFields::of(&[framed[0], framed[2]]);
        assert_eq!(changed(&removed, &framed), expected, "those that frame the message stay");
        let append = [Change::Append(name.clone(), value.clone())];
        assert_eq!(changed(&append, &forged[..1]), PlainFields::of(&[("x-user", "eve"), ("x-user", "ann")]));
        let add = [Change::Add(name.clone(), value.clone())];
        assert_eq!(changed(&add, &forged[..1]), PlainFields::of(&forged[..1]));
        assert_eq!(changed(&add, &[]), PlainFields::of(&[("x-user", "ann")]));
        let replace = [Change::Replace(name, value)];
        assert_eq!(changed(&replace, &forged), PlainFields::of(&[kept, ("x-user", "ann")]));
        assert_eq!(changed(&replace, &[]), PlainFields::of(&[]));
    }

    #[test]
    fn framing_is_not_for_others_to_change() {
        for name in ["host", "content-length", "transfer-encoding", "connection", "te", "trailer", "cdn-loop"]
        {
            assert!(is_own(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["content-type", "cookie", "x-forwarded-user", "authorization"] {
            assert!(!is_own(&HeaderName::from_static(name)), "{name}");
        }
    }
}
