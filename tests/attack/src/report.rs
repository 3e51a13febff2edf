//! What became of each attack: a row each, and how many were let through.

/// The outcomes so far.
#[derive(Default)]
pub(crate) struct Report(Vec<Row>);

struct Row {
    attack: String,
    happened: String,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
}

// === impl Verdict ===

impl From<bool> for Verdict {
    fn from(holds: bool) -> Self {
        if holds { Self::Passed } else { Self::Failed }
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn add(
        &mut self,
        attack: impl Into<String>,
        happened: impl Into<String>,
        verdict: impl Into<Verdict>,
    ) {
        let (attack, happened, verdict) = (attack.into(), happened.into(), verdict.into());
        self.0.push(Row { attack, happened, verdict });
    }

    pub(crate) fn failed(&self) -> usize {
        self.0.iter().filter(|row| row.verdict == Verdict::Failed).count()
    }

    pub(crate) fn print(&self) {
        let width = |text: fn(&Row) -> &String| self.0.iter().map(|row| text(row).len()).max().unwrap_or(0);
        let (first, second) = (width(|row| &row.attack), width(|row| &row.happened));
        println!("{:first$}  {:second$}  VERDICT", "ATTACK", "WHAT HAPPENED");
        for Row { attack, happened, verdict } in &self.0 {
            let verdict = match verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "FAILED",
            };
            println!("{attack:first$}  {happened:second$}  {verdict}");
        }
        println!("{} passed, {} failed", self.0.len() - self.failed(), self.failed());
    }
}
