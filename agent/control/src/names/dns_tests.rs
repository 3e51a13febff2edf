use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;

/// A question for the A records of `a.example`, as octets.
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
/// The records of `a.example`, of `b.example`, and that the one is an alias of the other, and back.
const ADDRESS: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
const OF_B: [u8; 18] = [1, b'B', 0xc0, 14, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 2];
const ALIAS: [u8; 16] = [0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 5, 0, 4, 1, b'b', 0xc0, 14];
const BACK: [u8; 16] = [1, b'b', 0xc0, 14, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 12];

/// An answer with these flags and records.
fn message(flags: [u8; 2], records: &[&[u8]]) -> Vec<u8> {
    let mut message = QUESTION.to_vec();
    message[2..4].copy_from_slice(&flags);
    message[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
    message.extend(records.concat());
    message
}

fn said_by(octets: Vec<u8>) -> Result<Answer, String> {
    read(&Message::from_octets(octets.into()).unwrap())
}

fn answered(records: &[&[u8]]) -> Result<Answer, String> {
    said_by(message([0x81, 0x80], records))
}

fn addresses_of(all: &[&str], life: u32) -> Result<Answer, String> {
    Ok(Answer::Addresses(all.iter().map(|address| address.parse().unwrap()).collect(), life))
}

#[test]
fn servers_of_the_system_are_those_that_its_file_names() {
    let text = "# nameserver 192.0.2.9\nsearch example\n nameserver 192.0.2.1 # one\n\
                nameserver\nnameserver 2001:db8::1\nnameservers 192.0.2.2\nnameserver x\n";
    let expected: [SocketAddr; 2] = ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()];
    assert_eq!(listed(text), expected);
}

#[test]
fn only_names_are_asked_for() {
    let long = ["a".repeat(63).as_str(); 4].join(".");
    for name in ["", "a..example", ".a", &"a".repeat(64), &long] {
        assert!(question(name, Rtype::AAAA).is_none(), "{name}");
    }
    assert!(question(&long[1..255 - 1], Rtype::AAAA).is_some());
}

