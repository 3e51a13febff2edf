//! A backend whose node is gone: no reset, no answer, nothing. It has an address that can be taken
//! away, so this runs in a network namespace of its own, which needs root or user namespaces.

use std::env;
use std::process::Command;
use std::time::Duration;

use portcullis_model::BackendProtocol;
use portcullis_proxy::{Settings, Upstream};
use tokio::time::timeout;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Reply, Via};
use crate::support::world::World;

const INSIDE: &str = "PORTCULLIS_TEST_INSIDE";
const BACKEND: &str = "10.77.0.1";
/// As short as the kernel's probes can be.
const VANISHED: Duration = Duration::from_secs(4);

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env(INSIDE, "1").output().unwrap();
    let [printed, errors] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    let command = arguments.join(" ");
    assert!(output.status.success(), "{program} {command}: this test makes a namespace\n{printed}{errors}");
    printed
}

/// Runs a test of this module again, in a namespace where it may do what it likes.
fn isolated(name: &str, test: impl Future<Output = ()>) {
    if env::var_os(INSIDE).is_some() {
        run("ip", &["link", "set", "lo", "up"]);
        run("ip", &["address", "add", BACKEND, "dev", "lo"]);
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    } else {
        let this = env::current_exe().unwrap();
        let name = format!("vanished::{name}");
        let printed = run("unshare", &["--net", "--map-root-user", this.to_str().unwrap(), "--exact", &name]);
        assert!(printed.contains("test result: ok. 1 passed"), "{name}: {printed}");
    }
}

fn take_away() {
    run("ip", &["address", "delete", &format!("{BACKEND}/32"), "dev", "lo"]);
}

async fn world(protocol: BackendProtocol, origin: &Origin) -> World {
    let upstream = Upstream { vanished: VANISHED, ..Upstream::default() };
    let mut world = World::with(Settings { upstream, ..settings() });
    world.backend("echo", protocol, &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    world
}

/// All requests of an HTTP/2 connection would wait until the kernel gives up sending, for a quarter
/// of an hour.
#[test]
fn requests_do_not_wait_for_a_backend_that_vanished() {
    isolated("requests_do_not_wait_for_a_backend_that_vanished", async {
        let origin = Origin::h2c_at(BACKEND).await;
        let world = world(BackendProtocol::H2c, &origin).await;
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
        take_away();
        let late = timeout(10 * VANISHED, world.send(Via::Http1, "GET /")).await;
        assert_eq!(late.expect("it waits for an answer").status, 503);
    });
}

/// A watch sends nothing, so nothing would ever fail.
#[test]
fn responses_of_a_backend_that_vanished_end() {
    isolated("responses_of_a_backend_that_vanished_end", async {
        let origins = [
            (BackendProtocol::Http1, Origin::http1_at(BACKEND).await),
            (BackendProtocol::H2c, Origin::h2c_at(BACKEND).await),
        ];
        let mut watches = Vec::new();
        for (protocol, origin) in &origins {
            let world = world(*protocol, origin).await;
            let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
            watches.push((client.start("GET /?stall").await.unwrap(), world));
        }
        take_away();
        for (watch, _world) in watches {
            let ended = timeout(10 * VANISHED, Reply::read(watch)).await;
            assert!(ended.expect("it waits for what never comes").is_err());
        }
    });
}
