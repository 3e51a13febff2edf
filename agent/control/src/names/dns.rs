//! DNS servers, asked over UDP, and over TCP for what a datagram does not hold: those of
//! `/etc/resolv.conf`, read each time because it changes, or given ones. Names are looked up as
//! they are: neither search domains nor `/etc/hosts` make another host of one. What messages look
//! like, and which one answers a question, is the `domain` crate's to know.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use domain::base::iana::Rcode;
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name, ParsedName, Rtype, Ttl};
use domain::net::client::protocol::{TcpConnect, UdpConnect};
use domain::net::client::request::{Error, RequestMessage, SendRequest};
use domain::net::client::{dgram, dgram_stream, multi_stream};
use domain::rdata::{A, Aaaa, Cname};
use tokio::time::timeout;

use super::{Found, Lookup, MOST_ADDRESSES, NotFound};

const SERVERS: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Time that one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts for one question, at one server after the other.
const FEWEST_ATTEMPTS: usize = 2;
const MOST_ATTEMPTS: usize = 3;
/// Aliases of which one leads to the next. DNS servers follow some ten.
const MOST_ALIASES: usize = 20;

/// DNS, by servers of the system's or by these.
#[derive(Clone, Debug, Default)]
pub struct Dns {
    pub servers: Vec<SocketAddr>,
}

pub(super) type Question = RequestMessage<Vec<u8>>;

/// A server's answer to a question for addresses of one family.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// There may be none. Their life in seconds.
    Addresses(BTreeSet<IpAddr>, u32),
    /// There is no such name.
    NoName,
}

impl Lookup for Dns {
    async fn look_up(&self, name: &str) -> Result<Found, NotFound> {
        let servers = match &*self.servers {
            [] => system_servers().map_err(NotFound::NoAnswer)?,
            servers => servers.to_vec(),
        };
        let v4 = ask(&servers, name, Rtype::A);
        let v6 = ask(&servers, name, Rtype::AAAA);
        let (v4, v6) = tokio::join!(v4, v6);
        found([v4, v6])
    }
}

fn system_servers() -> Result<Vec<SocketAddr>, String> {
    let text = std::fs::read_to_string(SERVERS).map_err(|error| format!("{SERVERS}: {error}"))?;
    match listed(&text) {
        servers if servers.is_empty() => Err(format!("{SERVERS} names no DNS server")),
        servers => Ok(servers),
    }
}

/// The servers in the text of a `resolv.conf`.
fn listed(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().map(str::split_ascii_whitespace);
    let named = lines.filter_map(|mut words| words.next().filter(|it| *it == "nameserver").and(words.next()));
    named.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, PORT))).collect()
}

async fn ask(servers: &[SocketAddr], name: &str, family: Rtype) -> Result<Answer, String> {
    let question = question(name, family).ok_or_else(|| format!("{name} is no name that DNS may have"))?;
    let mut failure = String::new();
    let attempts = servers.len().clamp(FEWEST_ATTEMPTS, MOST_ATTEMPTS);
    for server in servers.iter().cycle().take(attempts) {
        match timeout(TIMEOUT, exchange(*server, question.clone())).await {
            Ok(Ok(message)) => match read(&message) {
                Ok(answer) => return Ok(answer),
                Err(why) => failure = format!("the DNS server {server} {why}"),
            },
            Ok(Err(error)) => failure = format!("the DNS server {server} cannot be asked: {error}"),
            Err(_) => failure = format!("the DNS server {server} does not answer in time"),
        }
    }
    Err(failure)
}

/// `None` if that cannot be a name.
pub(super) fn question(name: &str, family: Rtype) -> Option<Question> {
    let name: Name<Vec<u8>> = name.parse().ok()?;
    let mut message = MessageBuilder::new_vec();
    // The server is to find out for us ("recursion desired").
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((name, family)).ok()?;
    RequestMessage::new(message.into_message()).ok()
}

/// Each question has a port of its own, which the kernel chooses, and a random number: that is what
/// an answer has to know. There are no extensions (EDNS) in it: some servers do not understand
/// them.
async fn exchange(server: SocketAddr, question: Question) -> Result<Message<Bytes>, Error> {
    let mut datagrams = dgram::Config::new();
    datagrams.set_max_retries(0);
    datagrams.set_udp_payload_size(None);
    let config = dgram_stream::Config::from_parts(datagrams, multi_stream::Config::default());
    let (udp, tcp) = (UdpConnect::new(server), TcpConnect::new(server));
    let (connection, streams) = dgram_stream::Connection::with_config(udp, tcp, config);
    let mut response = connection.send_request(question);
    tokio::select! {
        message = response.get_response() => message,
        () = streams.run() => Err(Error::ConnectionClosed),
    }
}

