//! Where a Gateway is served: `spec.addresses`, or the addresses that the agent was told to use.

use std::net::IpAddr;

use crate::api::gateways::{Gateway, GatewayAddresses, GatewayStatusAddresses};
use crate::listener::Trouble;
use crate::{Reason, Settings, infra};

/// The addresses of a Gateway, with what is wrong with those asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) usable: Vec<IpAddr>,
    /// An address of a type that is not supported: the Gateway is not accepted.
    pub(crate) unsupported: Option<Trouble>,
    /// An address that cannot be used: the Gateway is not (fully) programmed.
    pub(crate) unusable: Option<Trouble>,
}

enum Request {
    Ip(IpAddr),
    /// An entry without value: "the implementation assigns" one.
    Any,
    /// The cluster has not given it to the Gateway, or not yet.
    NotGranted(String),
    Unsupported(String),
    Unusable(String),
}

// === impl Addresses ===

impl Addresses {
    pub(crate) fn of(gateway: &Gateway, settings: &Settings) -> Self {
        let requests = gateway.spec.addresses.as_deref().unwrap_or_default();
        let mut addresses = Self::default();
        if requests.is_empty() {
            addresses.take_defaults(settings);
        }
        for request in requests {
            addresses.add(Request::of(request, settings).granted_to(gateway), settings);
        }
        if addresses.usable.is_empty() && addresses.unusable.is_none() {
            let message = "no address is assigned to the Gateway: set spec.addresses, or give the agent a default address";
            addresses.unusable = Some(Trouble::new(Reason::AddressNotAssigned, message));
        }
        addresses
    }

    /// As `status.addresses` lists them.
    pub(crate) fn status(&self) -> Vec<GatewayStatusAddresses> {
        let entry = |address: &IpAddr| GatewayStatusAddresses {
            r#type: Some("IPAddress".to_owned()),
            value: address.to_string(),
            routability: None,
        };
        self.usable.iter().map(entry).collect()
    }

    fn add(&mut self, request: Request, settings: &Settings) {
        match request {
            Request::Ip(address) => self.take(address),
            Request::Any => self.take_defaults(settings),
            Request::NotGranted(message) => extend(&mut self.unusable, Reason::AddressNotAssigned, message),
            Request::Unsupported(message) => {
                extend(&mut self.unsupported, Reason::UnsupportedAddress, message)
            }
            Request::Unusable(message) => extend(&mut self.unusable, Reason::AddressNotUsable, message),
        }
    }

    fn take_defaults(&mut self, settings: &Settings) {
        settings.default_addresses.iter().for_each(|address| self.take(*address));
    }

    fn take(&mut self, address: IpAddr) {
        if !self.usable.contains(&address) {
            self.usable.push(address);
        }
    }
}

// === impl Request ===

impl Request {
    fn of(request: &GatewayAddresses, settings: &Settings) -> Self {
        let r#type = request.r#type.as_deref().unwrap_or("IPAddress");
        if r#type != "IPAddress" {
            return Self::Unsupported(format!("addresses of type {type} are not supported; use IPAddress"));
        }
        let Some(value) = request.value.as_deref().filter(|value| !value.is_empty()) else {
            return Self::Any;
        };
        match value.parse::<IpAddr>() {
            Err(_) => Self::Unusable(format!("address {value:?} is no IP address")),
            Ok(address) if address.is_multicast() || settings.unusable_addresses.contains(&address) => {
                Self::Unusable(format!(
                    "address {address} cannot be used on this node: choose one that is routed to it"
                ))
            }
            Ok(address) => Self::Ip(address),
        }
    }

    fn granted_to(self, gateway: &Gateway) -> Self {
        match self {
            Self::Ip(address) if !infra::is_granted(gateway, &address) => Self::NotGranted(format!(
                "address {address} is not one of the Gateway's Service, which has at most one of each family"
            )),
            other => other,
        }
    }
}

fn extend(trouble: &mut Option<Trouble>, reason: Reason, message: String) {
    let message = match trouble.take() {
        Some(before) => format!("{}; {message}", before.message),
        None => message,
    };
    *trouble = Some(Trouble { reason, message });
}
