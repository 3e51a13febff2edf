//! `examples/oauth2-proxy` with the real oauth2-proxy in front of an application, an OpenID
//! provider beside it, and curl as the browsers of users. Both are built with Go, so that these
//! tests are a step of CI of their own.
#![cfg(test)]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_netns_tests::{Namespace, Scenario, VIP};
use portcullis_testbed::{Agent, go, until};

const EXAMPLE: &str = include_str!("../../../examples/oauth2-proxy/oauth2-proxy.yaml");
const MODULE: &str = "tests/sign-in";

/// Of the example, and where it runs here.
const OAUTH2_PROXY: &str = "10.2.0.2:4180";
const APPLICATION: &str = "https://app.example.com";
const ISSUER: &str = "https://id.example.com";
/// Both the browsers and oauth2-proxy have to reach it.
const PROVIDER: &str = "10.1.0.1:9000";

/// Endpoints of the example's Services, and the application, which it leaves to its user.
const WORLD: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec: {ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app-1, namespace: shop, labels: {kubernetes.io/service-name: app}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.2.0.2]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: oauth2-proxy-1, namespace: shop, labels: {kubernetes.io/service-name: oauth2-proxy}}
addressType: IPv4
ports: [{port: 4180}]
endpoints: [{addresses: [10.2.0.2]}]
";

/// One of the domain that the example lets in, and one who is not.
const USERS: &str = r#"{
    "1": {"ID": "1", "Username": "ann", "Password": "ann's", "FirstName": "Ann", "LastName": "Other",
          "Email": "ann@example.com", "EmailVerified": true, "PreferredLanguage": "en"},
    "2": {"ID": "2", "Username": "eve", "Password": "eve's", "FirstName": "Eve", "LastName": "Else",
          "Email": "eve@elsewhere.test", "EmailVerified": true, "PreferredLanguage": "en"}
}"#;

const SOON: Duration = Duration::from_secs(60);

/// Dropped in this order.
struct World {
    _agent: Agent,
    oauth2_proxy: Process,
    _provider: Process,
    scenario: Scenario,
}

impl World {
    fn new(test: &str) -> Result<Self> {
        let scenario = Scenario::without_configuration(test)?;
        let certificate = scenario.authority.issue(&["app.example.com"])?.secret("shop", "app-tls");
        fs::write(scenario.config().join("example.yaml"), [EXAMPLE, WORLD, &certificate].concat())?;
        let provider = provider(&scenario)?;
        let oauth2_proxy = oauth2_proxy(&scenario)?;
        let agent = scenario.start_agent()?;
        let world = Self { _agent: agent, oauth2_proxy, _provider: provider, scenario };
        until(SOON, || world.browser("a-first-one").visit("/").and_then(|page| page.expect(302)))?;
        Ok(world)
    }

    /// With cookies of its own.
    fn browser(&self, name: &str) -> Browser<'_> {
        let file = |name: &str| self.scenario.file(name);
        Browser { client: &self.scenario.client, authority: file("ca.pem"), cookies: file(name) }
    }
}

fn provider(scenario: &Scenario) -> Result<Process> {
    let users = scenario.file("users.json");
    fs::write(&users, USERS)?;
    let program = go::built(MODULE, "./provider", "openid-provider")?;
    let mut command = scenario.command_on_node("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).args(["-listen", PROVIDER, "-client", "shop"]);
    command.args(["-secret", "the client's", "-redirect", &format!("{APPLICATION}/oauth2/callback")]);
    Process::start(command.arg("-users").arg(users), scenario.file("provider.log"))
}

/// As the example has it, but for where the provider is.
fn oauth2_proxy(scenario: &Scenario) -> Result<Process> {
    let program = go::built(MODULE, "github.com/oauth2-proxy/oauth2-proxy/v7", "oauth2-proxy")?;
    let arguments = EXAMPLE.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let arguments =
        arguments.map(|argument| format!("--{argument}").replace(ISSUER, &format!("http://{PROVIDER}")));
    let route = ["route", "add", "10.1.0.1/32", "via", "10.2.0.1"];
    ensure!(scenario.command_at_backends("ip").args(route).status()?.success(), "no way to the provider");
    until(SOON, || reachable(scenario, &format!("http://{PROVIDER}/.well-known/openid-configuration")))?;
    let mut command = scenario.command_at_backends("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).args(arguments);
    command.env("OAUTH2_PROXY_CLIENT_ID", "shop").env("OAUTH2_PROXY_CLIENT_SECRET", "the client's");
    command.env("OAUTH2_PROXY_COOKIE_SECRET", "0123456789abcdef0123456789abcdef");
    let process = Process::start(&mut command, scenario.file("oauth2-proxy.log"))?;
    let ready = until(SOON, || reachable(scenario, &format!("http://{OAUTH2_PROXY}/oauth2/ready")));
    ready.with_context(|| process.log()).map(|()| process)
}

fn reachable(scenario: &Scenario, url: &str) -> Result<()> {
    let mut curl = scenario.command_at_backends("curl");
    let output = curl.args(["-sS", "--fail", "--max-time", "5", url]).output()?;
    ensure!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: command.spawn().with_context(|| format!("cannot run {command:?}"))?, log })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

struct Browser<'a> {
    client: &'a Namespace,
    authority: PathBuf,
    cookies: PathBuf,
}

