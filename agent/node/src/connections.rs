//! Where TCP connections of this network namespace end, as proc_net(5) lists them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// Connections in these states may have bytes to send: ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING (`enum` of
/// net/tcp_states.h).
const OPEN: [&str; 5] = ["01", "04", "08", "09", "0B"];

/// The local addresses of open connections. Where there is no IPv6, its table is no error.
///
/// # Errors
/// When a table cannot be read.
pub fn local_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for table in TABLES {
        match std::fs::read_to_string(table) {
            Ok(table) => addresses.extend(table.lines().filter_map(local_address)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(addresses)
}

/// `NUMBER: ADDRESS:PORT PEER:PORT STATE …`; the first line is a heading.
fn local_address(line: &str) -> Option<IpAddr> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (local, _) = columns.next()?.split_once(':')?;
    let state = columns.nth(1)?;
    if OPEN.contains(&state) { address(local) } else { None }
}

/// The address's words of 32 bits, each as this machine reads the four bytes.
fn address(hexadecimal: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hexadecimal.get(at * 8..at * 8 + 8)?, 16).ok();
    let octets = |at: usize| Some(word(at)?.to_ne_bytes());
    match hexadecimal.len() {
        8 => Some(Ipv4Addr::from(octets(0)?).into()),
        32 => {
            let words = [octets(0)?, octets(1)?, octets(2)?, octets(3)?];
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?);
            Some(IpAddr::V6(address).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn addresses_have_connections_as_long_as_one_is_open() {
        let v4: IpAddr = "127.93.7.1".parse().unwrap();
        let is_used = |address| local_addresses().unwrap().contains(address);
        let listener = TcpListener::bind((v4, 0)).unwrap();
        assert!(!is_used(&v4), "nobody is connected");
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_used(&v4));
        drop(listener.accept().unwrap());
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(5);
        while is_used(&v4) {
            assert!(Instant::now() < deadline, "nothing is left to be sent");
        }
    }

    #[test]
    fn both_families_are_read() {
        if cfg!(target_endian = "little") {
            let line = |local, state| format!("   1: {local}:1F90 00000000:0000 {state} 00000000:00000000 0");
            let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
            let v6 = "0000A0FD000000000000000001000000";
            let mapped = "0000000000000000FFFF00000100320A";
            assert_eq!(local_address(&line("0100320A", "01")), address("10.50.0.1"));
            assert_eq!(local_address(&line(v6, "08")), address("fda0::1"));
            assert_eq!(local_address(&line(mapped, "01")), address("10.50.0.1"));
            assert_eq!(local_address(&line("0100320A", "0A")), None, "it only listens");
        }
        assert_eq!(local_address("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }
}
