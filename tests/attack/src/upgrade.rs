//! Requests that want another protocol, with another request behind them: it is the backend's only
//! once that has agreed, and this one never does. Nor may it read of HTTP/2 (`h2c`), whose requests
//! in a tunnel no route and no policy would see.

use anyhow::Result;

use crate::Size;
use crate::report::{Passed, Report};
use crate::wire::{self, Ended};
use crate::world::{HOST, World};

const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const H2C: &str = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
const H2C_AMONG: &str = "Connection: Upgrade\r\nUpgrade: x, h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
const TLS: &str = "Connection: Upgrade\r\nUpgrade: TLS/1.2, HTTP/1.1\r\n";

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    let websocket = format!("{WEBSOCKET}{VERSION}");
    for (name, request_line, fields) in [
        ("WebSocket", "GET /upgrade HTTP/1.1", websocket.as_str()),
        ("WebSocket of no version", "GET /upgrade HTTP/1.1", WEBSOCKET),
        ("WebSocket in HTTP/1.0", "GET /upgrade HTTP/1.0", &websocket),
        ("an unknown protocol", "GET /upgrade HTTP/1.1", "Connection: Upgrade\r\nUpgrade: smuggling\r\n"),
        ("h2c", "GET /upgrade HTTP/1.1", H2C),
        ("h2c among others", "GET /upgrade HTTP/1.1", H2C_AMONG),
        ("TLS", "GET /upgrade HTTP/1.1", TLS),
        ("POST with a body", "POST /upgrade HTTP/1.1", "Content-Length: 3\r\n"),
    ] {
        let is_post = request_line.starts_with("POST");
        let (more, body) = if is_post { (websocket.as_str(), "abc") } else { ("", "") };
        let head = format!("{request_line}\r\nHost: {HOST}\r\n{more}{fields}\r\n{body}");
        // Of another host, which has no route: a proxy that reads it as a request answers 404.
        let behind = "GET /smuggled HTTP/1.1\r\nHost: none.invalid\r\nConnection: close\r\n\r\n";
        let marks = ["/smuggled", "h2c", "tls/1.2"];
        let count = || marks.map(|mark| world.asked.count(mark)).iter().sum::<usize>();
        let before = count();
        let (answer, ended) = wire::exchange(world.plain, format!("{head}{behind}").as_bytes())?;
        let smuggled = count() - before;
        let statuses = wire::statuses(&answer);
        let is_served = statuses.iter().all(|status| [200, 400, 404].contains(status));
        let passed = smuggled == 0 && is_served && ended == Ended::Closed;
        report.add(
            format!("upgrade: {name}, and a request behind it"),
            format!("{statuses:?}, {smuggled} smuggled"),
            passed.then_some(Passed),
        );
    }
    Ok(())
}
