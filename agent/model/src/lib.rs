//! The configuration that the data plane runs, and nothing else: the immutable [`Snapshot`] with
//! its ports, listeners, route tables, matchers, filters, backends and certificates.
//!
//! This crate knows neither Kubernetes nor I/O nor async. The control side (`portcullis-gateway`)
//! builds these values, the data side (`portcullis-proxy`, `portcullis-node`) reads them. Values
//! are immutable once in a snapshot; the next snapshot shares what did not change, by `Arc`, so
//! that an unrelated change restarts nothing.

mod address_range;
mod admission;
mod authentication;
mod backend;
mod balancing;
mod certificate;
mod claim;
mod client_address;
mod client_keys;
mod client_ranges;
mod compression;
mod cors;
mod defaults;
mod external_auth;
mod filter;
mod frontend;
mod gateway;
mod grpc_web;
mod health_check;
mod hostname;
mod key_ring;
mod key_set;
mod l4;
mod listed_clients;
mod listener;
mod listener_limits;
mod log_terms;
mod name;
mod obeyed;
mod omitted_fields;
pub mod origin;
mod parent_kind;
mod password_file;
mod port;
mod precedence;
mod rate_limit;
mod remote_key_set;
mod request;
mod resilience;
mod retry_budget;
mod route;
mod route_filter;
mod scheme;
mod select;
mod session;
mod shard;
mod snapshot;
mod table;
mod tls_options;
mod traffic_policy;
mod unserved;

pub use address_range::{AddressRange, AddressRangeSyntax};
pub use admission::{Admission, Budget, BudgetOwner, OpenLimit};
pub use authentication::{
    ApiKeys, Authentication, BasicPasswords, ClaimHeader, ClaimLimit, CredentialForwarding, CredentialSource,
    Expiry, JwtProvider, KeySource, RequiredClaim, Requirement,
};
pub use backend::{
    Authorities, Backend, BackendName, BackendProtocol, BackendTls, ClientIdentity, ConnectionTerms,
    Encryption, PeerIdentity, ProxyHeader,
};
pub use balancing::{Balancing, Distance, HashKey, Locality};
pub use certificate::Certificate;
pub use claim::ClaimPath;
pub use client_address::{ClientAddress, OtherPeers, Peer, ProxyProtocol};
pub use client_keys::{ClientKeyError, ClientKeys};
pub use client_ranges::{Access, ClientList, ClientRanges, ClientRules};
pub use compression::{Coding, Compression};
pub use cors::{AllowedNames, AllowedOrigins, Cors, Credentials, OriginPattern};
pub use defaults::{Defaults, Retry, TimeLimit, Timeouts};
pub use external_auth::{AuthProtocol, ExternalAuth, FieldNames, HttpAuth};
pub use filter::{Filter, HeaderEdit, Mirror, PathRewrite, Redirect, Rewrite, Share};
pub use frontend::{FrontendKey, L4Protocol, PortKey};
pub use gateway::{AccessLog, Gateway, Limits, LogFormat};
pub use grpc_web::GrpcWeb;
pub use health_check::HealthCheck;
pub use hostname::{HostMap, HostPattern, HostnameError};
pub use key_ring::{KeyRing, RingKey};
pub use key_set::{KeyKinds, KeySet, KeySetError};
pub use l4::{L4Action, L4Backend, L4Rule, L4Target, ServerNames};
pub use listed_clients::{Believer, GatewayView, ListedClients, TrustedProxies, View};
pub use listener::{ClientCertificates, Listener, ListenerFilter, ListenerId, Serves, TlsTermination};
pub use listener_limits::ListenerLimits;
pub use log_terms::{LogLines, LogPatch, LogTerms};
pub use name::ObjectName;
pub use obeyed::is_obeyed;
pub use omitted_fields::{LogField, OmittedFields};
pub use parent_kind::ParentKind;
pub use password_file::{PasswordFile, PasswordFileError, PasswordHash};
pub use port::{Mismatch, Port, PortListeners, SpeaksFirst};
pub use precedence::{Precedence, RouteOrigin, Step};
pub use rate_limit::{Period, RateKey, RateLimit, RateScope};
pub use remote_key_set::RemoteKeySet;
pub use request::{RequestHead, field_size, separator};
pub use resilience::{
    AllUnhealthy, BackendLimits, EndpointCheck, HttpProbe, OutlierDetection, Probe, Resilience,
};
pub use retry_budget::{RetryBudget, RetryRate};
pub use route::{
    Action, BackendTarget, Failure, PathMatch, Pattern, RouteMatch, Rule, RuleId, SessionPersistence, Split,
    ValueMatch, Weighted, WeightedBackend,
};
pub use route_filter::{
    DirectResponse, HeaderTemplates, PathPart, PathSubstitution, Substituted, Template, TemplatePart,
    Variable,
};
pub use scheme::Scheme;
pub use select::Selected;
pub use session::{CookieLifetime, KeptSessions, SessionCarrier, SessionCookie, SessionTerms};
pub use shard::ShardMap;
pub use snapshot::Snapshot;
pub use table::{Entry, Found, PathTable, RouteTable};
pub use tls_options::{IdentityField, SessionTickets, TlsOptions, TlsVersion};
pub use traffic_policy::{Level, PolicyState, Protection, TrafficPolicy};
pub use unserved::Unserved;
