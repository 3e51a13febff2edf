//! The Kubernetes API types that the agent reads and whose statuses it writes: generated from
//! `deploy/crds` by `cargo xtask codegen`. Enumerations are plain strings and unknown fields are
//! ignored, so that newer CRDs never make the agent fail.

pub mod backendpolicies;
pub mod backendtlspolicies;
pub mod gatewayclasses;
pub mod gatewayparameters;
pub mod gateways;
pub mod grpcroutes;
pub mod httproutes;
pub mod listenerpolicies;
pub mod listenersets;
pub mod referencegrants;
pub mod routefilters;
pub mod shared;
pub mod tcproutes;
pub mod tlsroutes;
pub mod trafficpolicies;
pub mod udproutes;
pub mod xbackends;
pub mod xbackendtrafficpolicies;
pub mod xmeshes;
