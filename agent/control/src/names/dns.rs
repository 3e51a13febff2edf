//! DNS servers, asked over UDP, and over TCP for what a datagram does not hold: those of
//! `/etc/resolv.conf`, read each time because it changes, or given ones. Names are looked up as
//! they are: neither search domains nor `/etc/hosts` make another host of one.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{Answer, Family, Question};
use super::{Found, Lookup, MOST_ADDRESSES, NotFound};

const SERVERS: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Time that one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts for one question, at one server after the other.
const FEWEST_ATTEMPTS: usize = 2;
const MOST_ATTEMPTS: usize = 3;
/// Octets of an answer over UDP (RFC 1035, section 4.2.1).
const DATAGRAM: usize = 512;
/// Datagrams that are no answer, before there is none: they may be guesses of another host.
const MOST_STRAYS: usize = 16;

/// DNS, by servers of the system's or by these.
#[derive(Clone, Debug, Default)]
pub struct Dns {
    pub servers: Vec<SocketAddr>,
}

impl Lookup for Dns {
    async fn look_up(&self, name: &str) -> Result<Found, NotFound> {
        let servers = match &*self.servers {
            [] => system_servers().map_err(NotFound::NoAnswer)?,
            servers => servers.to_vec(),
        };
        let (v4, v6) = tokio::join!(ask(&servers, name, Family::V4), ask(&servers, name, Family::V6));
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

async fn ask(servers: &[SocketAddr], name: &str, family: Family) -> Result<Answer, String> {
    let mut failure = String::new();
    let attempts = servers.len().clamp(FEWEST_ATTEMPTS, MOST_ATTEMPTS);
    for server in servers.iter().cycle().take(attempts) {
        let mut id = [0; 2];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| "there are no random numbers".to_owned())?;
        let question = Question::new(u16::from_be_bytes(id), name, family);
        let question = question.ok_or_else(|| format!("{name} is no name that DNS may have"))?;
        match timeout(TIMEOUT, exchange(*server, &question)).await {
            Ok(Ok(Answer::Failed(why))) => failure = format!("{why} ({server})"),
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => failure = format!("the DNS server {server} cannot be asked: {error}"),
            Err(_) => failure = format!("the DNS server {server} does not answer in time"),
        }
    }
    Err(failure)
}

/// Each question has a port of its own, which the kernel chooses: together with its number, that is
/// what an answer has to know.
async fn exchange(server: SocketAddr, question: &Question) -> io::Result<Answer> {
    let socket = UdpSocket::bind((any_of(&server.ip()), 0)).await?;
    socket.connect(server).await?;
    socket.send(&question.octets).await?;
    let mut message = [0; DATAGRAM];
    for _ in 0..MOST_STRAYS {
        let length = socket.recv(&mut message).await?;
        match question.answer(&message[..length]) {
            Some(Answer::Truncated) => return exchange_over_tcp(server, question).await,
            Some(answer) => return Ok(answer),
            None => {}
        }
    }
    Ok(Answer::Failed("datagrams that answer no question come in place of the DNS server's answer"))
}

async fn exchange_over_tcp(server: SocketAddr, question: &Question) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.octets.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), &*question.octets].concat()).await?;
    let mut message = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut message).await?;
    match question.answer(&message) {
        None | Some(Answer::Truncated) => {
            Ok(Answer::Failed("the DNS server does not answer what it was asked"))
        }
        Some(answer) => Ok(answer),
    }
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
            Ok(Answer::Truncated) => failure = Some("the DNS server's answer is cut off".to_owned()),
            Ok(Answer::Failed(why)) => failure = Some(why.to_owned()),
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
    let socket = std::net::UdpSocket::bind((any_of(address), 0));
    socket.is_ok_and(|socket| socket.connect((*address, 443)).is_ok())
}

fn any_of(address: &IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_the_system_are_those_that_its_file_names() {
        let text = "# nameserver 192.0.2.9\nsearch example\n nameserver 192.0.2.1 # one\n\
                    nameserver\nnameserver 2001:db8::1\nnameservers 192.0.2.2\nnameserver x\n";
        let expected: [SocketAddr; 2] =
            ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()];
        assert_eq!(listed(text), expected);
    }

    #[test]
    fn one_family_is_enough_and_failures_are_no_denial() {
        let some = || Ok(Answer::Addresses(["127.0.0.1".parse().unwrap()].into(), 7));
        let none = || Ok(Answer::Addresses(BTreeSet::new(), u32::MAX));
        let failed = || Err("no answer".to_owned());
        let valid = Duration::from_secs(7);
        let one = Ok(Found { addresses: ["127.0.0.1".parse().unwrap()].into(), valid });
        assert_eq!(found([some(), none()]), one);
        assert_eq!(found([some(), failed()]), one);
        assert_eq!(found([some(), Ok(Answer::NoName)]), one);
        assert!(matches!(found([none(), failed()]), Err(NotFound::NoAnswer(_))));
        assert!(matches!(found([none(), none()]), Err(NotFound::NoAddress(_))));
        assert!(matches!(found([Ok(Answer::NoName), Ok(Answer::NoName)]), Err(NotFound::NoAddress(_))));
    }

    /// A server that cuts off what it says over UDP, and says other things before.
    #[tokio::test]
    async fn answers_that_a_datagram_does_not_hold_come_over_tcp() {
        let (udp, tcp) = loop {
            let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let server = tcp.local_addr().unwrap();
        tokio::spawn(async move {
            let mut question = [0; DATAGRAM];
            while let Ok((length, client)) = udp.recv_from(&mut question).await {
                udp.send_to(b"nonsense", client).await.unwrap();
                question[2..4].copy_from_slice(&[0x83, 0x80]);
                udp.send_to(&question[..length], client).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut message = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut message).await.unwrap();
                message[2..4].copy_from_slice(&[0x81, 0x80]);
                if message[message.len() - 3] == 1 {
                    message[7] = 100;
                    for last in 0..100 {
                        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, last]);
                    }
                }
                let length = u16::try_from(message.len()).unwrap();
                stream.write_all(&[&length.to_be_bytes(), &*message].concat()).await.unwrap();
            }
        });
        let found = Dns { servers: vec![server] }.look_up("a.example").await.unwrap();
        assert_eq!((found.addresses.len(), found.valid), (MOST_ADDRESSES, Duration::from_secs(60)));
    }
}
