//! Requests that want another protocol, with another request behind them: it is the backend's only
//! once that has agreed, and this one never does.

use anyhow::Result;

use crate::Size;
use crate::report::Report;
use crate::wire;
use crate::world::{HOST, World};

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let websocket = format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{key}");
    for (name, method, fields) in [
        ("WebSocket", "GET", websocket.as_str()),
        ("WebSocket of a wrong version", "GET", "Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        ("an unknown protocol", "GET", "Connection: Upgrade\r\nUpgrade: smuggling\r\n"),
        ("h2c", "GET", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
        ("POST with a body", "POST", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n"),
    ] {
        let body = if method == "POST" { "abc" } else { "" };
        let head = format!("{method} /upgrade HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n{body}");
        // Of another host, which has no route: a proxy that reads it as a request answers 404.
        let behind = "GET /smuggled HTTP/1.1\r\nHost: none.invalid\r\nConnection: close\r\n\r\n";
        let before = world.asked.count("/smuggled");
        let (answer, _) = wire::exchange(world.plain, format!("{head}{behind}").as_bytes())?;
        let smuggled = world.asked.count("/smuggled") - before;
        let statuses = wire::statuses(&answer);
        let passed = smuggled == 0 && !statuses.contains(&101);
        report.add(
            format!("upgrade: {name}, and a request behind it"),
            format!("{statuses:?}, {smuggled} smuggled"),
            passed,
        );
    }
    Ok(())
}
