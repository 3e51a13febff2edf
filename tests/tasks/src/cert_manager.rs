//! cert-manager's own controller and the pods of its solver, Pebble as the authority that asks at
//! port 80 before it signs, and the names in a server of Pebble's.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{Authority, command, go, workspace};

use super::process::Process;
use super::report::Report;
use super::world::{World, await_answer};

pub(crate) const PAGE: &str = "cert-manager";

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/tasks/cert-manager";
const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";
const PEBBLE: &str = "github.com/letsencrypt/pebble/v2";
const SOLVER_IMAGE: &str = "portcullis.test/acmesolver:1";

const NAMESPACES: &[&str] = &["infra", "shop"];
/// Ports of the cluster's own loopback.
const DIRECTORY: &str = "https://127.0.0.1:14000/dir";
const ROOT: &str = "https://127.0.0.1:15000/roots/0";
const NAMES: &str = "127.0.0.1:8053";
const OF_NAMES: &str = "127.0.0.1:8055";
/// Most seconds that Pebble waits before it asks: time to look at what it will ask.
const DELAY: &str = "8";

const SOLVER_ROUTES: [&str; 2] = ["httproutes", "--selector=acme.cert-manager.io/http01-solver=true"];

pub(crate) fn controller() -> Result<String> {
    let version = |name| go::required(MODULE, name);
    Ok(format!("cert-manager {} (Pebble {})", version(CERT_MANAGER)?, version(PEBBLE)?))
}

/// Each built once.
pub(crate) struct Programs {
    controller: PathBuf,
    solver: PathBuf,
    pebble: PathBuf,
    names: PathBuf,
}

impl Programs {
    pub(crate) fn build() -> Result<Self> {
        let program = |package: &str, name: &str| go::built(MODULE, package, name);
        Ok(Self {
            pebble: program(&format!("{PEBBLE}/cmd/pebble"), "pebble")?,
            names: program(&format!("{PEBBLE}/cmd/pebble-challtestsrv"), "pebble-challtestsrv")?,
            solver: program("./acmesolver", "acmesolver")?,
            controller: program("./controller", "cert-manager")?,
        })
    }
}

pub(crate) fn try_out(world: &World, report: &mut Report) -> Result<()> {
    let programs = Programs::build()?;
    world.make_namespaces(&["infra"])?;
    world.remove_namespaces(&["shop"])?;
    world.cluster.install_crds(&go::source(MODULE, CERT_MANAGER)?.join("deploy/crds"))?;
    import_solver(world, &programs)?;
    let page = Page { authority: Files::write(world)?, world };
    page.apply()?;
    let address = world.address("infra", "edge")?;
    report.check("before there is a certificate, the listener waits and says for what", || {
        page.listener_waits(&address)
    })?;
    let running = Running::start(&page, &programs, &address)?;
    let checked = page.checks(&address, report);
    // Its finalizers have to be taken away.
    world.remove_namespaces(NAMESPACES)?;
    checked.with_context(|| running.last_words())
}

/// Pods of the solver find it on the node.
fn import_solver(world: &World, programs: &Programs) -> Result<()> {
    let archive = world.cluster.layout().path("acmesolver.tar");
    let mut image = workspace::xtask(&["image", "--nobody", "--without-authorities", "--binary"]);
    image.arg(&programs.solver).arg("--output").arg(&archive).args(["--tag", SOLVER_IMAGE]);
    command::run(&mut image)?;
    world.cluster.import_image(&archive)
}

/// Paths: of Pebble's own HTTPS, and of the root that it signs with.
struct Files {
    authority: String,
    certificate: String,
    key: String,
    /// The authority in base64, as an issuer has it.
    bundle: String,
    root: String,
}

impl Files {
    fn write(world: &World) -> Result<Self> {
        let path = |name: &str| world.cluster.layout().path(name).display().to_string();
        let authority = Authority::new()?;
        let issued = authority.issue(&["127.0.0.1"])?;
        let files = Self {
            authority: path("pebble-authority.pem"),
            certificate: path("pebble.pem"),
            key: path("pebble.key"),
            bundle: String::new(),
            root: path("pebble-root.pem"),
        };
        fs::write(&files.authority, authority.pem())?;
        fs::write(&files.certificate, &issued.chain)?;
        fs::write(&files.key, &issued.key)?;
        let bundle = command::output(world.cluster.command("base64").args(["-w0", &files.authority]))?;
        Ok(Self { bundle, ..files })
    }
}

/// Dropped in this order.
struct Running {
    controller: Process,
    pebble: Process,
    _names: Process,
}

