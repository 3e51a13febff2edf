use crate::ObjectName;

/// The answer that a load balancer asks for at a port of the node, apart from whether it is good:
/// that is the case while the Gateway is served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub gateway: ObjectName,
    /// The name by which the answer calls it.
    pub service: ObjectName,
}
