//! The outcome of each attack: a row each, and how many were let through.

/// The outcomes so far.
#[derive(Default)]
pub(crate) struct Report(Vec<Row>);

struct Row {
    attack: String,
    happened: String,
    verdict: Option<Passed>,
}

/// The attack came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed;

// === impl Report ===

impl Report {
    /// Without a verdict, the attack was let through.
    pub(crate) fn add(
        &mut self,
        attack: impl Into<String>,
        happened: impl Into<String>,
        verdict: Option<Passed>,
    ) {
        self.0.push(Row { attack: attack.into(), happened: happened.into(), verdict });
    }

    pub(crate) fn failed(&self) -> usize {
        self.0.iter().filter(|row| row.verdict.is_none()).count()
    }

    pub(crate) fn print(&self) {
        let width = |text: fn(&Row) -> &String| self.0.iter().map(|row| text(row).len()).max().unwrap_or(0);
        let (first, second) = (width(|row| &row.attack), width(|row| &row.happened));
        println!("{:first$}  {:second$}  VERDICT", "ATTACK", "WHAT HAPPENED");
        for Row { attack, happened, verdict } in &self.0 {
            let verdict = match verdict {
                Some(Passed) => "passed",
                None => "FAILED",
            };
            println!("{attack:first$}  {happened:second$}  {verdict}");
        }
        println!("{} passed, {} failed", self.0.len() - self.failed(), self.failed());
    }
}
