//! Tables for people.

use std::fmt::Write;

/// Rows under headings, each column as wide as its longest cell.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(headings: [&str; N]) -> Self {
        Self {
            rows: vec![headings.map(str::to_owned)],
        }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// True if there is no row under the headings.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub(super) fn text(&self) -> String {
        let wide = |at: usize| self.rows.iter().map(|row| row[at].chars().count()).max();
        let widths: Vec<usize> = (0..N).map(|at| wide(at).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let mut table = Table::new(["NAME", "RATE"]);
        assert!(table.is_empty());
        table.row(["ip-auth".to_owned(), "10/min".to_owned()]);
        assert_eq!(table.text(), "NAME     RATE\nip-auth  10/min\n");
    }
}
