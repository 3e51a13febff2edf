//! The same connections to the agent's own code for HTTP/1 and to the HTTP library: the backend has
//! to get the same requests, the client the same responses, and the connection the same end. A
//! strict reader says what none of them may do.
//!
//! The cases of `corpus.txt` are played always, and some at random. More of those are played for
//! `PORTCULLIS_FUZZ_SECONDS`, from the seed `PORTCULLIS_FUZZ_SEED` on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod case;
mod generate;
mod reference;
mod stage;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use case::Case;
use portcullis_proxy::Http1;
use reference::{Message, Reading};
use stage::{End, Outcome, Stage, skip_empty_lines};

const CORPUS: &str = include_str!("corpus.txt");
/// Cases at random that are played always.
const FEW: u64 = 600;
/// Cases that are played at the same time.
const LANES: usize = 8;
/// The time for which nothing happens before a case is over; and how long that is looked at again,
/// when it seems that something is wrong.
const SOON: Duration = Duration::from_millis(50);
const FOR_CERTAIN: Duration = Duration::from_secs(2);

/// Connections that each of them has reset. What a client gets before that is chance, so it is no
/// difference; but neither may do it much more often.
static RESETS_OWN: AtomicU64 = AtomicU64::new(0);
static RESETS_LIBRARY: AtomicU64 = AtomicU64::new(0);

struct Both {
    own: Stage,
    library: Stage,
}

// === impl Both ===

impl Both {
    async fn new() -> Self {
        Self { own: Stage::new(Http1::Own).await, library: Stage::new(Http1::Library).await }
    }

    /// Plays the case in both ways. What is wrong has to be so for certain: the machine may have
    /// been busy with something else.
    async fn check(&self, case: &Case) -> Result<(), String> {
        let mut last = self.play(case, SOON).await;
        for _ in 0..2 {
            if last.is_ok() {
                return Ok(());
            }
            last = self.play(case, FOR_CERTAIN).await;
        }
        last
    }

    async fn play(&self, case: &Case, silence: Duration) -> Result<(), String> {
        let (own, library) = tokio::join!(self.own.play(case, silence), self.library.play(case, silence));
        for (outcome, resets) in [(&own, &RESETS_OWN), (&library, &RESETS_LIBRARY)] {
            resets.fetch_add((outcome.end == End::Reset).into(), Relaxed);
        }
        let why = [("own", &own), ("library", &library)]
            .into_iter()
            .find_map(|(name, outcome)| smuggled(case, outcome).map(|why| format!("{name}: {why}")));
        match why {
            Some(why) => Err(why),
            None if own == library => Ok(()),
            None if own.is_cut_off(&library) || library.is_cut_off(&own) => Ok(()),
            None if own.is_no_http(&library) => Ok(()),
            None if own.breaks_off_later(&library) || library.breaks_off_later(&own) => Ok(()),
            None => Err("they differ".into()),
        }
        .map_err(|why| format!("{why}\n{}own: {own:#?}\nlibrary: {library:#?}", case.to_text()))
    }
}

/// The reason why an outcome is none that may be, by whichever code.
fn smuggled(case: &Case, outcome: &Outcome) -> Option<String> {
    if let Some(bytes) = outcome.malformed.first() {
        return Some(format!("malformed bytes: {}", bytes.escape_ascii()));
    }
    let mut sent = sent(&case.client).into_iter();
    for request in &outcome.requests {
        // Some of them the gateway answers by itself; none is the backend's that was not sent.
        if !sent.any(|sent| is_same(&sent, request)) && !is_again(request, &outcome.requests) {
            return Some(format!("the backend got a request that was not sent: {request:?}"));
        }
    }
    None
}

/// The requests that a strict reader takes the client's bytes for, as far as it takes them at all.
/// A request that is ambiguous is none, and neither is anything behind it.
fn sent(mut client: &[u8]) -> Vec<Message> {
    let mut sent = Vec::new();
    loop {
        client = skip_empty_lines(client);
        match reference::request(client) {
            Reading::Message(message, size) => {
                client = &client[size..];
                sent.push(message);
            }
            Reading::Incomplete | Reading::Malformed => return sent,
        }
    }
}