impl Running {
    /// Every name leads to the address, as the page wants it before anything else.
    fn start(page: &Page<'_>, programs: &Programs, address: &str) -> Result<Self> {
        let cluster = &page.world.cluster;
        let mut names = page.world.command(&programs.names);
        for unused in ["-http01", "-https01", "-doh", "-tlsalpn01", "-defaultIPv6"] {
            names.args([unused, ""]);
        }
        names.args(["-dnsserver", NAMES, "-management", OF_NAMES, "-defaultIPv4", address]);
        let names = Process::start(cluster, "challtestsrv", &mut names)?;
        let config = cluster.layout().path("pebble.json");
        fs::write(&config, page.pebble())?;
        let mut pebble = page.world.command(&programs.pebble);
        pebble.args(["-dnsserver", NAMES, "-config"]).arg(config).env("PEBBLE_VA_SLEEPTIME", DELAY);
        let mut pebble = Process::start(cluster, "pebble", &mut pebble)?;
        let ask = || {
            pebble.lives()?;
            page.world.curl(&["--cacert", &page.authority.authority, ROOT])
        };
        let root =
            await_answer("Pebble's root certificate", ask, |found| found.contains("BEGIN CERTIFICATE"))?;
        fs::write(&page.authority.root, root)?;
        let mut controller = page.world.command(&programs.controller);
        controller.args(["--kubeconfig", &page.world.kubeconfig(), "--feature-gates=ListenerSets=true"]);
        controller.args(["--acme-http01-solver-image", SOLVER_IMAGE]);
        controller.args(["--acme-http01-solver-nameservers", NAMES]);
        let controller = Process::start(cluster, "cert-manager", &mut controller)?;
        Ok(Self { controller, pebble, _names: names })
    }

    fn last_words(&self) -> String {
        format!("{}\n{}", self.controller.last_words(), self.pebble.last_words())
    }
}

struct Page<'a> {
    world: &'a World,
    authority: Files,
}

