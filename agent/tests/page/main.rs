//! The page in a browser, against a running agent: by `portcullis ui`, and by the admin port. With
//! `PORTCULLIS_SCREENSHOTS=DIR` it leaves pictures there, which are those of `docs/page.md`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]
#![expect(clippy::expect_used, reason = "a missing browser should say how it is had")]

mod browser;
#[expect(dead_code, reason = "for the agent's traffic")]
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::{Value, json};
use support::{Agent, eventually};

/// `portcullis ui`, which ends with its value.
struct Ui {
    child: Child,
    address: String,
}

impl Ui {
    fn start(agent: &Agent) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["ui", "--admin-socket"]).arg(agent.dir.path().join("admin.sock"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(options: &[&str], manifests: &[(&'static str, String)]) -> Agent {
    let manifests: Vec<_> = manifests.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let agent = Agent::start_unready_with(options, &manifests);
    let deadline = Instant::now() + Duration::from_secs(120);
    while agent.admin("/readyz").is_none_or(|answer| answer.status != 200) {
        assert!(Instant::now() < deadline, "the agent is not ready: {}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    agent
}

/// Pictures that the documents show.
fn picture(browser: &mut Browser, name: &str, selector: &str) {
    if let Some(directory) = std::env::var_os("PORTCULLIS_SCREENSHOTS") {
        let file = PathBuf::from(directory).join(name);
        fs::write(&file, browser.picture(selector))
            .expect("the directory of PORTCULLIS_SCREENSHOTS is there");
    }
}

/// The node of the tree of this kind whose name begins so.
fn node(kind: &str, name: &str) -> String {
    format!(
        "[...document.querySelectorAll('[role=treeitem]')].find(it => it.getAttribute('aria-label').startsWith({:?}))",
        format!("{kind} {name}")
    )
}

fn unfold(browser: &mut Browser, kind: &str, name: &str) {
    let item = node(kind, name);
    browser.until(&item);
    browser.value(&format!(
        "(() => {{ const it = {item}; if (it.getAttribute('aria-expanded') === 'false') it.querySelector('.row').click(); }})()"
    ));
    browser.until(&format!("{item}?.getAttribute('aria-expanded') === 'true'"));
}

fn explain(browser: &mut Browser, url: &str, headers: &str) {
    browser.value(&format!(
        "(() => {{ document.getElementById('url').value = {url:?}; document.getElementById('headers').value = {headers:?}; \
         document.getElementById('answer').replaceChildren(); document.getElementById('question').requestSubmit(); }})()"
    ));
    browser.until("document.querySelector('#answer .step, #answer .error')");
}

#[test]
fn the_page_shows_what_is_wrong_and_what_is_served() {
    let agent = start(&[], &world::shop());
    let ui = Ui::start(&agent);
    let mut browser = Browser::start();
    browser.open(&ui.address);
    // Without the token, once the answer to it has led on.
    browser.until("location.pathname + location.search === '/'");
    browser.until("document.querySelectorAll('.problem').length > 3");
    browser.until("document.getElementById('ready').textContent.startsWith('ready')");

    let problems = browser.text("#problems");
    for text in
        ["HTTPRoute shop/lost", "BackendNotFound", "create it, or correct the reference", "shop/asleep"]
    {
        assert!(problems.contains(text), "{text}: {problems}");
    }
    assert!(problems.contains("expires in 9 days"), "{problems}");
    browser.until("document.getElementById('certificates').innerText.includes('*.example')");
    browser.until("document.getElementById('node').innerText.includes('user space (HTTP)')");

    unfold(&mut browser, "gateway", "infra/web");
    unfold(&mut browser, "listener", "HTTP 8080 Gateway infra/web listener http");
    unfold(&mut browser, "host", "shop.example");
    unfold(&mut browser, "rule", "PathPrefix /cart");
    unfold(&mut browser, "backend", "shop/cart:80");
    browser.until(&node("endpoint", "127.0.0.1:"));

    let numbers =
        |selector: &str| format!("parseFloat({selector}?.querySelector('.numbers').children[0].textContent)");
    let listener = node("listener", "HTTP 8080 Gateway infra/web listener http");
    let deadline = Instant::now() + Duration::from_secs(90);
    while browser.value(&format!("{} > 0", numbers(&listener))) != json!(true) {
        for path in ["/cart", "/", "/cart/a"] {
            assert_eq!(agent.http("shop.example", path).unwrap().status, 200);
        }
        agent.http("lost.example", "/").unwrap();
        assert!(Instant::now() < deadline, "no rate: {}", browser.text("#tree"));
    }
    browser.until(&format!("{} > 0", numbers(&node("backend", "shop/cart:80"))));
    picture(&mut browser, "problems.png", "#problems");
    picture(&mut browser, "certificates.png", "#certificates");
    picture(&mut browser, "node.png", "#node");

    // The same rule as the command says.
    explain(&mut browser, "http://shop.example:8080/cart/7", "");
    browser.until(&format!("{}?.classList.contains('on-path')", node("backend", "shop/cart:80")));
    let told = agent.command(&["explain", "http://shop.example:8080/cart/7", "-o", "json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    let of_command = told["lines"].as_array().unwrap().iter().find(|line| line["subject"] == "rule").unwrap();
    let path = browser.value(
        "[...document.querySelectorAll('.on-path')].map(it => it.portcullis.data.rule).filter(Boolean)",
    );
    assert!(path.as_array().unwrap().contains(&of_command["at"]["rule"]), "{path} {of_command}");
    assert!(browser.text("#answer").contains(of_command["text"].as_str().unwrap()));
    let beside = format!("{}?.querySelector('.because')?.textContent", node("rule", "POST PathPrefix /cart"));
    browser.until(&format!("{beside} === 'the method must be POST'"));
    browser.value("document.activeElement.blur()");
    picture(&mut browser, "explain.png", "#explain");
    picture(&mut browser, "tree.png", "#traffic");

    // The next request, as it comes.
    browser.value("(() => { document.getElementById('url').value = 'http://shop.example:8080/cart/8'; document.getElementById('watch').click(); })()");
    browser.until("document.getElementById('watched').textContent.includes('waiting up to')");
    let deadline = Instant::now() + Duration::from_secs(90);
    while browser.value("document.querySelectorAll('#watched .step').length > 5") != json!(true) {
        assert_eq!(agent.http("shop.example", "/cart/8").unwrap().status, 200);
        assert!(Instant::now() < deadline, "nothing is seen: {}", browser.text("#watched"));
    }
    let watched = browser.text("#watched");
    for text in [
        "GET shop.example/cart/8",
        "by its match PathPrefix /cart",
        // One in ten requests goes to another backend.
        "by the backend shop/",
        "all of it took",
    ] {
        assert!(watched.contains(text), "{text}: {watched}");
    }
    picture(&mut browser, "watch.png", "#watched");

    explain(&mut browser, "nonsense", "");
    assert!(browser.text("#answer").contains("is no URL"));
    explain(&mut browser, "http://shop.example:9/", "");
    assert!(browser.text("#answer").contains("nothing answers"));
    // But for the question that makes no sense.
    let complaints = browser.complaints();
    let others = complaints.iter().filter(|it| !it.to_string().contains("nonsense"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&Value>::new());
}

#[test]
fn names_of_tenants_are_text_whatever_is_in_them() {
    let agent = start(&["--admin-port", "0"], &world::shop());
    let port = agent.logged("admin endpoints on http://127.0.0.1:");
    let mut browser = Browser::start();
    browser.dark();
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.until("document.querySelectorAll('.problem').length > 3");
    browser.value("(() => { document.getElementById('filter').value = 'x-hostile'; document.getElementById('filter').dispatchEvent(new Event('input')); })()");
    browser.until(&node("rule", "PathPrefix /hostile"));
    assert!(browser.text("#tree").contains(world::HOSTILE));
    assert!(browser.text("#problems").contains("<img src=x"), "{}", browser.text("#problems"));
    explain(&mut browser, "http://hostile.example:8080/hostile", &format!("x-hostile: {}", world::HOSTILE));
    browser.until(&format!("{}?.classList.contains('on-path')", node("rule", "PathPrefix /hostile")));
    assert!(browser.text("#answer").contains(world::HOSTILE));
    assert_eq!(browser.value("typeof hacked"), json!("undefined"));
    assert_eq!(browser.value("document.querySelectorAll('img, main script').length"), json!(0));
    assert_eq!(browser.complaints(), Vec::<Value>::new());
    // The browser itself takes no string for markup.
    let refused =
        "(() => { try { document.body.innerHTML = '<p>'; return false; } catch { return true; } })()";
    assert_eq!(browser.value(refused), json!(true));

    // By the keyboard alone.
    browser.value("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()");
    browser.key("ArrowLeft");
    browser.key("ArrowRight");
    browser.key("ArrowRight");
    let focused = browser.value("document.activeElement.getAttribute('aria-label')");
    assert!(focused.as_str().unwrap().starts_with("listener "), "{focused}");
    picture(&mut browser, "dark.png", "#traffic");
}

#[test]
fn ten_thousand_routes_are_found_at_once() {
    let agent = start(&["--admin-port", "0"], &world::many(10_000));
    let port = agent.logged("admin endpoints on http://127.0.0.1:");
    eventually("all routes are served", || {
        let size = agent.admin("/api/v1/overview").map(|answer| answer.body).unwrap_or_default();
        serde_json::from_str::<Value>(&size).is_ok_and(|size| size["size"]["rules"] == 10_000)
    });
    let mut browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.until("performance.getEntriesByName('tree').length");
    let tree = browser.value("performance.getEntriesByName('tree')[0].startTime").as_f64().unwrap();
    browser.until("document.getElementById('size').textContent.includes('10,000 rules')");
    browser.until("parseInt(document.getElementById('problems-count').textContent) >= 100");
    let listed = browser.value("document.querySelectorAll('.problem').length");
    assert_eq!(listed, json!(20), "the rest of them comes when it is asked for");
    assert!(browser.text("#problems").contains("HTTPRoute shop/route-00000"));
    picture(&mut browser, "problems-10000.png", "#problems");
    let listener = "HTTP 8080 Gateway infra/web listener http";
    unfold(&mut browser, "listener", listener);
    browser.until(&node("host", "host-00000.example"));
    let drawn = browser.value("document.querySelectorAll('[role=treeitem]').length");
    assert!(drawn.as_u64().unwrap() < 200, "{drawn} nodes at once");
    let begun = Instant::now();
    browser.value("(() => { document.getElementById('filter').value = 'host-0777 example'; document.getElementById('filter').dispatchEvent(new Event('input')); })()");
    browser.until("document.getElementById('filter-count').textContent.startsWith('10 rules')");
    let filtered = begun.elapsed();
    picture(&mut browser, "tree-10000.png", "#traffic");
    let begun = Instant::now();
    explain(&mut browser, "http://host-09876.example:8080/", "");
    browser.until(&format!("{}?.classList.contains('on-path')", node("host", "host-09876.example")));
    let explained = begun.elapsed();
    picture(&mut browser, "explain-10000.png", "#explain");
    println!(
        "10,000 routes: tree after {tree:.0} ms, filter {filtered:?}, explained on the tree {explained:?}"
    );
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}
