//! Backends that answer what no server should: a client gets an error or an answer that breaks off,
//! and no byte of it is ever taken for another's response.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::report::Report;
use crate::wire::{self, Ended};
use crate::world::{HOST, HOSTILE, World};
use crate::{Size, backend};

/// A client of the gateway may see this of a hostile answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// 502 or 504.
    Error,
    /// A response that is not whole, or an error.
    Broken,
    /// The response, and nothing of what is behind it.
    First,
}

struct Answer {
    name: &'static str,
    bytes: Vec<u8>,
    expected: Expected,
}

/// Serves until the process ends: the answer of the number that the path ends with.
pub(crate) fn start(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(copy) = stream.try_clone() else { return };
                let mut reader = BufReader::new(copy);
                while let Ok(Some(head)) = backend::head(&mut reader) {
                    let path = head.split(' ').nth(1).unwrap_or_default();
                    let number = path.rsplit('/').next().and_then(|number| number.parse::<usize>().ok());
                    let answers = answers();
                    let Some(answer) = number.and_then(|number| answers.get(number)) else { return };
                    if stream.write_all(&answer.bytes).is_err() || answer.expected == Expected::Broken {
                        return;
                    }
                    // What is behind an answer is there before the next request is.
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    Ok(())
}

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    for (number, Answer { name, expected, .. }) in answers().into_iter().enumerate() {
        let request = |close: &str| format!("GET {HOSTILE}/{number} HTTP/1.1\r\nHost: {HOST}\r\n{close}\r\n");
        let (answer, ended) = wire::exchange(world.plain, request("Connection: close\r\n").as_bytes())?;
        let statuses = wire::statuses(&answer);
        let text = String::from_utf8_lossy(&answer);
        let is_error = statuses.last().is_some_and(|status| [502, 504].contains(status));
        // Whole, it would end with the last of its chunks, or be as long as it says.
        let is_whole = text.ends_with("0\r\n\r\n") || text.contains("content-length: 3\r\n");
        let holds = match expected {
            Expected::Error => is_error,
            Expected::Broken => is_error || !is_whole,
            Expected::First => is_error || statuses == [200] || statuses == [204],
        };
        // Whatever the backend sent too much must not be the next client's.
        let (next, _) = wire::exchange(
            world.plain,
            format!("GET /next HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let is_own = String::from_utf8_lossy(&next).contains("asked for /next");
        let leaked = text.contains("smuggled") || !is_own;
        let happened = format!("{statuses:?}{}", if leaked { ", and bytes of another answer" } else { "" });
        let passed = holds && !leaked && ended == Ended::Closed;
        report.add(format!("hostile backend: {name}"), happened, passed);
    }
    Ok(())
}

fn answers() -> Vec<Answer> {
    let answer = |name, bytes: Vec<u8>, expected| Answer { name, bytes, expected };
    let text = |name, text: &str, expected| answer(name, text.as_bytes().to_vec(), expected);
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    let second = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled";
    vec![
        text("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n", Expected::Error),
        answer("binary", vec![0xff; 64 << 10], Expected::Error),
        text("a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", Expected::Error),
        text(
            "two lengths",
            &format!("{OK}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
            Expected::Error,
        ),
        text("length +3", &format!("{OK}Content-Length: +3\r\n\r\nabc"), Expected::Error),
        text("NUL in a field", &format!("{OK}X: a\0b\r\nContent-Length: 3\r\n\r\nabc"), Expected::Error),
        text("a field without colon", &format!("{OK}X\r\nContent-Length: 3\r\n\r\nabc"), Expected::Error),
        text(
            "101 unasked",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            Expected::Error,
        ),
        text(
            "a field of 100 KB",
            &format!("{OK}X: {}\r\nContent-Length: 3\r\n\r\nabc", "x".repeat(100_000)),
            Expected::Error,
        ),
        text(
            "1000 fields",
            &format!("{OK}{}Content-Length: 3\r\n\r\nabc", "X: y\r\n".repeat(1000)),
            Expected::Error,
        ),
        text("nothing but 103", &"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000), Expected::Error),
        text("a head that breaks off", &format!("{OK}X: y\r\n"), Expected::Broken),
        text("a body that breaks off", &format!("{OK}Content-Length: 100\r\n\r\nabc"), Expected::Broken),
        text(
            "chunks that break off",
            &format!("{OK}Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
            Expected::Broken,
        ),
        text(
            "a chunk size that is none",
            &format!("{OK}Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n"),
            Expected::Broken,
        ),
        text(
            "another response behind",
            &format!("{OK}Content-Length: 3\r\n\r\nabc{second}"),
            Expected::First,
        ),
        text(
            "another behind chunks",
            &format!("{OK}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{second}"),
            Expected::First,
        ),
        text("another behind 204", &format!("HTTP/1.1 204 No Content\r\n\r\n{second}"), Expected::First),
    ]
}