/// True if the backend's request may be what became of the client's.
fn is_same(sent: &Message, got: &Message) -> bool {
    let method = |message: &Message| message.start.split(' ').next().unwrap_or_default().to_owned();
    method(sent) == method(got) && sent.body == got.body
}

/// True for a request that came before, and was sent again because its connection was closed.
fn is_again(request: &Message, requests: &[Message]) -> bool {
    requests.iter().filter(|other| *other == request).count() > 1
}

fn run(lane: impl AsyncFn(usize) + Send + Sync + 'static) {
    let lane = Arc::new(lane);
    let threads: Vec<_> = (0..LANES)
        .map(|number| {
            let lane = lane.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(lane(number));
            })
        })
        .collect();
    let ended = threads.into_iter().map(std::thread::JoinHandle::join).collect::<Vec<_>>();
    assert!(ended.iter().all(Result::is_ok), "a lane failed: see above");
}

#[test]
fn cases_that_are_known_end_in_the_same_way() {
    run(async |lane| {
        let both = Both::new().await;
        let cases = Case::parse(CORPUS);
        assert!(!cases.is_empty());
        for case in cases.iter().skip(lane).step_by(LANES) {
            if let Err(why) = both.check(case).await {
                panic!("{why}");
            }
        }
    });
}

#[tokio::test]
async fn a_connection_comes_back_from_the_library() {
    let fine = "GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let unusual = "POST /a HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi";
    let last = "GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    // More than the library reads at once.
    let long = format!("GET /a HTTP/1.1\r\nHost: a.test\r\nX-Long: {}\r\n\r\n", "x".repeat(400));
    let mixed = [fine, unusual, fine, unusual, unusual, fine, last].concat();
    let many = [unusual, &long.repeat(40), unusual, last].concat();
    for (client, unusual) in [(mixed, 3), (many, 2)] {
        let all = client.matches(" HTTP/1.1\r\n").count();
        for (http1, expected) in [(Http1::Own, unusual), (Http1::Library, all as u64)] {
            for piece in [7, 40, usize::MAX] {
                let stage = Stage::new(http1).await;
                let case = Case { client: client.clone().into_bytes(), piece, answers: Vec::new() };
                let outcome = stage.play(&case, FOR_CERTAIN).await;
                assert_eq!((outcome.requests.len(), outcome.end), (all, stage::End::Closed), "{outcome:#?}");
                assert_eq!(stage.by_library().await, expected, "{http1:?} in pieces of {piece}");
            }
        }
    }
}

#[test]
fn cases_at_random_end_in_the_same_way() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("PORTCULLIS_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number("PORTCULLIS_FUZZ_SEED").unwrap_or_default();
    let (begun, played, wrong) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = move |played: u64| seconds.map_or(played < FEW, |seconds| begun.elapsed() < seconds);
    run(async move |_| {
        let both = Both::new().await;
        loop {
            let number = played.fetch_add(1, Relaxed);
            if !goes_on(number) {
                break;
            }
            if let Err(why) = both.check(&generate::case(first + number)).await {
                println!("case {}: {why}\n", first + number);
                // A long search goes on: there may be more.
                let is_enough = seconds.is_none() || wrong.fetch_add(1, Relaxed) >= 20;
                assert!(!is_enough, "case {}", first + number);
            }
            if number % 10_000 == 9_999 {
                println!("{} cases in {:?}", number + 1, begun.elapsed());
            }
        }
        assert_eq!(wrong.load(Relaxed), 0, "cases of {}", played.load(Relaxed));
    });
    let [own, library] = [&RESETS_OWN, &RESETS_LIBRARY].map(|resets| resets.load(Relaxed));
    assert!(
        own <= library * 2 + 20 && library <= own * 2 + 20,
        "resets: {own} own, {library} of the library"
    );
    println!("resets: {own} own, {library} of the library");
}
