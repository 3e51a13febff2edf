//! Condition types and reasons, as the Gateway API defines them: one table each, so that a change
//! of mind of the specification is one line here. `docs/conditions.md` says what they mean,
//! `docs/conformance.md` where the conformance tests and the text disagree.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

macro_rules! names {
    ($(#[$doc:meta])* $enum:ident {
        $($(#[$variant_doc:meta])* $variant:ident $(in $domain:literal)?),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant),+
        }

        impl $enum {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => concat!($($domain, "/",)? stringify!($variant))),+ }
            }

            /// `None` if the name is not in the table.
            pub fn of(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == name)
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
        /// Listeners: another listener of the port has overlapping names (RFC 9110 section 7.4, 421
        /// answers).
        OverlappingTLSConfig,
        /// GatewayClass: the installed CRDs are of a version we know.
        SupportedVersion,
        /// Gateways that routes are attached to without naming them (GEP-3793).
        DefaultGateway,
        /// Gateways whose clients need no valid certificate though they are asked for one.
        InsecureFrontendValidationMode,
        /// Gateways, ListenerSets and listeners that are held to ListenerPolicies (GEP-713).
        ListenerPolicyAffected in "portcullis.dev",
        /// The same for TrafficPolicies; routes, too.
        TrafficPolicyAffected in "portcullis.dev",
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
        ConfigurationChanged,
        /// GEP-3793 has the condition, and no reason for it.
        DefaultGateway,
        InvalidClientCertificateRef,
        ListenersNotResolved,
        ListenersNotValid,
        UnsupportedAddress,
        // Gateway or ListenerSet as a child
        NotAllowed,
        ParentNotAccepted,
        /// Named in the documentation of `ListenerSetConditionProgrammed`.
        ParentNotProgrammed,
        // Listeners
        HostnameConflict,
        InvalidCACertificateKind,
        InvalidCertificateRef,
        /// Named in GEP-5224, like the next.
        InvalidListenerFilter,
        InvalidListenerFilterRef,
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
        /// A backend gets nothing because a BackendTLSPolicy cannot be followed. The specification
        /// has no reason for it.
        InvalidBackendTLSPolicy,
        InvalidKind,
        NoMatchingListenerHostname,
        NoMatchingParent,
        NotAllowedByListeners,
        UnsupportedValue,
        // XBackends
        /// The name of a host has no address. The specification has no reason for it.
        NameNotResolved,
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
        // Policies
        InvalidCACertificateRef,
        NoValidCACertificate,
        /// Of ours, where there is nothing to hold to it. The specification has no reason for it.
        NoListener,
        PolicyAffected,
        TargetNotFound,
        // Any
        /// Accepted, but for fields that are without effect. The specification has no reason for
        /// it.
        FieldsIgnored,
        Invalid,
        Pending,
    }
}

/// `conditions[].status`. `Unknown` is the API server's default, and planned for nothing but
/// Gateways whose class is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
}

/// The status a condition has when nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polarity {
    /// True is good.
    Positive,
    /// False is good, and so is not having the condition.
    Negative,
    /// Worth knowing, and no fault either way.
    Neutral,
}

// === impl ConditionType ===

impl ConditionType {
    pub fn polarity(self) -> Polarity {
        match self {
            Self::Accepted
            | Self::Programmed
            | Self::ResolvedRefs
            | Self::Attached
            | Self::DefaultGateway
            | Self::SupportedVersion => Polarity::Positive,
            Self::Conflicted | Self::NotSupported | Self::PartiallyInvalid => Polarity::Negative,
            Self::InsecureFrontendValidationMode
            | Self::OverlappingTLSConfig
            | Self::ListenerPolicyAffected
            | Self::TrafficPolicyAffected => Polarity::Neutral,
        }
    }

    /// The reason the condition has when nothing is wrong.
    pub fn good_reason(self) -> Reason {
        match self {
            Self::Accepted | Self::PartiallyInvalid => Reason::Accepted,
            Self::Programmed => Reason::Programmed,
            Self::ResolvedRefs => Reason::ResolvedRefs,
            Self::Conflicted | Self::OverlappingTLSConfig => Reason::NoConflicts,
            Self::InsecureFrontendValidationMode => Reason::ConfigurationChanged,
            Self::Attached => Reason::Attached,
            Self::DefaultGateway => Reason::DefaultGateway,
            Self::NotSupported => Reason::Supported,
            Self::SupportedVersion => Reason::SupportedVersion,
            Self::ListenerPolicyAffected | Self::TrafficPolicyAffected => Reason::PolicyAffected,
        }
    }