impl Page<'_> {
    /// The page's objects, at the ports that they have in a cluster and with the authority that
    /// there is.
    fn apply(&self) -> Result<()> {
        let server = format!("server: {DIRECTORY}\n    caBundle: {}", self.authority.bundle);
        let server = ("server: https://acme.example/directory", server.as_str());
        self.world.apply_shown(PAGE, "conf/platform.yaml", &[("port: 8080", "port: 80")])?;
        self.world.apply_shown(PAGE, "conf/shop.yaml", &[("port: 8443", "port: 443"), server])?;
        self.world.apply_file("shop.yaml", &[])
    }

    fn pebble(&self) -> String {
        let Files { certificate, key, .. } = &self.authority;
        format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
                "certificate": "{certificate}", "privateKey": "{key}", "httpPort": 80, "tlsPort": 443,
                "keyAlgorithm": "ecdsa"}}}}"#
        )
    }

    fn checks(&self, address: &str, report: &mut Report) -> Result<()> {
        report.check("a Certificate for the ListenerSet's listener, by its annotation", || {
            self.certificate_is_made()
        })?;
        report.check("the challenge is answered at the Gateway's port 80, beside the redirect", || {
            self.challenge_is_answered(address)
        })?;
        report.check("the certificate is issued, and nothing is left of the challenge", || {
            self.certificate_is_issued("shop-tls", address)
        })?;
        report.check("HTTPS with it, verified against the authority's root", || {
            self.is_served("shop.example", address)
        })?;
        report
            .check("a renewed one is used from the next connection on", || self.renewed_is_served(address))?;
        let server = format!("server: {DIRECTORY}\n    caBundle: {}", self.authority.bundle);
        self.world.apply_file("own.yaml", &[("server: https://acme.example/directory", &server)])?;
        report.check("without the second annotation, by the ListenerSet's own listener for HTTP", || {
            let issued = self.certificate_is_issued("own-tls", address)?;
            Ok(format!("{issued}; {}", self.is_served("own.example", address)?))
        })?;
        report.check("listeners without hostname, and Secrets of another namespace, are skipped", || {
            self.others_are_skipped()
        })
    }

    fn listener_waits(&self, address: &str) -> Result<String> {
        let reason = "{.status.listeners[0].conditions[?(@.type=='Accepted')].reason}";
        let shop = ["listenerset", "shop"];
        let reason =
            self.world.await_field("shop", &shop, reason, |found| found == "InvalidCertificateRef")?;
        let status = self.redirect(address)?;
        Ok(format!("Accepted: {reason}; HTTP answers {status}"))
    }

    /// Everything but challenges.
    fn redirect(&self, address: &str) -> Result<String> {
        let name = format!("shop.example:80:{address}");
        let status = ["-o", "/dev/null", "-w", "%{http_code} to %{redirect_url}", "--resolve", &name];
        let ask = [&status[..], &["http://shop.example/cart"]].concat();
        self.world.await_curl(&ask, |found| found == "301 to https://shop.example/cart")
    }

    fn certificate_is_made(&self) -> Result<String> {
        let what =
            "{.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}: {.spec.dnsNames[*]}";
        self.world.await_field("shop", &["certificate", "shop-tls"], what, |found| {
            found == "ListenerSet/shop: shop.example"
        })
    }

    fn challenge_is_answered(&self, address: &str) -> Result<String> {
        let accepted = "{.items[0].status.parents[*].conditions[?(@.type=='Accepted')].status}";
        self.world.await_field("shop", &SOLVER_ROUTES, accepted, |found| found == "True")?;
        let parent = "{range .items[0].spec.parentRefs[*]}{.kind} {.namespace}/{.name} {.sectionName}{end}";
        let parent = self.world.field("shop", &SOLVER_ROUTES, parent)?;
        let path = "{.items[0].spec.rules[0].matches[0].path.value}";
        let path = self.world.field("shop", &SOLVER_ROUTES, path)?;
        let token = path.rsplit('/').next().unwrap_or_default();
        let (name, url) = (format!("shop.example:80:{address}"), format!("http://shop.example{path}"));
        let is_proof = |found: &str| found.strip_prefix(token).is_some_and(|rest| rest.starts_with('.'));
        self.world.await_curl(&["--resolve", &name, &url], is_proof)?;
        let redirect = self.redirect(address)?;
        Ok(format!("the route's parent: {}; GET …/TOKEN: the key; other paths: {redirect}", parent.trim()))
    }

    fn certificate_is_issued(&self, name: &str, address: &str) -> Result<String> {
        let ready = "{.status.conditions[?(@.type=='Ready')].status}";
        self.world.await_field("shop", &["certificate", name], ready, |found| found == "True")?;
        for left in ["httproutes", "services", "pods"] {
            let solvers = [left, SOLVER_ROUTES[1]];
            self.world.await_field("shop", &solvers, "{.items[*].metadata.name}", str::is_empty)?;
        }
        let redirect = self.redirect(address)?;
        Ok(format!("Ready: True; no route, Service or pod of a solver; HTTP answers {redirect}"))
    }

    fn is_served(&self, host: &str, address: &str) -> Result<String> {
        let (name, url) = (format!("{host}:443:{address}"), format!("https://{host}/cart"));
        let verified = "%{http_code}, certificate verified: %{ssl_verify_result}";
        let ask =
            ["--cacert", &self.authority.root, "--resolve", &name, "-o", "/dev/null", "-w", verified, &url];
        self.world.await_curl(&ask, |found| found == "200, certificate verified: 0")
    }

    fn renewed_is_served(&self, address: &str) -> Result<String> {
        let before = self.served(address)?;
        // As `cmctl renew` does it.
        let issuing = r#"[{"op": "add", "path": "/status/conditions/-", "value": {"type": "Issuing",
            "status": "True", "reason": "ManuallyTriggered", "message": "renewed by hand",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}}]"#;
        let certificate = ["patch", "certificate", "shop-tls", "--namespace=shop", "--subresource=status"];
        self.world.cluster.kubectl(&[&certificate[..], &["--type=json", "--patch", issuing]].concat())?;
        let object = ["certificate", "shop-tls"];
        let revision = self.world.await_field("shop", &object, "{.status.revision}", |found| found == "2")?;
        await_answer("another certificate", || self.served(address), |found| found != before)?;
        Ok(format!("revision {revision} is served: {}", self.is_served("shop.example", address)?))
    }

    /// The chain that a new connection sees.
    fn served(&self, address: &str) -> Result<String> {
        let name = format!("shop.example:443:{address}");
        let chain = ["-o", "/dev/null", "-w", "%{certs}", "https://shop.example/"];
        let chain = [&["--cacert", &self.authority.root, "--resolve", &name], &chain[..]].concat();
        let chain = self.world.curl(&chain)?;
        ensure!(chain.contains("BEGIN CERTIFICATE"), "curl saw no certificate: {chain}");
        Ok(chain)
    }

    fn others_are_skipped(&self) -> Result<String> {
        let of_own = ["events", "--field-selector=involvedObject.kind=ListenerSet,involvedObject.name=own"];
        let messages = "{range .items[?(@.reason=='BadConfig')]}{.message} {end}";
        let messages = self.world.await_field("shop", &of_own, messages, |found| {
            ["listeners[2]", "listeners[3]"].iter().all(|listener| found.contains(listener))
        })?;
        let made = self.world.field("shop", &["certificates"], "{.items[*].metadata.name}")?;
        ensure!(made.split(' ').count() == 2, "there are others: {made}");
        Ok(format!("Certificates: {made}; its event: {messages}"))
    }
}
