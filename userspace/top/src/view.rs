//! The screen: facts, the table of jobs, and the parts of the selected one.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Block, Borders, Paragraph, Row, TableState, Widget, Wrap};

use crate::sample::{Sample, Table, Unit};

/// Rows of the screen for the jobs, at least: a frame, the headings, and a job.
const JOBS_HEIGHT: u16 = 4;

/// A command of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Up,
    Down,
    Sort,
    Reverse,
}

/// The last sample, and how it is shown.
#[derive(Debug, Default)]
pub(crate) struct View {
    sample: Sample,
    /// The reason that there is no newer sample.
    problem: Option<String>,
    /// The name of the selected job, which stays selected wherever its row goes.
    selected: Option<String>,
    sort: usize,
    reversed: bool,
}

impl View {
    /// Takes a sample, or the reason that there is none: the last one stays.
    pub(crate) fn update(&mut self, sample: Result<Sample, String>) {
        match sample {
            Ok(sample) => (self.sample, self.problem) = (sample, None),
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(crate) fn act(&mut self, action: Action) {
        let order = self.order();
        let at = self.position(&order).unwrap_or(0);
        match action {
            Action::Up => self.select(&order, at.saturating_sub(1)),
            Action::Down => self.select(&order, (at + 1).min(order.len().saturating_sub(1))),
            Action::Sort => self.sort = (self.sort + 1) % self.sample.jobs.columns.len().max(1),
            Action::Reverse => self.reversed = !self.reversed,
        }
    }

    fn order(&self) -> Vec<usize> {
        self.sample.jobs.order(self.sort, self.reversed)
    }

    fn select(&mut self, order: &[usize], at: usize) {
        self.selected = order.get(at).and_then(|row| name(&self.sample.jobs, *row));
    }

    /// Returns the position of the selected job; of the first one when it is gone.
    fn position(&self, order: &[usize]) -> Option<usize> {
        let selected =
            |row: &usize| self.selected.is_some() && name(&self.sample.jobs, *row) == self.selected;
        order.iter().position(selected).or((!order.is_empty()).then_some(0))
    }

    fn footer(&self) -> Line<'static> {
        let sort = self.sample.jobs.columns.get(self.sort).map_or("", |column| column.title);
        Line::from(format!(" q quit   up/down select   s sort: {sort}   r reverse")).dim()
    }

    fn header(&self) -> Vec<Line<'_>> {
        let fact = |(name, value): &(&'static str, String)| {
            Line::from(vec![Span::from(format!(" {name}  ")).dim(), Span::from(value.clone())])
        };
        let mut lines: Vec<Line<'_>> = self.sample.facts.iter().map(fact).collect();
        if let Some(problem) = &self.problem {
            lines.push(Line::from(format!(" {problem}")).red().bold());
        }
        lines
    }
}

fn name(jobs: &Table, row: usize) -> Option<String> {
    jobs.rows.get(row)?.first().map(|cell| cell.shown(Unit::Text))
}

impl Widget for &View {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let header = self.header();
        // Words that do not fit move on: a wrapped line may take one more than its length says.
        let rows = |line: &Line<'_>| match line.width().div_ceil(usize::from(area.width.max(1))) {
            0 | 1 => 1,
            more => more + 1,
        };
        let rows = header.iter().map(rows).sum::<usize>();
        let height = u16::try_from(rows).unwrap_or(u16::MAX).min(area.height / 2);
        let header = Paragraph::new(header).wrap(Wrap { trim: false });
        let order = self.order();
        let position = self.position(&order);
        let parts = position.and_then(|at| self.sample.parts.get(*order.get(at)?));
        let parts_height = parts.map_or(0, |parts| parts.rows.len() as u16 + 3);
        let below = area.height.saturating_sub(height + 1 + JOBS_HEIGHT).min(parts_height);
        let jobs_height = area.height.saturating_sub(height + 1 + below).min(order.len() as u16 + 3);
        let [top, middle, bottom, _, last] = Layout::vertical([
            Constraint::Length(height),
            Constraint::Length(jobs_height),
            Constraint::Length(below),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(area);
        header.render(top, buffer);
        draw(&self.sample.jobs, &order, position, " jobs ".into(), middle, buffer);
        if let (Some(parts), Some(name)) =
            (parts, position.and_then(|at| name(&self.sample.jobs, *order.get(at)?)))
        {
            let rows: Vec<usize> = (0..parts.rows.len()).collect();
            draw(parts, &rows, None, format!(" {} of {name} ", self.sample.parts_name), bottom, buffer);
        }
        self.footer().render(last, buffer);
    }
}

