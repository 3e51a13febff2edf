use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;

/// Answers what is scripted for each question, then nothing more.
#[derive(Default)]
struct Scripted {
    answers: Mutex<VecDeque<Result<Found, NotFound>>>,
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Lookup for Scripted {
    async fn look_up(&self, _: &str) -> Result<Found, NotFound> {
        self.asked.lock().unwrap().push(Instant::now());
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

fn found(address: &str, seconds: u64) -> Result<Found, NotFound> {
    Ok(Found { addresses: [address.parse().unwrap()].into(), valid: Duration::from_secs(seconds) })
}

fn unanswered() -> Result<Found, NotFound> {
    Err(NotFound::NoAnswer("time-out".to_owned()))
}

/// The addresses and failures that are known of one name after each other, and the seconds at which
/// it was looked up.
async fn course(answers: Vec<Result<Found, NotFound>>) -> (Vec<(usize, bool)>, Vec<u64>) {
    let scripted = Scripted { answers: Mutex::new(answers.into()), ..Scripted::default() };
    let asked = scripted.asked.clone();
    let (begin, left) = (Instant::now(), scripted.answers.lock().unwrap().len());
    let mut names = Names::looked_up_by(scripted);
    names.want(["a.example".into()].into());
    let mut known = Vec::new();
    while asked.lock().unwrap().len() <= left {
        let changed = tokio::time::timeout(Duration::from_secs(400), names.answers.changed()).await;
        if changed.is_ok() {
            let answers = names.answers.borrow_and_update();
            let answer = &answers["a.example"];
            known.push((answer.addresses.len(), answer.failure.is_some()));
        }
    }
    let seconds = asked.lock().unwrap().iter().map(|at| at.duration_since(begin).as_secs()).collect();
    (known, seconds)
}

#[tokio::test(start_paused = true)]
async fn answers_live_as_long_as_they_say_within_bounds() {
    let answers = vec![found("192.0.2.1", 0), found("192.0.2.2", 60), found("192.0.2.3", 86_400)];
    assert_eq!(course(answers).await.1, [0, 5, 65, 365]);
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_outlives_the_servers_for_a_while() {
    let answers = [vec![found("192.0.2.1", 60)], vec![unanswered(); 30]].concat();
    let (known, asked) = course(answers).await;
    assert_eq!(known, [(1, false), (1, true), (0, true)]);
    assert_eq!(asked[1..7], [60, 61, 63, 67, 75, 91]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_gone_has_no_addresses() {
    let gone = Err(NotFound::NoAddress("NXDOMAIN".to_owned()));
    let (known, _) = course(vec![found("192.0.2.1", 5), gone, found("192.0.2.2", 5)]).await;
    assert_eq!(known, [(1, false), (0, true), (1, false)]);
}

/// The names of one tenant are not looked up in vain while those of another wait: such a name has
/// its addresses soon, and is looked up again when they expire.
#[tokio::test(start_paused = true)]
async fn names_without_an_answer_keep_no_other_waiting() {
    #[derive(Clone, Default)]
    struct Deaf(Arc<Mutex<Vec<Instant>>>);
    impl Lookup for Deaf {
        async fn look_up(&self, name: &str) -> Result<Found, NotFound> {
            if name != "heard.example" {
                tokio::time::sleep(Duration::from_secs(6)).await;
                return unanswered();
            }
            self.0.lock().unwrap().push(Instant::now());
            found("192.0.2.1", 5)
        }
    }
    let (deaf, begin) = (Deaf::default(), Instant::now());
    let names = Names::looked_up_by(deaf.clone());
    let unheard = (0..AT_ONCE * 4).map(|at| Arc::from(format!("a{at}.example")));
    names.want(unheard.chain([Arc::from("heard.example")]).collect());
    tokio::time::sleep(Duration::from_secs(120)).await;
    let asked: Vec<_> = deaf.0.lock().unwrap().iter().map(|at| at.duration_since(begin).as_secs()).collect();
    assert_eq!(asked, Vec::from_iter((24..120).step_by(5)));
}

/// An answer is told once, however often it is found out again.
#[tokio::test(start_paused = true)]
async fn only_other_answers_are_told() {
    let answers = vec![found("192.0.2.1", 5), found("192.0.2.1", 60), found("192.0.2.2", 5)];
    let (known, asked) = course(answers).await;
    assert_eq!((known, asked), (vec![(1, false); 2], vec![0, 5, 65, 70]));
}
