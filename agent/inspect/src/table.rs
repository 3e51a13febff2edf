//! Text in columns, and behind subjects: as wide as it is for files and pipes, fitted for a
//! terminal.

use std::fmt::{self, Write};

use crate::plain::escaped;

/// Cells below a header. Every row has as many as it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// Text of one line, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Neutral,
    Good,
    Bad,
}

/// The form of text for its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Columns of the terminal, if it is read on one.
    pub width: Option<usize>,
    pub colours: Colours,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colours {
    #[default]
    None,
    Ansi,
}

/// Blanks between columns.
const GAP: usize = 2;
/// Columns are no narrower: text in them could not be read.
const NARROWEST: usize = 8;
/// Characters behind which a long word is broken.
const BREAKS: [char; 8] = ['/', ',', '=', ':', '.', '-', ';', '&'];

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

// === impl Table ===

impl Table {
    pub fn new<C: Into<Cell>>(header: &[&'static str], rows: impl IntoIterator<Item = Vec<C>>) -> Self {
        let rows = rows.into_iter().map(|row| row.into_iter().map(Into::into).collect());
        Self { header: header.to_vec(), rows: rows.collect() }
    }

    /// Columns aligned. In a terminal, what is too wide goes on below, in its column; in one that
    /// is too narrow for columns, each cell has a line of its own behind its column's name.
    pub fn text(&self, look: Look) -> String {
        let header: Vec<_> = self.header.iter().map(|name| Cell::from((*name).to_owned())).collect();
        let lines: Vec<_> = std::iter::once(&header).chain(&self.rows).collect();
        let longest = |column: usize| lines.iter().map(|line| line[column].length()).max().unwrap_or(0);
        let mut widths: Vec<_> = (0..header.len()).map(longest).collect();
        if let Some(width) = look.width
            && !fit(&mut widths, width)
        {
            return self.records(width, look.colours);
        }
        let mut text = String::new();
        for (at, line) in lines.into_iter().enumerate() {
            let cells: Vec<_> =
                line.iter().zip(&widths).map(|(cell, width)| wrap(&cell.text, *width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for below in 0..height {
                let pieces = cells.iter().map(|pieces| pieces.get(below).copied().unwrap_or_default());
                let end = cells.iter().rposition(|pieces| pieces.get(below).is_some_and(|it| !it.is_empty()));
                for (column, piece) in pieces.enumerate().take(end.map_or(0, |end| end + 1)) {
                    let style = if at == 0 { BOLD } else { line[column].tone.style() };
                    push_styled(&mut text, piece, style, look.colours);
                    if Some(column) != end {
                        let blanks = widths[column].saturating_sub(piece.chars().count()) + GAP;
                        text.extend(std::iter::repeat_n(' ', blanks));
                    }
                }
                text.push('\n');
            }
        }
        text
    }

    /// Cells without text are left out. Without rows there are the names of columns, as above
    /// columns.
    fn records(&self, width: usize, colours: Colours) -> String {
        let longest = self.header.iter().map(|name| name.chars().count()).max().unwrap_or(0) + GAP;
        let room = width.saturating_sub(longest);
        // A terminal that is narrower still wraps lines itself.
        let room = if room < NARROWEST { usize::MAX } else { room };
        let mut text = String::new();
        for name in self.header.iter().filter(|_| self.rows.is_empty()) {
            push_styled(&mut text, name, BOLD, colours);
            text.push('\n');
        }
        for (at, row) in self.rows.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            for (name, cell) in self.header.iter().zip(row).filter(|(_, cell)| !cell.text.is_empty()) {
                push_styled(&mut text, name, BOLD, colours);
                let mut indent = longest - name.chars().count();
                for piece in wrap(&cell.text, room) {
                    text.extend(std::iter::repeat_n(' ', indent));
                    push_styled(&mut text, piece, cell.tone.style(), colours);
                    text.push('\n');
                    indent = longest;
                }
            }
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Look::default()))
    }
}

fn push_styled(text: &mut String, piece: &str, style: &str, colours: Colours) {
    let _ = match colours {
        Colours::Ansi if !style.is_empty() && !piece.is_empty() => write!(text, "{style}{piece}{RESET}"),
        Colours::Ansi | Colours::None => text.write_str(piece),
    };
}

/// Narrows the widest columns until all fit; `false` if they could not be read then.
fn fit(widths: &mut [usize], width: usize) -> bool {
    let gaps = GAP * widths.len().saturating_sub(1);
    let room = width.saturating_sub(gaps);
    if widths.iter().sum::<usize>() <= room {
        return true;
    }
    if room < NARROWEST * widths.len() {
        return false;
    }
    let mut by_width: Vec<_> = (0..widths.len()).collect();
    by_width.sort_by_key(|column| widths[*column]);
    let mut left = room;
    for (at, column) in by_width.iter().enumerate() {
        let share = left / (by_width.len() - at);
        widths[*column] = widths[*column].min(share);
        left -= widths[*column];
    }
    true
}

/// A subject and text behind it, which a terminal shows from column `indent` on.
pub(crate) fn subject_line(subject: &str, text: &str, indent: usize, look: Look) -> String {
    /// Text is not wrapped in less.
    const NARROWEST: usize = 20;
    let text = escaped(text);
    let room = look.width.map(|width| width.saturating_sub(indent)).filter(|room| *room >= NARROWEST);
    let pieces = wrap(&text, room.unwrap_or(usize::MAX));
    let lines = pieces.iter().enumerate().map(|(at, piece)| {
        let subject = if at == 0 { subject } else { "" };
        let subject = format!("{:<width$}", escaped(subject), width = indent - 1);
        format!("{subject} {piece}\n")
    });
    lines.collect()
}

/// Pieces of at most so many characters, between words where that is possible; one at least.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((end, _)) = rest.char_indices().nth(width.max(1)) {
        let piece = &rest[..end];
        let blank = if rest[end..].starts_with(' ') { Some(end) } else { piece.rfind(' ') };
        let third = piece.char_indices().nth(width / 3).map_or(0, |(at, _)| at);
        let broken = piece.rfind(BREAKS).map(|at| at + 1).filter(|at| *at > third);
        let at = blank.filter(|at| *at > 0).or(broken).unwrap_or(end);
        pieces.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }
    pieces
}