/// Draws a table with as many of its columns as fit.
fn draw(
    table: &Table,
    order: &[usize],
    selected: Option<usize>,
    title: String,
    area: Rect,
    buffer: &mut Buffer,
) {
    let block = Block::new().borders(Borders::TOP).title(title);
    let mut left = usize::from(area.width);
    let fits = |width: &&usize| {
        let fits = left > **width;
        left = left.saturating_sub(**width + 2);
        fits
    };
    let widths: Vec<usize> = table.widths().iter().take_while(fits).copied().collect();
    let shown = table.shown();
    let align = |(at, cell): (usize, &String)| {
        let is_text = table.columns.get(at).is_some_and(|column| column.unit == Unit::Text);
        let width = widths.get(at).copied().unwrap_or(0);
        if is_text { cell.clone() } else { format!("{cell:>width$}") }
    };
    let line = |cells: &[String]| {
        Row::new(cells.iter().take(widths.len()).enumerate().map(align).collect::<Vec<_>>())
    };
    let headings: Vec<String> = table.columns.iter().map(|column| column.title.to_owned()).collect();
    let rows = order.iter().filter_map(|row| shown.get(*row)).map(|cells| line(cells));
    let constraints =
        widths.iter().map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    let drawn = widgets::Table::new(rows.collect::<Vec<_>>(), constraints)
        .header(line(&headings).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(block);
    let mut state = TableState::new().with_selected(selected);
    widgets::StatefulWidget::render(drawn, area, buffer, &mut state);
}

#[cfg(test)]
pub(crate) mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::sample::{Cell, Column};

    const JOBS: [Column; 2] = [
        Column::new("name", "job", Unit::Text),
        Column::new("sent_bytes_per_second", "sent", Unit::BytesPerSecond),
    ];
    const LANES: [Column; 2] =
        [Column::new("lane", "lane", Unit::Count), Column::new("loss", "loss", Unit::Ratio)];

    pub(crate) fn sample() -> Sample {
        let lanes = |rows: &[(f64, f64)]| Table {
            columns: &LANES,
            rows: rows.iter().map(|(lane, loss)| vec![Cell::Number(*lane), Cell::Number(*loss)]).collect(),
        };
        Sample {
            facts: vec![("backend", "udp".into()), ("control plane", "2 jobs".into())],
            jobs: Table {
                columns: &JOBS,
                rows: vec![
                    vec![Cell::Text("train".into()), Cell::Number(250e6)],
                    vec![Cell::Text("eval".into()), Cell::Unknown],
                ],
            },
            parts_name: "lanes",
            parts: vec![lanes(&[(0.0, 0.0), (1.0, 0.015)]), lanes(&[])],
        }
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| frame.render_widget(view, frame.area())).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(usize::from(width));
        let lines = cells.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn the_selected_job_has_its_parts_below() {
        let mut view = View::default();
        view.update(Ok(sample()));
        let expected = "
 backend  udp
 control plane  2 jobs
 jobs ─────────────────────────────────────────────
job          sent
eval            -
train  250.0 MB/s

 lanes of eval ────────────────────────────────────
lane  loss

 q quit   up/down select   s sort: job   r reverse
";
        assert_eq!(screen(&view, 51, 11), expected[1..]);
        view.act(Action::Down);
        view.act(Action::Sort);
        let shown = screen(&view, 50, 12);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[4].starts_with("train") && lines[5].starts_with("eval"), "by rate: {shown}");
        assert!(shown.contains("lanes of train") && shown.contains("   1  1.50%"), "{shown}");
    }

    #[test]
    fn the_selection_follows_its_job() {
        let mut view = View::default();
        view.act(Action::Down);
        view.update(Ok(sample()));
        view.act(Action::Down);
        assert_eq!(view.selected.as_deref(), Some("train"));
        view.act(Action::Reverse);
        assert_eq!(view.position(&view.order()), Some(0));
        view.act(Action::Up);
        assert_eq!(view.selected.as_deref(), Some("train"), "there is none above");
    }

    #[test]
    fn a_program_that_went_away_is_said_and_the_last_sample_stays() {
        let mut view = View::default();
        view.update(Ok(sample()));
        view.update(Err("no daemon answers".into()));
        let shown = screen(&view, 60, 12);
        assert!(shown.contains("no daemon answers") && shown.contains("train"), "{shown}");
        view.update(Ok(sample()));
        assert!(!screen(&view, 60, 12).contains("no daemon"));
    }

    #[test]
    fn a_small_terminal_has_the_first_columns() {
        let mut view = View::default();
        view.update(Ok(sample()));
        for (width, height) in [(10, 9), (3, 2), (1, 1), (12, 4)] {
            let shown = screen(&view, width, height);
            assert!(!shown.contains("MB/s"), "{shown}");
        }
    }
}
