//! The columns of the table of kinds: everything that differs between kinds, apart from their
//! types. The rows are in the parent module; what reads, watches, keeps, writes or grants rights on
//! objects asks them, and lists no kinds by itself.

use std::fmt;

use super::Kind;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) resource: &'static str,
    pub(super) group: &'static str,
    pub(super) versions: &'static [&'static str],
    pub(super) scope: Scope,
    pub(super) role: Role,
    pub(super) reading: Reading,
    pub(super) readers: Readers,
    pub(super) status: StatusUse,
    pub(super) last_good: LastGood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// Part in the Gateway API's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has listeners that routes attach to.
    Parent,
    /// Attaches to parents by `parentRefs`.
    Route,
    /// Applies to what its `targetRefs` name.
    Policy,
    /// Is referred to by routes, and has a status of ours as a policy has.
    Backend,
    /// Says something about them, or is referred to by them.
    Other,
}

/// Amount that is read of the objects of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All of each object, by a watch.
    Whole,
    /// The metadata of each object, by a watch.
    Metadata,
    /// The metadata by a watch, and all of those objects that translation needs, one by one.
    OnDemand,
    /// All of those objects that translation needs, one by one, and again from time to time: there
    /// are too many to be watched.
    Alone,
}

/// Agents that read a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Agents on nodes, and pods that serve a single Gateway.
    All,
    /// Agents on nodes. Pods of a single Gateway have no right to a watch of what may be secret,
    /// and no use for what only nodes and statuses need.
    Nodes,
}

/// Use that is made of an object's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusUse {
    /// Written by the leading agent; no input of translation.
    Written,
    /// Written by others, and read by translation.
    Read,
    /// Neither written nor read, if there is one at all.
    Ignored,
}

/// Place where an object outlives the agent, for a start without API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastGood {
    /// The file of the last good configuration.
    Disk,
    /// A file system in memory: keys do not belong on a disk.
    Memory,
    /// Nowhere: nothing is served differently without it.
    Nowhere,
}

// === impl Reading ===

impl Reading {
    /// True if an API server is asked for single objects.
    pub fn is_one_by_one(self) -> bool {
        matches!(self, Self::OnDemand | Self::Alone)
    }

    pub fn is_by_watch(self) -> bool {
        self != Self::Alone
    }
}

// === impl Kind ===

