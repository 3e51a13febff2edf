//! Text in columns.

/// Columns aligned, two blanks between them. Every row has as many cells as the header.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<_> = header.iter().map(ToString::to_string).collect();
    let lines: Vec<_> = std::iter::once(&header).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let row = |cells: [&str; 2]| cells.map(ToOwned::to_owned).to_vec();
        let text = table(&["KIND", "NAME"], &[row(["Gateway", "web"]), row(["ä", ""])]);
        assert_eq!(text, "KIND     NAME\nGateway  web\nä\n");
    }
}
