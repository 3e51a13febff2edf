//! Memory of the agent, as a process of its own, that clients cost which ask for much and read
//! nothing of it. `cargo xtask bench stalled` is the long form, beside another proxy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::fs;
use std::io::{Read, Write, copy, sink};
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
spec: {ports: [{port: 80}]}
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
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const LARGEST_WINDOW: u32 = i32::MAX as u32;
/// The time in which nothing moves when all buffers are full, and the limit for them to fill.
const QUIET: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(30);

/// A backend whose bodies do not end. Counts the bytes that it got rid of.
fn endless() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, sent) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
    let count = sent.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let count = count.clone();
            let send = move || {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n");
                while let Ok(written) = stream.write(&[b'x'; 16 << 10]) {
                    count.fetch_add(written, Relaxed);
                }
            };
            thread::Builder::new().stack_size(64 << 10).spawn(send).unwrap();
        }
    });
    (port, sent)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A hundred requests at once, and the largest windows there are for their responses.
fn http2_requests() -> Vec<u8> {
    let settings = frame(4, 0, 0, &[&[0, 4][..], &LARGEST_WINDOW.to_be_bytes()].concat());
    let window = frame(8, 0, 0, &(LARGEST_WINDOW - 65_535).to_be_bytes());
    // GET, http, /, and the authority a.
    let request = |n: u32| frame(1, 5, 2 * n + 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
    [PREFACE.to_vec(), settings, window, (0..100).flat_map(request).collect()].concat()
}

fn resident(agent: &Agent) -> usize {
    let pages = fs::read_to_string(format!("/proc/{}/statm", agent.child.id())).unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
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
fn cost(request: &[u8], connections: usize, taken: u64) -> usize {
    let (port, sent) = endless();
    let manifests = MANIFESTS.replace("BACKEND", &port.to_string());
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
    let after = resident(&agent);
    drop(stalled);
    after.saturating_sub(before) / connections
}

/// HTTP/1 costs no more for what it has taken before.
#[test]
fn clients_that_do_not_read_cost_little() {
    let costs = [
        ("HTTP/1", cost(GET, 100, 0), 64),
        ("HTTP/1, after 4 MiB", cost(GET, 100, 4 << 20), 64),
        ("HTTP/2, 100 streams", cost(&http2_requests(), 8, 0), 1024),
    ];
    println!("KiB for each connection: {costs:?}");
    for (what, cost, bound) in costs {
        assert!(cost <= bound, "{what}: {cost} KiB");
    }
}