/// The addresses of the name that was asked for, or of the one that it is an alias of: what else a
/// message says is not believed.
///
/// # Errors
/// When there is no answer: the words for what the server did in its place.
pub(super) fn read(message: &Message<Bytes>) -> Result<Answer, String> {
    const MALFORMED: &str = "answers with a malformed message, or with aliases in a circle";
    let header = message.header();
    match header.rcode() {
        Rcode::NXDOMAIN => return Ok(Answer::NoName),
        Rcode::NOERROR if header.tc() => return Err("cuts off what it answers".to_owned()),
        Rcode::NOERROR => {}
        code => return Err(format!("answers {code}")),
    }
    let records = canonical_name(message).and_then(|name| addresses(message, &name).ok());
    let (found, life) = records.ok_or(MALFORMED)?;
    // It names the servers to ask in its place, which says nothing about the name.
    if found.is_empty() && !header.aa() && !header.ra() {
        return Err("does not look names up for others".to_owned());
    }
    Ok(Answer::Addresses(found, life))
}

/// The end of the aliases that begin with the name that was asked for; `None` if they are too many,
/// or in a circle. `Message::canonical_name` follows those of any class.
fn canonical_name(message: &Message<Bytes>) -> Option<ParsedName<Bytes>> {
    let mut name = message.first_question()?.into_qname();
    let aliases = message.answer().ok()?.limit_to_in::<Cname<ParsedName<Bytes>>>();
    for _ in 0..MOST_ALIASES {
        // A malformed one is found when addresses are read.
        match aliases.clone().flatten().find(|alias| *alias.owner() == name) {
            Some(alias) => name = alias.into_data().into_cname(),
            None => return Some(name),
        }
    }
    None
}

/// The addresses that a message gives a name, and the shortest life of the records that they follow
/// from.
fn addresses(
    message: &Message<Bytes>,
    name: &ParsedName<Bytes>,
) -> Result<(BTreeSet<IpAddr>, u32), ParseError> {
    let section = message.answer()?;
    let mut found: Vec<(IpAddr, Ttl)> = Vec::new();
    match message.qtype() {
        Some(Rtype::AAAA) => {
            for record in section.limit_to_in::<Aaaa>() {
                let record = record?;
                if record.owner() == name {
                    found.push((record.data().addr().into(), record.ttl()));
                }
            }
        }
        _ => {
            for record in section.limit_to_in::<A>() {
                let record = record?;
                if record.owner() == name {
                    found.push((record.data().addr().into(), record.ttl()));
                }
            }
        }
    }
    let aliases = section.limit_to_in::<Cname<ParsedName<Bytes>>>().map(|alias| Ok(alias?.ttl()));
    let aliases = aliases.collect::<Result<Vec<_>, ParseError>>()?;
    let lives = aliases.into_iter().chain(found.iter().map(|(_, life)| *life));
    let life = lives.map(seconds).min().unwrap_or(u32::MAX);
    Ok((found.into_iter().map(|(address, _)| address).collect(), life))
}

/// "Implementations should treat TTL values received with the most significant bit set as if the
/// entire value received was zero" (RFC 2181, section 8).
fn seconds(life: Ttl) -> u32 {
    Some(life.as_secs()).filter(|seconds| seconds >> 31 == 0).unwrap_or(0)
}

/// The addresses of both families. That one family has none is no fault, and a server that fails
/// for one has said nothing about the name.
fn found(answers: [Result<Answer, String>; 2]) -> Result<Found, NotFound> {
    let (mut addresses, mut seconds) = (BTreeSet::new(), u32::MAX);
    let (mut failure, mut is_name) = (None, true);
    for answer in answers {
        match answer {
            Ok(Answer::Addresses(found, life)) if !found.is_empty() => {
                addresses.extend(found.into_iter().take(MOST_ADDRESSES));
                seconds = seconds.min(life);
            }
            Ok(Answer::Addresses(..)) => {}
            Ok(Answer::NoName) => is_name = false,
            Err(why) => failure = Some(why),
        }
    }
    if !addresses.is_empty() {
        let routed: BTreeSet<_> = addresses.iter().copied().filter(is_routed).collect();
        let addresses = if routed.is_empty() { addresses } else { routed };
        return Ok(Found { addresses, valid: Duration::from_secs(seconds.into()) });
    }
    Err(match failure {
        Some(why) => NotFound::NoAnswer(why),
        None if is_name => NotFound::NoAddress("the name has neither an A nor an AAAA record".to_owned()),
        None => NotFound::NoAddress("there is no such name (NXDOMAIN)".to_owned()),
    })
}

/// "Avoid unusable destinations" (RFC 6724, section 6, rule 1): without IPv6 every other connection
/// would fail first. Nothing is sent for it.
fn is_routed(address: &IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0));
    socket.is_ok_and(|socket| socket.connect((*address, 443)).is_ok())
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
