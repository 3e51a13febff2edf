//! Chromium without a window, spoken to by the DevTools protocol over pipes.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(90);

/// Ends with its value.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    events: VecDeque<Value>,
    _profile: TempDir,
}

impl Browser {
    /// # Panics
    /// Without Chromium: `cargo xtask setup --browser` installs it.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The protocol's pipes are descriptors 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2"#, "chromium"]);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        command.args(["--disable-dev-shm-usage", "--no-proxy-server", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let stderr = std::fs::File::create(profile.path().join("stderr")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, from) = channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser =
            Self { child, to, from, session: None, calls: 0, events: VecDeque::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub(crate) fn dark(&mut self) {
        let features = json!([{"name": "prefers-color-scheme", "value": "dark"}]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    pub(crate) fn open(&mut self, address: &str) {
        let navigated = self.call("Page.navigate", json!({ "url": address }));
        assert_eq!(navigated.get("errorText"), None, "{address}: {navigated}");
        self.until("document.readyState === 'complete'");
    }

    /// The value of an expression, or of the promise that it is.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let question = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", question);
        assert_eq!(answer.get("exceptionDetails"), None, "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().unwrap().to_owned()
    }

    /// Polls until the expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.value(&format!("Boolean({expression})")) != json!(true) {
            assert!(Instant::now() < deadline, "within {TIMEOUT:?}: {expression}\n{}", self.text("body"));
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn key(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key}));
        }
    }

    /// Picture of the element, as PNG: of as much as a window shows.
    pub(crate) fn picture(&mut self, selector: &str) -> Vec<u8> {
        self.value("scrollTo(0, 0)");
        let area = format!(
            "(() => {{ const it = document.querySelector({selector:?}).getBoundingClientRect(); return {{x: it.x + \
             scrollX, y: it.y + scrollY, width: it.width, height: Math.min(it.height, 700), scale: 1}}; }})()"
        );
        let clip = self.value(&area);
        let asked = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let picture = self.call("Page.captureScreenshot", asked);
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// Complaints of the browser: errors of scripts and of the console, and violations of
    /// the page's policy.
    pub(crate) fn complaints(&mut self) -> Vec<Value> {
        self.value("0");
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_complaint).cloned().collect()
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        let sent = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        sent.expect("Chromium runs (`cargo xtask setup --browser` installs it)");
        loop {
            let answer = self.from.recv_timeout(TIMEOUT);
            let mut answer = answer.expect("Chromium answers (`cargo xtask setup --browser` installs it)");
            if answer["id"] == json!(self.calls) {
                assert_eq!(answer.get("error"), None, "{method}: {answer}");
                return answer["result"].take();
            }
            if answer.get("method").is_some() {
                self.events.push_back(answer);
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
