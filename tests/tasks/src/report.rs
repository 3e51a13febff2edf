//! A table of checks: questions to controllers and gateway, and their outcomes.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Of a cell; an error may have whole logs in it.
const LONGEST: usize = 300;

#[derive(Default)]
pub(crate) struct Report {
    page: &'static str,
    controller: String,
    rows: Vec<Row>,
}

struct Row {
    page: &'static str,
    controller: String,
    asked: String,
    /// The fault, if the check failed.
    seen: Result<String, String>,
    took: Duration,
}

impl Report {
    /// Checks are of this page from now on, with this controller.
    pub(crate) fn begin(&mut self, page: &'static str, controller: String) {
        (self.page, self.controller) = (page, controller);
    }

    /// Tries something that the page promises; later steps need what earlier ones made.
    pub(crate) fn check(&mut self, asked: &str, look: impl FnOnce() -> Result<String>) -> Result<()> {
        let begin = Instant::now();
        let seen = look();
        let row = Row {
            page: self.page,
            controller: self.controller.clone(),
            asked: asked.to_owned(),
            seen: seen.as_ref().map(Clone::clone).map_err(|error| format!("{error:#}")),
            took: begin.elapsed(),
        };
        println!("{}", row.line());
        self.rows.push(row);
        seen.map(drop)
    }

    /// The page's checks end with this error: it is counted, unless a check has said it.
    pub(crate) fn end_early(&mut self, error: &anyhow::Error) {
        let is_said = self.rows.iter().any(|row| row.page == self.page && row.seen.is_err());
        if !is_said {
            let _ = self.check("everything ready for the first check", || anyhow::bail!("{error:#}"));
        }
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.seen.is_err()).count()
    }

    /// The table, and the counts in a line of their own.
    pub(crate) fn print(&self) {
        println!("\n| page | controller | what was asked | what was seen | | seconds |");
        println!("|---|---|---|---|---|---|");
        for row in &self.rows {
            let seconds = row.took.as_secs_f32();
            let (Ok(seen) | Err(seen)) = &row.seen;
            let (asked, seen) = (cell(&row.asked), cell(seen));
            let Row { page, controller, .. } = row;
            println!("| {page} | {controller} | {asked} | {seen} | {} | {seconds:.1} |", row.verdict());
        }
        println!("\n{} passed, {} failed", self.rows.len() - self.failed(), self.failed());
    }
}

impl Row {
    fn verdict(&self) -> &'static str {
        if self.seen.is_ok() { "ok" } else { "failed" }
    }

    /// As other test programs say it.
    fn line(&self) -> String {
        let seconds = self.took.as_secs_f32();
        match &self.seen {
            Ok(seen) => format!("ok     {}: {} ({seconds:.1} s): {seen}", self.page, self.asked),
            Err(error) => format!("FAILED {}: {} ({seconds:.1} s): {error}", self.page, self.asked),
        }
    }
}

/// In one line, and without what would end the cell.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_keeps_cells_in_their_line() {
        let mut report = Report::default();
        report.begin("a", "b v1".to_owned());
        report.check("to be there", || Ok("it is".to_owned())).unwrap();
        let error = report.check("more", || anyhow::bail!("not\nthere | here")).unwrap_err();
        report.end_early(&error);
        assert_eq!((report.rows.len(), report.failed()), (2, 1), "an error is counted once");
        report.begin("c", "d v1".to_owned());
        report.end_early(&error);
        assert_eq!((report.rows.len(), report.failed()), (3, 2));
        assert_eq!(cell("not\nthere | here"), "not there \\| here");
        assert_eq!(cell(&"ä".repeat(LONGEST + 1)).chars().count(), LONGEST + 1);
    }
}
