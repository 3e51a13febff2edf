//! Counts of connections: those that reached their backend, another's, or none.

/// The most problems that are kept to be printed.
const KEPT: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) connections: usize,
    /// Those that reached what was another name's.
    pub(super) wrong: usize,
    pub(super) failed: usize,
    pub(super) problems: Vec<String>,
}

impl Tally {
    /// Of an answer, or of the error in its place: an answer is the label of the name that it is
    /// for.
    pub(super) fn note(&mut self, host: &str, answer: Result<&str, &dyn std::fmt::Display>) {
        self.connections += 1;
        let problem = match answer {
            Ok(label) if host.split('.').next() == Some(label) => return,
            Ok(label) if is_label(label) => {
                self.wrong += 1;
                format!("{host} reached {label}")
            }
            Ok(answer) => {
                self.failed += 1;
                format!("{host} got {answer:?}")
            }
            Err(error) => {
                self.failed += 1;
                format!("{host}: {error:#}")
            }
        };
        if self.problems.len() < KEPT {
            self.problems.push(problem);
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.problems.extend(other.problems);
        self.problems.truncate(KEPT);
    }

    /// Three columns.
    pub(super) fn row(&self) -> String {
        format!("| {} | **{}** | {}", self.connections, self.wrong, self.failed)
    }
}

/// A letter and digits.
fn is_label(answer: &str) -> bool {
    let mut characters = answer.chars();
    characters.next().is_some_and(char::is_alphabetic)
        && answer.len() > 1
        && characters.all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_names_answer_is_wrong_and_all_else_failed() {
        let mut tally = Tally::default();
        tally.note("p0001.example.com", Ok("p0001"));
        tally.note("p0001.example.com", Ok("t0001"));
        tally.note("p0001.example.com", Ok("p0002"));
        tally.note("p0001.example.com", Ok(""));
        tally.note("p0001.example.com", Ok("no upstream"));
        tally.note("p0001.example.com", Err(&"reset"));
        assert_eq!((tally.connections, tally.wrong, tally.failed), (6, 2, 3));
    }
}