#[derive(Debug)]
struct Page {
    status: u16,
    /// The page that it redirects to.
    location: Option<String>,
    /// Head and body.
    text: String,
}

impl Browser<'_> {
    fn visit(&self, url: &str) -> Result<Page> {
        self.ask(url, &[])
    }

    /// With further arguments of curl's. A path is one of the application.
    fn ask(&self, url: &str, arguments: &[&str]) -> Result<Page> {
        let url = if url.starts_with('/') { format!("{APPLICATION}{url}") } else { url.to_owned() };
        let mut curl = self.client.command("curl");
        curl.args(["-sS", "-i", "--path-as-is", "--max-time", "20", "--cacert"]).arg(&self.authority);
        curl.args(["--resolve", &format!("app.example.com:443:{VIP}")]);
        curl.arg("--cookie").arg(&self.cookies).arg("--cookie-jar").arg(&self.cookies);
        let output = curl.args(arguments).arg(&url).output().context("cannot run curl")?;
        ensure!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let head = text.split("\r\n\r\n").next().unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        let mut location = fields.filter(|(name, _)| name.eq_ignore_ascii_case("location"));
        let location = location.next().map(|(_, to)| to.to_owned());
        Ok(Page { status, location, text })
    }

    /// The first page that leads to no other.
    fn follow(&self, mut page: Page) -> Result<Page> {
        let mut origin = APPLICATION.to_owned();
        while let Some(location) = page.location.take() {
            let url = if location.starts_with('/') { format!("{origin}{location}") } else { location };
            let host = url.splitn(4, '/').take(3).collect::<Vec<_>>();
            origin = host.join("/");
            page = self.visit(&url)?;
        }
        Ok(page)
    }

    /// From a page of the application to the provider's form, and back.
    fn sign_in(&self, path: &str, user: &str, password: &str) -> Result<Page> {
        let form = self.visit(path).and_then(|page| self.follow(page))?.expect(200)?;
        let id = form.text.split_once(r#"name="id" value=""#).and_then(|(_, rest)| rest.split('"').next());
        let fields = [
            format!("id={}", id.context("no sign-in form")?),
            format!("username={user}"),
            format!("password={password}"),
        ];
        let fields: Vec<_> = fields.iter().flat_map(|field| ["--data-urlencode", field]).collect();
        let back = self.ask(&format!("http://{PROVIDER}/login/username"), &fields)?;
        // The provider's own next page.
        let location = back.location.as_deref().map(|to| match to.strip_prefix('/') {
            Some(path) => format!("http://{PROVIDER}/{path}"),
            None => to.to_owned(),
        });
        self.follow(Page { location, ..back })
    }
}

impl Page {
    fn expect(self, status: u16) -> Result<Self> {
        ensure!(self.status == status, "not {status}: {self:?}");
        Ok(self)
    }

    /// True if it sends the browser to the provider.
    fn leads_to_sign_in(&self) -> bool {
        let to_provider = |to: &String| to.starts_with(&format!("http://{PROVIDER}/"));
        self.status == 302 && self.location.as_ref().is_some_and(to_provider)
    }
}

