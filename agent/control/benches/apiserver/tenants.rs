//! Tenants with rights in their own namespaces only, beside as many others whose clients ask on two
//! nodes all the time: all of them valid, and half of them hostile.

use std::time::Duration;

use crate::Bench;
use crate::agent::Agent;
use crate::fixture::Fixture;
use crate::siege::{Intent, Node, Outcome, Siege, Size};

const WHOLE: Size =
    Size { good: 50, hostile: 50, children: 257, refused: 24, lasting: Duration::from_secs(120) };
const QUICK: Size = Size { good: 5, hostile: 5, children: 30, refused: 12, lasting: Duration::from_secs(10) };
/// Memory that hostile objects may take, of what as many valid ones take.
const ALLOWED: f64 = 1.2;

/// The outcome of one siege and its cost to each agent, the first of which leads.
struct Round {
    outcome: Outcome,
    /// Seconds of processor time.
    cpu: Vec<f64>,
    /// Lines of the log at WARN and above.
    warnings: Vec<usize>,
}

pub(crate) async fn measure(bench: &Bench) {
    let size = bench.choose(WHOLE, QUICK);
    println!("{} good tenants and {} others; an agent on each of two nodes.\n", size.good, size.hostile);
    let valid = round(bench, Intent::Valid, size).await;
    let hostile = round(bench, Intent::Hostile, size).await;
    report(&valid, &hostile);
    let rounds = [(Intent::Valid, &valid), (Intent::Hostile, &hostile)];
    for (intent, round) in rounds {
        assert!(round.is_unharmed(intent), "the good tenants were harmed");
    }
    let ratio = |of: fn(&Outcome) -> &Vec<f64>| {
        let both = of(&hostile.outcome).iter().zip(of(&valid.outcome));
        both.map(|(hostile, valid)| hostile / valid).fold(0.0, f64::max)
    };
    let [rest, most] = [ratio(|it| &it.settled), ratio(|it| &it.peak)];
    println!(
        "\nMemory, hostile to valid, of the agent that fares worse: **{rest:.2}** at rest, **{most:.2}** at most."
    );
    assert!(rest <= ALLOWED && most <= ALLOWED, "hostile objects cost more memory than valid ones");
}

async fn round(bench: &Bench, intent: Intent, size: Size) -> Round {
    let fixture = Fixture::new().await;
    let start = |node| {
        let mut agent = Agent::start_on(node, bench, &fixture);
        agent.await_ready();
        agent
    };
    let agents = Node::ALL.map(start);
    let siege = Siege::prepare(fixture, size).await;
    let outcome = siege.lay(intent, || agents.iter().map(Agent::resident).collect()).await;
    let cpu = agents.iter().map(Agent::cpu).collect();
    let warnings = agents.iter().map(Agent::warnings).collect();
    agents.into_iter().for_each(Agent::stop);
    siege.remove().await;
    Round { outcome, cpu, warnings }
}

impl Round {
    fn is_unharmed(&self, intent: Intent) -> bool {
        let Outcome { seen, changed, leaks, .. } = &self.outcome;
        for line in seen.failures.iter().chain(changed).chain(leaks) {
            eprintln!("{intent:?}: {line}");
        }
        seen.failed == 0 && changed.is_empty() && leaks.is_empty()
    }
}

fn report(valid: &Round, hostile: &Round) {
    let row =
        |what: &str, of: &dyn Fn(&Round) -> String| println!("| {what} | {} | {} |", of(valid), of(hostile));
    println!("| the others are | valid | hostile |");
    println!("|---|---|---|");
    row("writes of the others", &|it| it.outcome.writes.taken.to_string());
    row("refused by the API server: no right", &|it| it.outcome.writes.forbidden.to_string());
    row("refused by the API server: invalid", &|it| it.outcome.writes.invalid.to_string());
    row("requests of the good", &|it| it.outcome.seen.answered.to_string());
    row("of these failed", &|it| format!("**{}**", it.outcome.seen.failed));
    row("objects of the good with another status", &|it| format!("**{}**", it.outcome.changed.len()));
    row("answers from what is no pod", &|it| format!("**{}**", it.outcome.leaks.len()));
    row("RSS at rest, MB, of each agent", &|it| listed(&it.outcome.settled));
    row("most, MB", &|it| listed(&it.outcome.peak));
    row("CPU s", &|it| listed(&it.cpu));
    row("warnings in the log", &|it| format!("{:?}", it.warnings).replace(['[', ']'], ""));
    let refused = hostile.outcome.refused.iter();
    let refused: Vec<_> = refused.map(|(reason, objects)| format!("{reason} {objects}")).collect();
    println!("\nHostile objects that are refused, by reason: {}.", refused.join(", "));
}

fn listed(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ")
}
