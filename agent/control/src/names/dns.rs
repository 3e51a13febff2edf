//! Questions to DNS servers: those of `/etc/resolv.conf`, read each time because it changes, or
//! given ones. Names are looked up as they are: neither search domains nor `/etc/hosts` make
//! another host of one.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup as Answer;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::timeout;

use super::{Found, Lookup, NotFound};

/// Time that one question may take, and all of a name.
const TIMEOUT: Duration = Duration::from_secs(2);
const WHOLE_TIMEOUT: Duration = Duration::from_secs(6);

/// DNS, by servers of the system's or by these.
#[derive(Clone, Debug, Default)]
pub struct Dns {
    pub servers: Vec<SocketAddr>,
}

impl Lookup for Dns {
    async fn look_up(&self, name: &str) -> Result<Found, NotFound> {
        let unanswered = |error: NetError| NotFound::NoAnswer(error.to_string());
        let resolver = self.resolver().map_err(unanswered)?;
        let absolute =
            Name::from_ascii(format!("{name}.")).map_err(|error| NotFound::NoAnswer(error.to_string()))?;
        let both = async {
            tokio::join!(
                resolver.lookup(absolute.clone(), RecordType::A),
                resolver.lookup(absolute.clone(), RecordType::AAAA)
            )
        };
        let answers = timeout(WHOLE_TIMEOUT, both).await;
        let (v4, v6) = answers.map_err(|_| NotFound::NoAnswer("no DNS server answers in time".to_owned()))?;
        found([v4, v6])
    }
}

impl Dns {
    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut builder = if self.servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let servers = self.servers.iter().map(|server| {
                let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                connections.iter_mut().for_each(|connection| connection.port = server.port());
                NameServerConfig::new(server.ip(), true, connections)
            });
            let config = ResolverConfig::from_name_servers(servers.collect());
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        options.timeout = TIMEOUT;
        options.attempts = 1;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        builder.build()
    }
}

/// The addresses of both families. That one family has none is no fault, and a server that fails
/// for one has said nothing about the name.
fn found(answers: [Result<Answer, NetError>; 2]) -> Result<Found, NotFound> {
    let (mut addresses, mut valid) = (BTreeSet::new(), None::<Duration>);
    let mut failures = Vec::new();
    for answer in answers {
        match answer {
            Ok(answer) => {
                addresses.extend(answer.answers().iter().filter_map(|record| match &record.data {
                    RData::A(address) => Some(IpAddr::V4(address.0)),
                    RData::AAAA(address) => Some(IpAddr::V6(address.0)),
                    _ => None,
                }));
                let left = answer.valid_until().saturating_duration_since(Instant::now());
                valid = Some(valid.map_or(left, |valid| valid.min(left)));
            }
            Err(error) => failures.push(error),
        }
    }
    if let Some(valid) = valid.filter(|_| !addresses.is_empty()) {
        let routed: BTreeSet<_> = addresses.iter().copied().filter(is_routed).collect();
        let addresses = if routed.is_empty() { addresses } else { routed };
        return Ok(Found { addresses, valid });
    }
    match failures.iter().find(|error| !is_definite(error)) {
        Some(error) => Err(NotFound::NoAnswer(error.to_string())),
        None if failures.iter().any(NetError::is_nx_domain) => {
            Err(NotFound::NoAddress("there is no such name (NXDOMAIN)".to_owned()))
        }
        None => Err(NotFound::NoAddress("the name has neither an A nor an AAAA record".to_owned())),
    }
}

/// True if a server says that there is nothing.
fn is_definite(error: &NetError) -> bool {
    matches!(error, NetError::Dns(DnsError::NoRecordsFound(none))
        if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError))
}

/// "Avoid unusable destinations" (RFC 6724, section 6, rule 1): without IPv6 every other connection
/// would fail first. Nothing is sent for it.
fn is_routed(address: &IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((*address, 443)).is_ok())
}
