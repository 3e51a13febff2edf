//! Text in columns.

use std::fmt;

/// Cells below a header. Every row has as many as it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub fn new(header: &[&'static str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { header: header.to_vec(), rows: rows.into_iter().collect() }
    }
}

/// Columns aligned, two blanks between them.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header: Vec<_> = self.header.iter().map(ToString::to_string).collect();
        let lines: Vec<_> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..header.len()).map(width).collect();
        for line in lines {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
            writeln!(f, "{}", cells.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let row = |cells: [&str; 2]| cells.map(ToOwned::to_owned).to_vec();
        let table = Table::new(&["KIND", "NAME"], [row(["Gateway", "web"]), row(["ä", ""])]);
        assert_eq!(table.to_string(), "KIND     NAME\nGateway  web\nä\n");
    }
}
