//! Tenants with rights in their own namespaces only, beside as many others whose clients ask all
//! the time: all of them valid, and half of them hostile.

use std::time::Duration;

use crate::Bench;
use crate::agent::Agent;
use crate::fixture::Fixture;
use crate::siege::{Intent, Outcome, Siege, Size};

const WHOLE: Size =
    Size { good: 50, hostile: 50, children: 257, refused: 24, lasting: Duration::from_secs(120) };
const QUICK: Size = Size { good: 5, hostile: 5, children: 30, refused: 12, lasting: Duration::from_secs(10) };
/// Memory that hostile objects may take, of what as many valid ones take.
const ALLOWED: f64 = 1.2;

pub(crate) async fn measure(bench: &Bench) {
    let size = bench.choose(WHOLE, QUICK);
    println!("{} good tenants and {} others.\n", size.good, size.hostile);
    println!(
        "| the others are | writes | refused by the API server: no right, invalid | requests of the good | failed | objects of the good with another status | answers from what is no pod | RSS at rest, MB | most, MB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let valid = round(bench, Intent::Valid, size).await;
    let hostile = round(bench, Intent::Hostile, size).await;
    let ratio = |of: fn(&Outcome) -> f64| of(&hostile) / of(&valid);
    let [rest, most] = [ratio(|it| it.settled), ratio(|it| it.peak)];
    let refused: Vec<_> =
        hostile.refused.iter().map(|(reason, objects)| format!("{reason} {objects}")).collect();
    println!("\nHostile objects that are refused, by reason: {}.", refused.join(", "));
    println!("\nMemory, hostile to valid: **{rest:.2}** at rest, **{most:.2}** at most.");
    assert!(rest <= ALLOWED && most <= ALLOWED, "hostile objects cost more memory than valid ones");
}

async fn round(bench: &Bench, intent: Intent, size: Size) -> Outcome {
    let fixture = Fixture::new().await;
    let agent = Agent::start(bench, &fixture);
    let siege = Siege::prepare(fixture, size).await;
    let outcome = siege.lay(intent, || agent.resident()).await;
    agent.stop();
    siege.remove().await;
    report(intent, &outcome);
    outcome
}

fn report(intent: Intent, outcome: &Outcome) {
    let Outcome { seen, writes, changed, leaks, peak, settled, .. } = outcome;
    for line in seen.failures.iter().chain(changed).chain(leaks) {
        eprintln!("{intent:?}: {line}");
    }
    println!(
        "| {intent:?} | {} | {}, {} | {} | **{}** | **{}** | **{}** | {settled:.0} | {peak:.0} |",
        writes.taken,
        writes.forbidden,
        writes.invalid,
        seen.answered,
        seen.failed,
        changed.len(),
        leaks.len()
    );
    let is_unharmed = seen.failed == 0 && changed.is_empty() && leaks.is_empty();
    assert!(is_unharmed, "the good tenants were harmed");
}
