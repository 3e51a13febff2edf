//! Files and commands of a page. A block whose first line is a comment with the name of a file
//! (`# conf/gateway.yaml`) is that file. A block of language `console` has commands after `$ `,
//! each with the output that a reader sees: `…` stands for any text, and alone in a line for any
//! lines. All other blocks are for reading.

use anyhow::{Context, Result, ensure};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    File { name: String, text: String },
    Command(Command),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// Number of its line on the page.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Lines of the output as shown.
    pub(crate) output: Vec<String>,
}

const ANYTHING: &str = "…";

pub(crate) fn steps(text: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let mut block = Vec::new();
        loop {
            let (line, number) =
                lines.next().with_context(|| format!("line {number}: a block without end"))?;
            if line == "```" {
                break;
            }
            block.push((line, number));
        }
        if language == "console" {
            steps.extend(commands(&block)?.into_iter().map(Step::Command));
        } else if let Some(name) = file_name(&block) {
            let text = block.iter().flat_map(|(line, _)| [line, "\n"]).collect();
            steps.push(Step::File { name: name.to_owned(), text });
        }
    }
    Ok(steps)
}

/// A relative path with an extension.
fn file_name<'a>(block: &[(&'a str, usize)]) -> Option<&'a str> {
    let name = block.first()?.0.strip_prefix("# ")?;
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    (name.chars().all(is_path) && name.contains('.') && !name.starts_with(['.', '/'])).then_some(name)
}

fn commands(block: &[(&str, usize)]) -> Result<Vec<Command>> {
    let mut commands: Vec<Command> = Vec::new();
    let mut lines = block.iter();
    while let Some((line, number)) = lines.next() {
        let Some(begin) = line.strip_prefix("$ ") else {
            let command = commands.last_mut().with_context(|| format!("line {number}: output of nothing"))?;
            command.output.push((*line).to_owned());
            continue;
        };
        let mut text = begin.to_owned();
        let end = begin.split_once("<<").map(|(_, word)| word.trim_matches('\''));
        while text.ends_with('\\') || end.is_some_and(|end| text.lines().last() != Some(end)) {
            let (line, _) = lines.next().with_context(|| format!("line {number}: the command has no end"))?;
            text = format!("{text}\n{line}");
        }
        commands.push(Command { line: *number, text, output: Vec::new() });
    }
    ensure!(!commands.is_empty(), "a block without commands");
    Ok(commands)
}

/// True if an output is as shown. White space at the end of a line does not count.
pub(crate) fn matches(shown: &[String], output: &str) -> bool {
    let shown: Vec<_> = shown.iter().map(|line| line.trim_end()).collect();
    let output: Vec<_> = output.lines().map(str::trim_end).collect();
    lines_match(&shown, &output)
}

fn lines_match(shown: &[&str], output: &[&str]) -> bool {
    match shown.split_first() {
        None => output.is_empty(),
        Some((&ANYTHING, rest)) => (0..=output.len()).any(|skipped| lines_match(rest, &output[skipped..])),
        Some((line, rest)) => output
            .split_first()
            .is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others)),
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    let Some((begin, rest)) = shown.split_once(ANYTHING) else { return shown == line };
    let Some(line) = line.strip_prefix(begin) else { return false };
    let starts = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    starts.into_iter().any(|at| line_matches(rest, &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_commands_are_found() {
        let page = "# A\n```yaml\n# conf/a.yaml\nkind: A\n```\n```yaml\n# A comment.\n```\n\
                    ```console\n$ ls \\\n  conf\na.yaml\n…\n$ cat >b <<'END'\nx\nEND\n```\n";
        let command = |line, text: &str, output: &[&str]| {
            let output = output.iter().map(|line| (*line).to_owned()).collect();
            Step::Command(Command { line, text: text.to_owned(), output })
        };
        let file = Step::File { name: "conf/a.yaml".to_owned(), text: "# conf/a.yaml\nkind: A\n".to_owned() };
        let wanted = [
            file,
            command(10, "ls \\\n  conf", &["a.yaml", "…"]),
            command(14, "cat >b <<'END'\nx\nEND", &[]),
        ];
        assert_eq!(steps(page).unwrap(), wanted);
        assert!(steps("```console\nls\n```\n").is_err());
        assert!(steps("```console\n$ ls\n").is_err());
    }

    #[test]
    fn what_is_not_shown_may_be_anything() {
        let shown = |lines: &[&str], output: &str| {
            matches(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(), output)
        };
        assert!(shown(&["a … c"], "a b c\r\n"));
        assert!(!shown(&["a … c"], "a b d"));
        assert!(shown(&["a", "…", "d"], "a\nb\nc\nd"));
        assert!(shown(&["…", "d"], "d"));
        assert!(!shown(&["a", "…"], "b"));
        assert!(!shown(&["a"], "a\nb"));
    }
}
