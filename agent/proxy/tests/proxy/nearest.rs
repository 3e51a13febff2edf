//! Endpoints near the agent: of connections and datagrams they have all, as of requests, as long as
//! one of them is available.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use portcullis_model::{
    Backend, BackendName, Distance, FrontendKey, Gateway as ModelGateway, L4Protocol, Locality, ObjectName,
    Port, PortKey, PortListeners, Serves, ShardMap, Snapshot, Unserved,
};
use portcullis_proxy::{Proxy, Settings, SocketMode};
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UdpSocket};

use crate::support::backend::refusing;
use crate::support::client;
use crate::support::fixture::{Gateway, snapshot};
use crate::support::l4::{echo, exchange, listener, passthrough, tcp, terminated, tls_backend, to};
use crate::support::settings::settings;

const NAME: &str = "app/one:1";
const ASKED: usize = 20;

/// The node's, one of its zone, and two elsewhere.
fn near(endpoints: [SocketAddr; 4]) -> ShardMap<Arc<Backend>> {
    let places = [Distance::Node, Distance::Zone, Distance::Elsewhere, Distance::Elsewhere];
    let locality = Some(Arc::new(Locality { places: places.into(), preferred: [1, 2].into() }));
    let name = BackendName(NAME.into());
    let backend = Backend { locality, ..Backend::new(name.clone(), endpoints.to_vec()) };
    [(name.0, Arc::new(backend))].into_iter().collect()
}

/// The answers of each endpoint, by its name.
async fn counted(mut ask: impl AsyncFnMut() -> String) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..ASKED {
        *counts.entry(ask().await).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn connections_come_to_near_endpoints() {
    let names = ["node", "zone", "far1", "far2"];
    let [mut plain, mut encrypted] = [Vec::new(), Vec::new()];
    for name in names {
        plain.push(echo(name).await);
        encrypted.push(tls_backend(name).await);
    }
    let served = [
        (tcp(NAME), &plain, None),
        (passthrough("a.example", NAME), &encrypted, Some("a.example")),
        (terminated("a.example", NAME), &plain, Some("a.example")),
    ];
    for (listener, endpoints, server_name) in served {
        let gateway = Gateway::start();
        let ask = async || match server_name {
            None => String::from_utf8(exchange(gateway.address, b"").await.unwrap()).unwrap(),
            Some(name) => {
                let stream = TcpStream::connect(gateway.address).await.unwrap();
                let mut stream = client::tls(stream, Some(name), b"http/1.1").await.unwrap();
                let mut said = [0; 4];
                stream.read_exact(&mut said).await.unwrap();
                String::from_utf8_lossy(&said).into_owned()
            }
        };
        let [node, zone, far, farther] = endpoints[..] else { panic!("{endpoints:?}") };
        let serve = async |endpoints| {
            let served = snapshot(gateway.address, [listener.clone()], &[]);
            let served = Snapshot { backends: near(endpoints), ..served };
            assert!(gateway.proxy.apply(Arc::new(served)).await.is_empty());
        };
        serve([node, zone, far, farther]).await;
        assert_eq!(counted(ask).await, [("node".to_owned(), ASKED)].into(), "{server_name:?}");
        serve([refusing(), zone, far, farther]).await;
        assert_eq!(counted(ask).await, [("zone".to_owned(), ASKED)].into(), "{server_name:?}");
        serve([refusing(), refusing(), far, far]).await;
        let mut asked = counted(ask).await;
        assert_eq!(
            asked.pop_first().map(|(name, count)| (name.starts_with("far"), count)),
            Some((true, ASKED))
        );
        assert!(gateway.proxy.stats().await.chosen[&Distance::Node] > ASKED as u64);
    }
}

#[tokio::test]
async fn datagrams_come_to_near_endpoints() {
    let mut endpoints = Vec::new();
    for name in ["node", "zone", "far1", "far2"] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        endpoints.push(socket.local_addr().unwrap());
        tokio::spawn(async move {
            let mut buffer = [0; 16];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
                let _ = socket.send_to(name.as_bytes(), peer).await;
            }
        });
    }
    // Keeps the address from other sockets until the proxy has it.
    let reserved = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SockRef::from(&reserved).set_reuse_port(true).unwrap();
    let address = reserved.local_addr().unwrap();
    let settings = Settings { cores: 2, sockets: SocketMode::Steered, ..settings() };
    let proxy = Proxy::start(settings).unwrap();
    let serve = async |endpoints| {
        let listeners = PortListeners::of(Arc::new(listener("udp", "*", Serves::Udp(to(&[(NAME, 1)])))));
        let gateway = ModelGateway::new(ObjectName::new("infra", "web"));
        let key = PortKey { number: address.port(), protocol: L4Protocol::Udp };
        let port = Arc::new(Port::new(gateway.into(), key, listeners));
        let frontends = [(FrontendKey::new(address.ip(), key), port)].into();
        let served = Snapshot { frontends, backends: near(endpoints), ..Snapshot::default() };
        assert_eq!(proxy.apply(Arc::new(served)).await, Unserved::default());
    };
    // Sessions of their own: while a client is there, no other one is given its port.
    let clients = RefCell::new(Vec::new());
    let ask = async || {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(address).await.unwrap();
        client.send(b"?").await.unwrap();
        let mut buffer = [0; 16];
        let length = client.recv(&mut buffer).await.unwrap();
        clients.borrow_mut().push(client);
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let [node, zone, far, farther] = endpoints[..] else { panic!("{endpoints:?}") };
    serve([node, zone, far, farther]).await;
    drop(reserved);
    assert_eq!(counted(ask).await, [("node".to_owned(), ASKED)].into());
    serve([zone, node, far, farther]).await;
    assert_eq!(counted(ask).await, [("zone".to_owned(), ASKED)].into());
    assert_eq!(proxy.stats().await.chosen[&Distance::Node], 2 * ASKED as u64);
}
