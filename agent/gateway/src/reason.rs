//! Condition types and reasons, as the Gateway API defines them: one table each, so that a change of mind of the
//! specification is one line here. `docs/conditions.md` says what they mean,
//! `docs/conformance.md` where the conformance tests and the text disagree.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

macro_rules! names {
    ($(#[$doc:meta])* $enum:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant),+
        }

        impl $enum {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// `conditions[].type`.
    ConditionType {
        Accepted,
        Programmed,
        ResolvedRefs,
        Conflicted,
        /// Parent and child routes: one became part of the other (GEP-1058).
        Attached,
        /// Parent and child routes: more than two tiers, or different kinds of route (GEP-1058).
        NotSupported,
        /// Routes: some rules are dropped, the others work.
        PartiallyInvalid,
        /// Listeners: another listener of the port has overlapping names (RFC 9110 section 7.4, 421 answers).
        OverlappingTLSConfig,
        /// GatewayClass: the installed CRDs are of a version we know.
        SupportedVersion,
    }
}

names! {
    /// `conditions[].reason`.
    Reason {
        // Everything that is well
        Accepted,
        Programmed,
        ResolvedRefs,
        NoConflicts,
        SupportedVersion,
        // GatewayClass
        InvalidParameters,
        UnsupportedVersion,
        /// XMesh: ours, and not the one that is looked for. The specification has no reason for it.
        UnexpectedName,
        // Gateway
        AddressNotAssigned,
        AddressNotUsable,
        ListenersNotValid,
        UnsupportedAddress,
        // Gateway or ListenerSet as a child
        NotAllowed,
        ParentNotAccepted,
        /// Named in the documentation of `ListenerSetConditionProgrammed`.
        ParentNotProgrammed,
        // Listeners
        HostnameConflict,
        InvalidCertificateRef,
        InvalidRouteKinds,
        ListenerConflict,
        OverlappingHostnames,
        PortUnavailable,
        ProtocolConflict,
        RefNotPermitted,
        UnsupportedProtocol,
        // Routes
        BackendNotFound,
        IncompatibleFilters,
        InvalidKind,
        NoMatchingListenerHostname,
        NoMatchingParent,
        NotAllowedByListeners,
        UnsupportedValue,
        // Parent and child routes (GEP-1058)
        Attached,
        Conflicted,
        GrandparentConfigError,
        HostnameMismatch,
        LimitExceeded,
        NotAllowedByParent,
        NotAttached,
        NotSupported,
        ParentNotFound,
        PartiallyAttached,
        Supported,
        // Any
        Invalid,
        Pending,
    }
}

/// Characters of a message. The API's limit is 32,768; a status of many entries has to stay readable, and small.
const LONGEST_MESSAGE: usize = 4096;

/// A condition of the plan. When it became so is decided by whoever writes it (translation has no clock); the time here is
/// the epoch.
pub fn condition(
    r#type: ConditionType,
    holds: bool,
    reason: Reason,
    message: impl Into<String>,
    generation: i64,
) -> Condition {
    Condition {
        type_: r#type.as_str().to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.as_str().to_owned(),
        message: shortened(message.into()),
        observed_generation: Some(generation),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    message
}
