//! Memory of the agent, as a process of its own, that clients cost which ask for much and read
//! nothing of it. `cargo xtask bench stalled` is the long form, beside another proxy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write, copy, sink};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use support::{Agent, HTTP};

const MANIFESTS: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: endless}
spec: {ports: [{port: 80, appProtocol: PROTOCOL}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: endless-1, labels: {kubernetes.io/service-name: endless}}
addressType: IPv4
ports: [{port: BACKEND}]
endpoints: [{addresses: [127.0.0.1]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: endless}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{name: endless, port: 80}]}]
";
const HTTP1: &str = "http";
const H2C: &str = "kubernetes.io/h2c";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const LARGEST_WINDOW: u32 = i32::MAX as u32;
/// The time in which nothing moves when all buffers are full, and the limit for them to fill.
const QUIET: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(120);
/// The allocator gives back what it no longer needs within ten seconds.
const GIVEN_BACK: Duration = Duration::from_secs(60);

/// A backend whose bodies do not end. Counts the bytes that it got rid of.
fn endless(protocol: &str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, sent) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
    let (count, send) = (sent.clone(), if protocol == H2C { send_http2 } else { send_http1 });
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = count.clone();
            let send = move || drop(send(stream, &count));
            thread::Builder::new().stack_size(64 << 10).spawn(send).unwrap();
        }
    });
    (port, sent)
}

fn send_http1(mut stream: TcpStream, sent: &AtomicUsize) -> io::Result<()> {
    let _ = stream.read(&mut [0; 1024])?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")?;
    loop {
        sent.fetch_add(stream.write(&[b'x'; 16 << 10])?, Relaxed);
    }
}

/// Uses every window up at once, so that there is more to do only when a frame comes.
fn send_http2(mut stream: TcpStream, sent: &AtomicUsize) -> io::Result<()> {
    // As servers of HTTP/2 do: what they write waits for no acknowledgement.
    stream.set_nodelay(true)?;
    stream.read_exact(&mut [0; PREFACE.len()])?;
    // SETTINGS_MAX_CONCURRENT_STREAMS
    stream.write_all(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 8, 0]))?;
    let (mut initial, mut shared, mut windows) = (65_535, 65_535, BTreeMap::new());
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut payload)?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let number = |at| u32::from_be_bytes([at, at + 1, at + 2, at + 3].map(|at: usize| payload[at]));
        match (head[3], head[4]) {
            (SETTINGS, 0) => {
                let window = (0..payload.len()).step_by(6).find(|at| payload[at + 1] == 4);
                initial = window.map_or(initial, |at| number(at + 2));
                stream.write_all(&frame(SETTINGS, 1, 0, &[]))?;
            }
            (HEADERS, _) => {
                windows.insert(id, initial);
                // :status: 200
                stream.write_all(&frame(HEADERS, 4, id, &[0x88]))?;
            }
            (WINDOW_UPDATE, _) if id == 0 => shared += number(0),
            (WINDOW_UPDATE, _) => {
                windows.entry(id).and_modify(|window| *window += number(0));
            }
            (RST_STREAM, _) => drop(windows.remove(&id)),
            _ => {}
        }
        for (id, window) in &mut windows {
            while *window > 0 && shared > 0 {
                let piece = (*window).min(shared).min(16 << 10);
                stream.write_all(&frame(DATA, 0, *id, &vec![b'x'; piece as usize]))?;
                sent.fetch_add(piece as usize, Relaxed);
                (*window, shared) = (*window - piece, shared - piece);
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A hundred requests at once, and the largest windows there are for their responses.
fn http2_requests() -> Vec<u8> {
    let settings = frame(SETTINGS, 0, 0, &[&[0, 4][..], &LARGEST_WINDOW.to_be_bytes()].concat());
    let window = frame(WINDOW_UPDATE, 0, 0, &(LARGEST_WINDOW - 65_535).to_be_bytes());
    // GET, http, /, and the authority a.
    let request = |n: u32| frame(HEADERS, 5, 2 * n + 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
    [PREFACE.to_vec(), settings, window, (0..100).flat_map(request).collect()].concat()
}

/// KiB, without the pages of the program's own file: the code that the first clients use for the
/// first time is nothing that clients cost.
fn resident(agent: &Agent) -> usize {
    let pages = fs::read_to_string(format!("/proc/{}/statm", agent.child.id())).unwrap();
    let pages: Vec<usize> = pages.split_whitespace().map(|pages| pages.parse().unwrap()).collect();
    let (resident, of_files) = (pages[1], pages[2]);
    (resident - of_files) * 4
}

/// Returns once the backend gets rid of nothing more.
fn settle(sent: &AtomicUsize) {
    let (begun, mut moved, mut last) = (Instant::now(), Instant::now(), 0);
    while last == 0 || moved.elapsed() < QUIET {
        assert!(begun.elapsed() < TIMEOUT, "the backend is read on and on: {last} bytes");
        thread::sleep(Duration::from_millis(10));
        let now = sent.load(Relaxed);
        if now != last {
            (last, moved) = (now, Instant::now());
        }
    }
}

/// KiB of the agent for each of the connections, which write these bytes, read so many and stop.
/// What counts is what they cost for as long as they stay: more than the bound may be in use while
/// buffers fill.
fn cost(protocol: &str, request: &[u8], connections: usize, taken: u64, bound: usize) -> usize {
    let (port, sent) = endless(protocol);
    let manifests = MANIFESTS.replace("BACKEND", &port.to_string()).replace("PROTOCOL", protocol);
    let agent = Agent::start_with(&["--minimum-rate", "0"], &[("all.yaml", &manifests)]);
    let before = resident(&agent);
    let stalled = (0..connections).map(|_| {
        let mut stream = TcpStream::connect((agent.address, HTTP)).unwrap();
        stream.write_all(request).unwrap();
        copy(&mut (&mut stream).take(taken), &mut sink()).unwrap();
        stream
    });
    let stalled: Vec<_> = stalled.collect();
    settle(&sent);
    assert!(agent.admin("/readyz").is_some_and(|answer| answer.status == 200));
    let (settled, held) = (Instant::now(), || resident(&agent).saturating_sub(before) / connections);
    while held() > bound && settled.elapsed() < GIVEN_BACK {
        thread::sleep(Duration::from_millis(100));
    }
    let held = held();
    drop(stalled);
    held
}

/// HTTP/1 costs no more for what it has taken before. There are so many of each that what the agent
/// has once, such as buffers of its connections to the backend, hardly counts.
#[test]
fn clients_that_do_not_read_cost_little() {
    let requests = http2_requests();
    let cases = [
        ("HTTP/1", GET, 300, 0, 64),
        ("HTTP/1, after 4 MiB", GET, 300, 4 << 20, 64),
        ("HTTP/2, 100 streams", &requests, 16, 0, 1024),
    ];
    let costs = [HTTP1, H2C].map(|backend| {
        cases.map(|(what, request, connections, taken, bound)| {
            (backend, what, cost(backend, request, connections, taken, bound), bound)
        })
    });
    println!("KiB for each connection: {costs:?}");
    for (backend, what, cost, bound) in costs.into_iter().flatten() {
        assert!(cost <= bound, "{what} to {backend}: {cost} KiB");
    }
}