#[test]
fn addresses_live_as_long_as_what_leads_to_them() {
    let text = [0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut negative = ADDRESS;
    negative[6] = 0x80;
    assert_eq!(answered(&[&ADDRESS]), addresses_of(&["192.0.2.1"], 60));
    assert_eq!(answered(&[&ADDRESS, &text]), addresses_of(&["192.0.2.1"], 60));
    assert_eq!(answered(&[&ALIAS, &OF_B]), addresses_of(&["192.0.2.2"], 5));
    assert_eq!(answered(&[&OF_B, &ALIAS]), addresses_of(&["192.0.2.2"], 5));
    assert_eq!(answered(&[&ADDRESS, &negative]), addresses_of(&["192.0.2.1"], 0));
    assert_eq!(answered(&[]), addresses_of(&[], u32::MAX));
}

#[test]
fn addresses_of_other_names_are_not_the_names() {
    assert_eq!(answered(&[&ADDRESS, &OF_B]), addresses_of(&["192.0.2.1"], 60));
    assert_eq!(answered(&[&OF_B]), addresses_of(&[], u32::MAX));
    assert_eq!(answered(&[&ALIAS, &ADDRESS]), addresses_of(&[], 5));
    let mut chaotic_alias = ALIAS;
    chaotic_alias[5] = 3;
    assert_eq!(answered(&[&chaotic_alias, &OF_B]), addresses_of(&[], u32::MAX));
    let (mut chaos, mut v6) = (ADDRESS, ADDRESS);
    (chaos[5], v6[3]) = (3, 28);
    assert_eq!(answered(&[&chaos, &v6]), addresses_of(&[], u32::MAX));
}

#[test]
fn aliases_and_pointers_in_circles_lead_nowhere() {
    let begin = u8::try_from(QUESTION.len()).unwrap();
    let pointer = |to: u8| {
        let mut record = ADDRESS;
        record[1] = to;
        record
    };
    assert!(answered(&[&ALIAS, &BACK]).is_err());
    assert!(answered(&[&pointer(begin)]).is_err(), "to itself");
    assert!(answered(&[&pointer(begin + 2)]).is_err(), "ahead");
    // A label, and a pointer back to it.
    let around = [&[1, b'a', 0xc0, begin][..], &ADDRESS[2..]].concat();
    assert!(answered(&[&around]).is_err());
}

/// Real chains have a few aliases; DNS servers follow some ten.
#[test]
fn aliases_are_followed_only_so_far() {
    // From `a.example` to the next letter's, which is an alias of the one after it.
    let alias = |at: u8| {
        let (alias, of) = (at + b'A', at + b'B');
        [1, alias, 0xc0, 14, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, of, 0xc0, 14]
    };
    let answered_by = |aliases: u8| {
        let end = [&[1, b'A' + aliases][..], &OF_B[2..]].concat();
        let chain: Vec<_> = (0..aliases).map(alias).collect();
        let records: Vec<_> = chain.iter().map(<[u8; 18]>::as_slice).chain([&*end]).collect();
        answered(&records)
    };
    assert_eq!(answered_by(12), addresses_of(&["192.0.2.2"], 60));
    assert!(answered_by(24).is_err());
}

#[test]
fn answers_without_addresses_are_told_from_servers_that_cannot_say() {
    let answer = |flags| said_by(message(flags, &[]));
    assert_eq!(answer([0x81, 0x83]), Ok(Answer::NoName));
    assert!(answer([0x83, 0x80]).is_err(), "cut off");
    assert!(answer([0x81, 0x82]).unwrap_err().contains("SERVFAIL"));
    assert!(answer([0x81, 0x85]).unwrap_err().contains("REFUSED"));
    assert!(answer([0x80, 0x00]).is_err(), "a referral");
    assert!(matches!(answer([0x84, 0x00]), Ok(Answer::Addresses(..))), "of an authority");
}

/// However it ends, and whatever an octet is: no panic, and no address that is not there.
#[test]
fn malformed_messages_are_failures() {
    for record in [&ADDRESS[..], &ALIAS, &OF_B] {
        let answer = message([0x81, 0x80], &[record, record]);
        for length in 12..answer.len() {
            assert!(said_by(answer[..length].to_vec()).is_err(), "{length}");
        }
        for at in 0..answer.len() {
            for octet in 0..=255 {
                let mut other = answer.clone();
                other[at] = octet;
                let _ = said_by(other);
            }
        }
    }
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

/// A DNS server on loopback, for UDP and TCP at one port.
struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Server {
    async fn new() -> (Self, Dns) {
        loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = tcp.local_addr().unwrap();
            if let Ok(udp) = UdpSocket::bind(address).await {
                return (Self { udp, tcp }, Dns { servers: vec![address] });
            }
        }
    }

    /// Answers each question by datagrams, and over TCP by octets, of which the first two say how
    /// many follow in a message.
    fn answer(
        self,
        datagrams: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
        stream: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
    ) {
        let Self { udp, tcp } = self;
        tokio::spawn(async move {
            let mut question = [0; 512];
            while let Ok((length, client)) = udp.recv_from(&mut question).await {
                for datagram in datagrams(&question[..length]) {
                    udp.send_to(&datagram, client).await.unwrap();
                }
            }
        });
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = tcp.accept().await {
                let mut question = vec![0; connection.read_u16().await.unwrap().into()];
                connection.read_exact(&mut question).await.unwrap();
                let _ = connection.write_all(&stream(&question)).await;
            }
        });
    }
}

/// A question with flags of an answer.
fn flagged(question: &[u8], flags: [u8; 2]) -> Vec<u8> {
    let mut answer = question.to_vec();
    answer[2..4].copy_from_slice(&flags);
    answer
}