impl Kind {
    /// The kind of a group and kind name as references spell them.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.group() == group && known.as_str() == kind)
    }

    /// As manifests spell it.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// As paths and RBAC rules spell it: the plural, in lower case.
    pub fn resource(self) -> &'static str {
        self.row().resource
    }

    pub fn group(self) -> &'static str {
        self.row().group
    }

    /// The short names that its definition has, and those in common use.
    pub fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::GatewayClass => &["gc"],
            Self::Gateway => &["gtw", "gw"],
            Self::ListenerSet => &["lset", "ls"],
            Self::BackendTlsPolicy => &["btlspolicy"],
            Self::XBackend => &["xbackend"],
            Self::XBackendTrafficPolicy => &["xbtrafficpolicy"],
            Self::ListenerPolicy => &["lpol"],
            Self::TrafficPolicy => &["tpol"],
            Self::BackendPolicy => &["bpol"],
            Self::RouteFilter => &["rfil"],
            Self::ReferenceGrant => &["refgrant"],
            Self::GatewayParameters => &["gwparams"],
            Self::Service => &["svc"],
            Self::Namespace => &["ns"],
            Self::Node => &["no"],
            Self::Pod => &["po"],
            Self::ConfigMap => &["cm"],
            Self::CustomResourceDefinition => &["crd"],
            Self::HttpRoute
            | Self::GrpcRoute
            | Self::TlsRoute
            | Self::TcpRoute
            | Self::UdpRoute
            | Self::EndpointSlice
            | Self::Secret
            | Self::ClusterTrustBundle => &[],
        }
    }

    /// The kind that `kubectl get` would take the name for: `gw`, `gateway`, `Gateways`,
    /// `gateways.gateway.networking.k8s.io`.
    pub fn called(name: &str) -> Option<Self> {
        let (name, group) = match name.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (name, None),
        };
        let is_called = |kind: &&Self| {
            let names =
                [kind.as_str(), kind.resource()].into_iter().chain(kind.short_names().iter().copied());
            group.is_none_or(|group| group.eq_ignore_ascii_case(kind.group()))
                && names.into_iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        Self::ALL.iter().find(is_called).copied()
    }

    /// The kinds that `targetRefs` of a policy of this kind may name.
    pub fn targets(self) -> &'static [Self] {
        match self {
            Self::TrafficPolicy => &[Self::Gateway, Self::ListenerSet, Self::HttpRoute, Self::GrpcRoute],
            Self::ListenerPolicy => &[Self::Gateway, Self::ListenerSet],
            Self::BackendTlsPolicy | Self::BackendPolicy | Self::XBackendTrafficPolicy => &[Self::Service],
            _ => &[],
        }
    }

    /// Versions whose schema we read, the preferred one first.
    pub fn versions(self) -> &'static [&'static str] {
        self.row().versions
    }

    /// `group/version`, or `v1` for the core group.
    pub fn api_version(self) -> String {
        let version = self.versions().first().copied().unwrap_or_default();
        if self.group().is_empty() { version.to_owned() } else { format!("{}/{version}", self.group()) }
    }

    pub fn scope(self) -> Scope {
        self.row().scope
    }

    pub fn role(self) -> Role {
        self.row().role
    }

    pub fn is_route(self) -> bool {
        self.role() == Role::Route
    }

    /// True if several controllers write the status of one object: each has entries of its own
    /// there, by parent or by ancestor.
    pub fn shares_status(self) -> bool {
        matches!(self.role(), Role::Route | Role::Policy | Role::Backend)
    }

    /// The kinds of routes.
    pub fn routes() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|kind| kind.is_route())
    }

    pub fn reading(self) -> Reading {
        self.row().reading
    }

    pub fn readers(self) -> Readers {
        self.row().readers
    }

    pub fn status(self) -> StatusUse {
        self.row().status
    }

    pub fn last_good(self) -> LastGood {
        self.row().last_good
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schemas;

    #[test]
    fn the_table_agrees_with_the_crds() {
        for kind in Kind::ALL {
            let Some(definition) = Schemas::embedded().get(kind.group(), kind.as_str()) else {
                assert!(!["gateway.networking.k8s.io", "portcullis.dev"].contains(&kind.group()), "{kind}");
                continue;
            };
            let scope = if definition.namespaced { Scope::Namespaced } else { Scope::Cluster };
            assert_eq!((kind.scope(), kind.resource()), (scope, definition.resource.as_str()), "{kind}");
        }
    }

    #[test]
    fn short_names_are_those_of_the_crds() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
        for kind in Kind::ALL {
            let singular = kind.as_str().to_lowercase();
            let (group, resource) = (kind.group(), kind.resource());
            let files =
                [format!("crds/{group}_{resource}.yaml"), format!("helm/portcullis/files/{singular}.yaml")];
            let text = files.iter().find_map(|file| std::fs::read_to_string(format!("{root}/{file}")).ok());
            let Some((_, after)) = text.as_ref().and_then(|text| text.split_once("shortNames:\n")) else {
                continue;
            };
            let names = after.lines().map_while(|line| line.trim().strip_prefix("- "));
            for name in names {
                assert!(kind.short_names().contains(&name), "{kind}: {name}");
            }
        }
    }

    #[test]
    fn no_two_kinds_have_a_name_in_common() {
        for kind in Kind::ALL {
            let names =
                [kind.as_str(), kind.resource()].into_iter().chain(kind.short_names().iter().copied());
            for name in names {
                assert_eq!(Kind::called(name), Some(*kind), "{name}");
                let full = format!("{}.{}", name.to_uppercase(), kind.group());
                assert_eq!(Kind::called(&full), Some(*kind), "{full}");
            }
        }
        for name in ["", "gateways.portcullis.dev", "httprout"] {
            assert_eq!(Kind::called(name), None, "{name}");
        }
    }

    /// Nodes, pods and definitions say nothing without a cluster.
    #[test]
    fn the_page_on_directories_lists_the_kinds() {
        let page = include_str!("../../../../docs/directory-mode.md");
        let begin = page.find("- Gateway, ListenerSet,").unwrap();
        let (list, _) = page[begin..].split_once("Other kinds").unwrap();
        for kind in Kind::ALL {
            let is_listed = list.split(|c: char| !c.is_alphanumeric()).any(|word| word == kind.as_str());
            assert_eq!(
                is_listed,
                !matches!(kind, Kind::Node | Kind::Pod | Kind::CustomResourceDefinition),
                "{kind}"
            );
        }
    }

    #[test]
    fn statuses_are_written_where_there_are_any_and_nowhere_else() {
        let written: Vec<_> = Kind::ALL
            .iter()
            .filter(|kind| kind.status() == StatusUse::Written)
            .map(|it| it.as_str())
            .collect();
        assert_eq!(
            written,
            [
                "GatewayClass",
                "Gateway",
                "ListenerSet",
                "HTTPRoute",
                "GRPCRoute",
                "TLSRoute",
                "TCPRoute",
                "UDPRoute",
                "BackendTLSPolicy",
                "XBackend",
                "ListenerPolicy",
                "TrafficPolicy",
                "BackendPolicy",
                "XBackendTrafficPolicy",
                "RouteFilter"
            ]
        );
    }

    #[test]
    fn what_is_read_one_by_one_is_for_agents_on_nodes() {
        for kind in Kind::ALL.iter().filter(|kind| kind.reading().is_one_by_one()) {
            assert_eq!(kind.readers(), Readers::Nodes, "{kind}");
        }
    }
}