// === impl Cell ===

impl Cell {
    pub fn good(text: impl Into<String>) -> Self {
        Self { tone: Tone::Good, ..Self::from(text.into()) }
    }

    pub fn bad(text: impl Into<String>) -> Self {
        Self { tone: Tone::Bad, ..Self::from(text.into()) }
    }

    fn length(&self) -> usize {
        self.text.chars().count()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text: escaped(&text).into_owned(), tone: Tone::Neutral }
    }
}

// === impl Tone ===

impl Tone {
    fn style(self) -> &'static str {
        match self {
            Self::Neutral => "",
            Self::Good => GREEN,
            Self::Bad => RED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(ToOwned::to_owned).to_vec()
    }

    fn fitted(width: usize, rows: &[[&str; 2]]) -> String {
        let table = Table::new(&["NAME", "MESSAGE"], rows.iter().map(|cells| row(*cells)));
        table.text(Look { width: Some(width), ..Look::default() })
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let table = Table::new(&["KIND", "NAME"], [row(["Gateway", "web"]), row(["ä", ""])]);
        assert_eq!(table.to_string(), "KIND     NAME\nGateway  web\nä\n");
    }

    #[test]
    fn what_is_too_wide_goes_on_below() {
        let text = fitted(30, &[["web", "the listener is not accepted"], ["b", "well"]]);
        let expected = "\
NAME  MESSAGE
web   the listener is not
      accepted
b     well
";
        assert_eq!(text, expected);
        let text = fitted(30, &[["shop/very-long-name-of-a-route", "no backend"]]);
        let expected = "\
NAME                MESSAGE
shop/very-long-     no backend
name-of-a-route
";
        assert_eq!(text, expected);
        assert_eq!(fitted(80, &[["web", "well"]]), "NAME  MESSAGE\nweb   well\n");
    }

    #[test]
    fn nothing_is_lost_and_nothing_too_wide() {
        let words = "aaa/bbbb ccccccccccccccccccccccccc, ddd ä=öööööööööööö e";
        for width in 18..80 {
            let text = fitted(width, &[["a-name-of-some-length", words], [words, "x"]]);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
            let expected = letters(words) * 2 + letters("a-name-of-some-lengthxNAMEMESSAGE");
            assert_eq!(letters(&text), expected, "{width}:\n{text}");
        }
    }

    #[test]
    fn where_columns_have_no_room_cells_have_lines() {
        let rows = [["shop/web", "the listener is not accepted"], ["blog/a", ""]];
        let expected = "\
NAME     shop/web
MESSAGE  the
         listener
         is not
         accepted

NAME     blog/a
";
        assert_eq!(fitted(17, &rows), expected);
        assert_eq!(fitted(10, &[]), "NAME\nMESSAGE\n");
        // One that is narrower still wraps lines itself.
        assert!(fitted(10, &rows).contains("MESSAGE  the listener is not accepted\n"));
    }

    #[test]
    fn colours_are_outside_of_the_widths() {
        let rows =
            [vec![Cell::good("ok"), Cell::from("a".to_owned())], vec![Cell::bad("Refused"), Cell::good("")]];
        let table = Table::new(&["STATE", "NAME"], rows);
        let look = Look { colours: Colours::Ansi, ..Look::default() };
        let expected =
            "\x1b[1mSTATE\x1b[0m    \x1b[1mNAME\x1b[0m\n\x1b[32mok\x1b[0m       a\n\x1b[31mRefused\x1b[0m\n";
        assert_eq!(table.text(look), expected);
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        let table = Table::new(&["A", "B"], [row(["a\x1b[31m", "b\nc\u{9b}\u{202e}"])]);
        assert_eq!(table.to_string(), "A            B\na\\u{1b}[31m  b\\nc\\u{9b}\\u{202e}\n");
    }
}
