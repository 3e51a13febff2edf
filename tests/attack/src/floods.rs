//! Floods of HTTP/2 frames that cost the sender nothing: each has to end the connection early, in
//! number of frames and not in time.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use anyhow::Result;

use crate::Size;
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, begin, block, frame,
};
use crate::report::{Passed, Report};
use crate::wire::{self, Ended};
use crate::world::{HOST, World};

/// Frames that are sent again and again on a connection.
struct Flood {
    name: &'static str,
    frames: usize,
    begin: Vec<u8>,
    frame: fn(u32) -> Vec<u8>,
}

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    for flood in floods(size) {
        let stopped = flood.run(world)?;
        let happened = match stopped {
            Some(frames) => format!("closed after some {frames} of {}", flood.frames),
            None => format!("open after {}", flood.frames),
        };
        report.add(format!("HTTP/2 flood: {}", flood.name), happened, stopped.map(|_| Passed));
    }
    Ok(())
}

fn floods(size: Size) -> Vec<Flood> {
    let idle = begin(&[]);
    // No window: responses cannot end.
    let unread = begin(&[0, 4, 0, 0, 0, 0]);
    let posting = [&idle[..], &frame(HEADERS, END_HEADERS, 1, &fields("POST"))].concat();
    let unended = [&idle[..], &frame(HEADERS, 0, 1, &fields("GET"))].concat();
    let flood =
        |name, full, begin: &[u8], frame| Flood { name, frames: size.of(full), begin: begin.to_vec(), frame };
    vec![
        flood("rapid reset", 40_000, &idle, and_reset),
        flood("rapid reset, without a window", 40_000, &unread, and_reset),
        flood("resets that the server is made to send", 40_000, &idle, |number| {
            let stream = 2 * number + 1;
            [request(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
        }),
        flood("CONTINUATION", 20_000, &unended, |_| frame(CONTINUATION, 0, 1, &block(&[("x", "continued")]))),
        flood("empty CONTINUATION", 100_000, &unended, |_| frame(CONTINUATION, 0, 1, &[])),
        flood("SETTINGS", 50_000, &idle, |_| frame(SETTINGS, 0, 0, &[])),
        flood("windows that change", 50_000, &idle, |number| {
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, (number % 2) as u8])
        }),
        flood("PING", 50_000, &idle, |_| frame(PING, 0, 0, &[7; 8])),
        flood("PRIORITY", 50_000, &idle, |number| frame(PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 1])),
        flood("empty DATA", 50_000, &posting, |_| frame(DATA, 0, 1, &[])),
        flood("windows that overflow", 1000, &idle, |_| {
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])
        }),
    ]
}

// === impl Flood ===

impl Flood {
    /// The number of frames after which the connection was closed; `None` if it was not.
    fn run(&self, world: &World) -> Result<Option<usize>> {
        /// Sent at once.
        const BATCH: usize = 20;
        let mut stream = wire::connect(world.plain)?;
        if stream.write_all(&self.begin).is_err() {
            return Ok(Some(0));
        }
        let mut reading = stream.try_clone()?;
        // What is answered is read: an attacker that does not would be slowed down.
        let reader = thread::spawn(move || until_goaway(&mut reading));
        let mut number = 0;
        while number < self.frames && !reader.is_finished() {
            let upto = (number + BATCH).min(self.frames);
            let bytes: Vec<u8> =
                (number..upto).flat_map(|it| (self.frame)(u32::try_from(it).unwrap_or_default())).collect();
            if stream.write_all(&bytes).is_err() {
                break;
            }
            number = upto;
        }
        let ended = reader.join().unwrap_or(Ended::Open);
        Ok((ended == Ended::Closed).then_some(number))
    }
}

/// Reads until the server says that it closes the connection, or does, or nothing comes any more.
fn until_goaway(stream: &mut TcpStream) -> Ended {
    loop {
        match Frame::read(stream) {
            Ok(Frame { kind: GOAWAY, .. }) => return Ended::Closed,
            Ok(_) => {}
            Err(error) if wire::is_late(&error) => return Ended::Open,
            Err(_) => return Ended::Closed,
        }
    }
}

fn and_reset(number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    [request(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
}

fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields("GET"))
}

fn fields(method: &'static str) -> Vec<u8> {
    block(&[(":method", method), (":scheme", "http"), (":path", "/flood"), (":authority", HOST)])
}