#[test]
#[ignore = "oauth2-proxy is built with Go: `cargo xtask ci --only sign-in`"]
fn users_sign_in_and_the_application_learns_who_they_are() {
    let world = World::new("sign-in").unwrap();
    let (ann, app) = (world.browser("ann"), &world.scenario.shop);
    let sent = ann.visit("/cart?fields").unwrap();
    assert!(sent.leads_to_sign_in(), "{sent:?}");
    assert!(sent.text.contains("__Host-session_csrf="), "a denial's cookies are the client's: {sent:?}");
    let refused = ann.sign_in("/cart?fields", "ann", "eve's").unwrap();
    assert!(refused.text.contains("username or password wrong"), "{refused:?}");
    assert!(ann.visit("/cart").unwrap().leads_to_sign_in());
    assert_eq!(app.requests(), 0, "nobody has signed in");

    let page = ann.sign_in("/cart?fields", "ann", "ann's").unwrap().expect(200).unwrap();
    assert!(
        page.text.contains("shop: GET /cart?fields for app.example.com"),
        "back where it began: {page:?}"
    );
    assert!(page.text.contains("x-auth-request-email: ann@example.com"), "{page:?}");
    assert!(page.text.contains("x-auth-request-preferred-username: ann"), "{page:?}");
    let posted = ann.ask("/cart?fields", &["--data", "socks=2"]).unwrap().expect(200).unwrap();
    assert!(posted.text.contains("shop: POST /cart?fields"), "{posted:?}");

    let gone = ann.visit("/oauth2/sign_out").unwrap();
    assert_eq!((gone.status, gone.location.as_deref()), (302, Some("/")), "{gone:?}");
    assert!(ann.visit("/cart").unwrap().leads_to_sign_in());
    assert_eq!(app.requests(), 2);

    let refused = world.browser("eve").sign_in("/cart", "eve", "eve's").unwrap();
    assert_eq!(refused.status, 403, "of another domain: {refused:?}");
    assert_eq!(app.requests(), 2);
}

/// By claims in fields, by sessions, by paths that oauth2-proxy has for itself, and while it is out
/// of order.
#[test]
#[ignore = "oauth2-proxy is built with Go: `cargo xtask ci --only sign-in`"]
fn nobody_gets_by_without_a_session() {
    let mut world = World::new("no-session").unwrap();
    let stranger = world.browser("stranger");
    let claims = ["-H", "X-Auth-Request-Email: ann@example.com", "-H", "X_Auth_Request_User: ann"];
    assert!(stranger.ask("/cart", &claims).unwrap().leads_to_sign_in());
    let invented = ["-H", "Cookie: __Host-session=bm9uZQ==|1700000000|bm9uZQ=="];
    assert!(stranger.ask("/cart", &invented).unwrap().leads_to_sign_in());
    assert_eq!(stranger.ask("/cart", &["-H", "Accept: application/json"]).unwrap().status, 401);
    // Paths that oauth2-proxy answers without a session, or would by default, and other spellings.
    for path in ["/ping", "/ready", "/oauth2x", "/oauth2/../ping", "/%6Fauth2x/ping"] {
        let page = stranger.visit(path).unwrap();
        assert!(page.leads_to_sign_in(), "{path}: {page:?}");
    }
    for path in [
        "/robots.txt",
        "/oauth2/ping",
        "/oauth2/static/css/bulma.min.css",
        "/oauth2/auth",
        "/oauth2/ping/../auth",
        "/x/../oauth2%2Fping",
    ] {
        let page = stranger.visit(path).unwrap();
        assert!(!page.text.contains("shop: "), "{path}: {page:?}");
    }
    assert_eq!(world.scenario.shop.requests(), 0);

    let ann = world.browser("ann");
    let forged = [claims.as_slice(), &["-H", "X-Auth-Request-Groups: admins"]].concat();
    ann.sign_in("/", "ann", "ann's").unwrap().expect(200).unwrap();
    let page = ann.ask("/cart?fields", &forged).unwrap().expect(200).unwrap();
    let fields = page.text.to_lowercase();
    assert_eq!(fields.matches("x-auth-request-email").count(), 1, "{page:?}");
    assert!(!fields.contains("admins") && !fields.contains("x_auth"), "{page:?}");

    let jar = world.scenario.file("ann");
    let cookies = fs::read_to_string(&jar).unwrap();
    let (before, _) = cookies.trim_end().rsplit_once('|').expect("a signed session");
    let mut changed = fs::File::create(world.scenario.file("changed")).unwrap();
    writeln!(changed, "{before}|AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
    assert!(world.browser("changed").visit("/cart").unwrap().leads_to_sign_in(), "{cookies}");

    let seen = world.scenario.shop.requests();
    world.oauth2_proxy.child.kill().unwrap();
    world.oauth2_proxy.child.wait().unwrap();
    assert_eq!(world.browser("ann").visit("/cart").unwrap().status, 503, "nobody is there to ask");
    assert_eq!(world.scenario.shop.requests(), seen);
}