fn is_for_v4(question: &[u8]) -> bool {
    question.windows(4).any(|octets| octets == [0, 1, 0, 1])
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// A server that cuts off what it says over UDP.
#[tokio::test]
async fn answers_that_a_datagram_does_not_hold_come_over_tcp() {
    let (server, dns) = Server::new().await;
    server.answer(
        |question| vec![flagged(question, [0x83, 0x80])],
        |question| {
            // Without the extension at the end of the question, about the connection's life.
            let end = 12 + question[12..].iter().position(|octet| *octet == 0).unwrap() + 5;
            let mut message = flagged(&question[..end], [0x81, 0x80]);
            message[10..12].fill(0);
            if is_for_v4(question) {
                message[6..8].copy_from_slice(&1000_u16.to_be_bytes());
                for last in 0..1000_u16 {
                    let [high, low] = last.to_be_bytes();
                    message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, high, low]);
                }
            }
            framed(&message)
        },
    );
    let found = dns.look_up("a.example").await.unwrap();
    assert_eq!((found.addresses.len(), found.valid), (MOST_ADDRESSES, Duration::from_secs(60)));
}

/// Guesses of others, the answers to other questions, and nonsense come before the answer.
#[tokio::test]
async fn datagrams_that_answer_nothing_asked_are_none() {
    let (server, dns) = Server::new().await;
    let answer = |question: &[u8], address: [u8; 4]| {
        let mut answer = flagged(question, [0x81, 0x80]);
        if is_for_v4(question) {
            answer[7] = 1;
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(address);
        }
        answer
    };
    server.answer(
        move |question| {
            let guesses =
                [(0, 0x80), (2, 0x80), (5, 3), (13, 1), (question.len() - 3, 29)].map(|(at, flipped)| {
                    let mut guess = answer(question, [127, 0, 0, 2]);
                    guess[at] ^= flipped;
                    guess
                });
            let mut right = answer(question, [127, 0, 0, 1]);
            // Names have no case.
            right[13] = right[13].to_ascii_uppercase();
            [vec![b"nonsense".to_vec(), Vec::new()], guesses.into(), vec![right]].concat()
        },
        |_| Vec::new(),
    );
    let found = dns.look_up("a.example").await.unwrap();
    assert_eq!(found.addresses, ["127.0.0.1".parse().unwrap()].into());
}

/// Servers that cut their answers off, and then say something else over TCP: none is waited for,
/// and none takes the agent with it.
#[tokio::test]
async fn servers_that_talk_nonsense_over_tcp_are_failures() {
    /// The octets that come over TCP in answer to a question.
    type Reply = fn(&[u8]) -> Vec<u8>;
    let replies: [(&str, Reply); 11] = [
        ("nothing", |_| Vec::new()),
        ("half a length", |_| vec![0]),
        ("no octets", |_| vec![0, 0]),
        ("less than a header", |_| framed(&[0; 11])),
        ("less than it says", |question| framed(question)[..20].to_vec()),
        ("the question", framed),
        ("another's answer", |question| {
            let mut other = flagged(question, [0x81, 0x80]);
            other[13] ^= 1;
            framed(&other)
        }),
        ("an answer that is cut off", |question| framed(&flagged(question, [0x83, 0x80]))),
        ("two of them", |question| framed(&flagged(question, [0x83, 0x80])).repeat(2)),
        ("zeroes", |_| vec![0; 70_000]),
        ("ones", |_| vec![0xff; 70_000]),
    ];
    let found = replies.map(|(what, stream)| async move {
        let (server, dns) = Server::new().await;
        server.answer(|question| vec![flagged(question, [0x83, 0x80])], stream);
        (what, dns.look_up("a.example").await)
    });
    for (what, found) in futures::future::join_all(found).await {
        assert!(matches!(found, Err(NotFound::NoAnswer(_))), "{what}: {found:?}");
    }
}

/// The next server is asked where one fails, and the failure names it.
#[tokio::test]
async fn the_next_server_is_asked_where_one_fails() {
    let (failing, first) = Server::new().await;
    failing.answer(|question| vec![flagged(question, [0x81, 0x82])], |_| Vec::new());
    let (knowing, second) = Server::new().await;
    knowing.answer(|question| vec![flagged(question, [0x81, 0x83])], |_| Vec::new());
    let servers = [first.servers.clone(), second.servers].concat();
    let found = Dns { servers }.look_up("a.example").await;
    assert!(matches!(&found, Err(NotFound::NoAddress(why)) if why.contains("NXDOMAIN")), "{found:?}");
    let found = first.look_up("a.example").await;
    let named = format!("the DNS server {} answers SERVFAIL", first.servers[0]);
    assert_eq!(found, Err(NotFound::NoAnswer(named)));
}
