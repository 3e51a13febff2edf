//! Endpoints of which a router says that they cannot be reached.
#![cfg(test)]

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_netns_tests::{Scenario, VIP};

/// A listener of TCP for each family, whose only endpoint is not there; one of UDP with another.
const LISTENERS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: portcullis
  listeners:
    - {name: four, port: 4, protocol: TCP}
    - {name: six, port: 6, protocol: TCP}
    - {name: udp, port: 4, protocol: UDP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: four, namespace: infra}
spec: {parentRefs: [{name: edge, sectionName: four}], rules: [{backendRefs: [{name: four, port: 4}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: six, namespace: infra}
spec: {parentRefs: [{name: edge, sectionName: six}], rules: [{backendRefs: [{name: six, port: 6}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: udp, namespace: infra}
spec: {parentRefs: [{name: edge, sectionName: udp}], rules: [{backendRefs: [{name: udp, port: 4}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: four, namespace: infra}
spec: {ports: [{port: 4}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: infra}
spec: {ports: [{port: 6}]}
---
apiVersion: v1
kind: Service
metadata: {name: udp, namespace: infra}
spec: {ports: [{port: 4, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: four, namespace: infra, labels: {kubernetes.io/service-name: four}}
addressType: IPv4
ports: [{port: 4}]
endpoints: [{addresses: [10.20.0.5]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: six, namespace: infra, labels: {kubernetes.io/service-name: six}}
addressType: IPv6
ports: [{port: 6}]
endpoints: [{addresses: ['fd20::5']}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: udp, namespace: infra, labels: {kubernetes.io/service-name: udp}}
addressType: IPv4
ports: [{port: 4, protocol: UDP}]
endpoints: [{addresses: [10.20.0.6]}, {addresses: [10.2.0.2]}]
";

#[test]
fn an_endpoint_that_cannot_be_reached_is_given_up_at_once() {
    let scenario = Scenario::without_configuration("unreachable").unwrap();
    scenario.end_routes(&[("10.20.0.0/24", "10.2.0.2"), ("fd20::/64", "fd02::2")]).unwrap();
    fs::write(scenario.config().join("gateway.yaml"), LISTENERS).unwrap();
    let server = scenario.datagrams_at_backends("10.2.0.2:4").unwrap();
    let _agent = scenario.start_agent().unwrap();
    for port in [4, 6] {
        let given_up_after = || {
            let mut client = scenario.client.enter(|| Ok(TcpStream::connect((VIP, port))?)).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let began = Instant::now();
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            began.elapsed()
        };
        // The kernel tries again after a second, by itself: every connection would have to wait for
        // that, and none does but for what the machine does meanwhile.
        let fastest = (0..5).map(|_| given_up_after()).min().unwrap();
        assert!(fastest < Duration::from_millis(900), "{port}: {fastest:?}");
    }
    let answering = thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, session)) = server.recv_from(&mut buffer) {
            server.send_to(&buffer[..length], session).unwrap();
        }
    });
    for number in 0..10 {
        let client = scenario.client.enter(|| Ok(UdpSocket::bind("0.0.0.0:0")?)).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        // What was sent to the other endpoint is lost, and its router does not tell it every time.
        let is_answered = (0..300).any(|_| {
            client.send_to(b"x", (VIP, 4)).unwrap();
            client.recv(&mut [0; 16]).is_ok()
        });
        assert!(is_answered, "client {number}");
    }
    drop(answering);
}
