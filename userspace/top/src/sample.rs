//! A sample of a program's jobs: what the screen shows, and what `--json` prints.

/// The unit of a column's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Text,
    Count,
    PerSecond,
    BytesPerSecond,
    /// A part of one, shown in percent.
    Ratio,
    Seconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name in JSON.
    pub key: &'static str,
    /// Its heading on the screen.
    pub title: &'static str,
    pub unit: Unit,
}

impl Column {
    pub const fn new(key: &'static str, title: &'static str, unit: Unit) -> Column {
        Column { key, title, unit }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Number(f64),
    /// Not known: no rate yet, no round trip.
    Unknown,
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Cell {
        number.map_or(Cell::Unknown, Cell::Number)
    }
}

impl Cell {
    /// Returns the cell as the screen shows it.
    pub(crate) fn shown(&self, unit: Unit) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Unknown => "-".to_owned(),
            Cell::Number(number) => match unit {
                Unit::Text | Unit::Count => format!("{number:.0}"),
                Unit::PerSecond => scaled(*number, ""),
                Unit::BytesPerSecond => scaled(*number, "B"),
                Unit::Ratio => format!("{:.2}%", number * 100.0),
                Unit::Seconds => duration(*number),
            },
        }
    }

    fn compare(&self, other: &Cell) -> std::cmp::Ordering {
        match (self, other) {
            (Cell::Number(a), Cell::Number(b)) => b.total_cmp(a),
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            _ => (*self == Cell::Unknown).cmp(&(*other == Cell::Unknown)),
        }
    }
}

fn scaled(number: f64, unit: &str) -> String {
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(from, _)| number >= *from) {
        Some((from, prefix)) => format!("{:.1} {prefix}{unit}/s", number / from),
        None => format!("{number:.0} {unit}/s"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.1} us", seconds * 1e6),
        1e-3..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: &'static [Column],
    /// As many cells as columns.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns the indices of the rows in the order of a column: large numbers first, texts by the alphabet.
    pub(crate) fn order(&self, column: usize, reversed: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        let cell = |row: &usize| self.rows.get(*row).and_then(|cells| cells.get(column));
        order.sort_by(|a, b| match (cell(a), cell(b)) {
            (Some(a), Some(b)) => a.compare(b),
            _ => std::cmp::Ordering::Equal,
        });
        if reversed {
            order.reverse();
        }
        order
    }

    /// Returns the cells as shown, below the headings.
    pub(crate) fn shown(&self) -> Vec<Vec<String>> {
        let shown = |row: &Vec<Cell>| {
            row.iter().zip(self.columns).map(|(cell, column)| cell.shown(column.unit)).collect()
        };
        self.rows.iter().map(shown).collect()
    }

    /// Returns the widths of the columns in characters.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let rows = self.shown();
        let width = |(at, column): (usize, &Column)| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain([column.title.chars().count()]).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(width).collect()
    }
}

/// The state of a program at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Names and values above the table.
    pub facts: Vec<(&'static str, String)>,
    /// The first column names the job.
    pub jobs: Table,
    /// The name of a job's parts: `lanes`, `workers`.
    pub parts_name: &'static str,
    /// The parts of each job, in the order of the jobs.
    pub parts: Vec<Table>,
}

/// A program that is watched.
pub trait Source: Send + 'static {
    /// Takes a sample, with the rates since the last one.
    ///
    /// # Errors
    /// A text for people: the program does not answer. It is asked again.
    fn sample(&mut self) -> Result<Sample, String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] =
        [Column::new("a", "a", Unit::Text), Column::new("b", "rate", Unit::BytesPerSecond)];

    #[test]
    fn numbers_have_their_units() {
        let shown = |number: f64, unit| Cell::Number(number).shown(unit);
        assert_eq!(shown(1_234_567.0, Unit::BytesPerSecond), "1.2 MB/s");
        assert_eq!(shown(12.0, Unit::PerSecond), "12 /s");
        assert_eq!(shown(0.0123, Unit::Ratio), "1.23%");
        assert_eq!([6.55e-5, 0.0021, 1.5].map(|it| shown(it, Unit::Seconds)), ["65.5 us", "2.1 ms", "1.5 s"]);
        assert_eq!(Cell::Unknown.shown(Unit::Count), "-");
    }

    #[test]
    fn large_numbers_and_early_letters_come_first_and_the_unknown_last() {
        let row = |name: &str, rate| vec![Cell::Text(name.into()), Cell::from(rate)];
        let rows = vec![row("b", Some(1.0)), row("c", None), row("a", Some(5.0))];
        let table = Table { columns: &COLUMNS, rows };
        assert_eq!(table.order(0, false), [2, 0, 1]);
        assert_eq!(table.order(1, false), [2, 0, 1]);
        assert_eq!(table.order(1, true), [1, 0, 2]);
        assert_eq!(table.widths(), [1, 5]);
    }
}