    /// The message the condition has when nothing is wrong, and there is no more to say.
    pub(crate) fn good_message(self) -> &'static str {
        match self {
            Self::Accepted | Self::PartiallyInvalid => "Everything is accepted.",
            Self::Programmed => "The data plane has it.",
            Self::ResolvedRefs => "Every reference is resolved.",
            Self::Conflicted | Self::OverlappingTLSConfig => "There is no conflict.",
            Self::Attached => "Everything is attached.",
            Self::DefaultGateway => "Gateway has default scope All",
            Self::NotSupported => "Everything is supported.",
            Self::InsecureFrontendValidationMode => "Clients need valid certificates.",
            Self::SupportedVersion => "The installed CRDs are of a release that is supported.",
            Self::ListenerPolicyAffected | Self::TrafficPolicyAffected => "No policy applies.",
        }
    }

    pub(crate) fn good_status(self) -> ConditionStatus {
        match self.polarity() {
            Polarity::Positive => ConditionStatus::True,
            Polarity::Negative | Polarity::Neutral => ConditionStatus::False,
        }
    }

    pub(crate) fn bad_status(self) -> ConditionStatus {
        match self.good_status() {
            ConditionStatus::True => ConditionStatus::False,
            ConditionStatus::False => ConditionStatus::True,
        }
    }

    /// True if a condition of the type says that something is wrong. `Unknown` counts as False:
    /// what is not known to be good is not.
    pub fn is_fault(self, status: &str, reason: &str) -> bool {
        let holds = ConditionStatus::of(status) == Some(ConditionStatus::True);
        Reason::of(reason).is_some_and(Reason::is_partial)
            || match self.polarity() {
                Polarity::Positive => !holds,
                Polarity::Negative => holds,
                Polarity::Neutral => false,
            }
    }
}

impl ConditionStatus {
    /// `None` for `Unknown`.
    pub fn of(text: &str) -> Option<Self> {
        [Self::True, Self::False].into_iter().find(|status| status.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
        }
    }
}

impl Reason {
    /// True if something is wrong though the condition has its good status: GEP-1058 has two such
    /// reasons, and what is ignored is one of ours.
    pub fn is_partial(self) -> bool {
        matches!(self, Self::FieldsIgnored | Self::GrandparentConfigError | Self::PartiallyAttached)
    }
}

/// Characters of a message. The API's limit is 32,768; a status of many entries has to stay
/// readable, and small.
const LONGEST_MESSAGE: usize = 4096;

/// A condition of the plan. Its writer decides when it became so (translation has no clock); the
/// time here is the epoch.
pub fn condition(
    r#type: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: impl Into<String>,
    generation: i64,
) -> Condition {
    Condition {
        type_: r#type.as_str().to_owned(),
        status: status.as_str().to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_fault_by_its_type_and_reason() {
        for (r#type, status, reason, is_fault) in [
            (ConditionType::Accepted, "True", "Accepted", false),
            (ConditionType::Accepted, "False", "NoMatchingParent", true),
            (ConditionType::Accepted, "Unknown", "Pending", true),
            (ConditionType::Accepted, "True", "GrandparentConfigError", true),
            (ConditionType::Accepted, "True", "FieldsIgnored", true),
            (ConditionType::Attached, "True", "PartiallyAttached", true),
            (ConditionType::Conflicted, "False", "NoConflicts", false),
            (ConditionType::Conflicted, "True", "HostnameConflict", true),
            (ConditionType::OverlappingTLSConfig, "True", "OverlappingHostnames", false),
        ] {
            assert_eq!(r#type.is_fault(status, reason), is_fault, "{type} {status} {reason}");
        }
        for r#type in ConditionType::ALL {
            let good = r#type.good_status();
            assert!(!r#type.is_fault(good.as_str(), r#type.good_reason().as_str()), "{type}");
        }
    }
}
