//! Pages of `stats`: the items after a position, as many as one message holds.

use serde::Serialize;
use serde_json::Value;
use sumac_api::{Failure, MAX_MESSAGE};

use crate::json::json;

/// The bytes of a page's items: of them all but the last, so that the rest of a message holds that one and
/// what is on each page.
const PAGE_BYTES: usize = MAX_MESSAGE / 4 * 3;

/// The list of an item, in the order of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    Ports,
    Threads,
    Jobs,
    Hosted,
}

/// The position of an item: its list, its number there, and of a job the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(u64);

impl Position {
    pub(super) fn new(list: List, number: usize, lane: u16) -> Position {
        let number = number.min(u32::MAX as usize) as u64;
        Position((list as u64) << 48 | number << 16 | u64::from(lane))
    }
}

/// A page that is being made. Items come in the order of their positions.
#[derive(Debug)]
pub(super) struct Page {
    after: Option<Position>,
    left: Option<usize>,
    last: Option<Position>,
    is_over: bool,
}

impl Page {
    /// Begins the page after the item at this position.
    pub(super) fn after(position: Option<u64>) -> Page {
        Page { after: position.map(Position), left: Some(PAGE_BYTES), last: None, is_over: false }
    }

    /// Returns an item in JSON if it is on this page.
    pub(super) fn item(
        &mut self,
        position: Position,
        item: &impl Serialize,
    ) -> Result<Option<Value>, Failure> {
        if self.after.is_some_and(|after| position <= after) {
            return Ok(None);
        }
        if self.left.is_none() {
            self.is_over = true;
            return Ok(None);
        }
        let value = json(item)?;
        self.charge(&value);
        self.last = Some(position);
        Ok(Some(value))
    }

    /// Counts what goes with an item.
    pub(super) fn charge(&mut self, value: &impl Serialize) {
        self.left = self.left.and_then(|left| left.checked_sub(length(value)));
    }

    /// Returns the position after which the next page begins, if there is one.
    pub(super) fn next(&self) -> Option<u64> {
        self.last.filter(|_| self.is_over).map(|position| position.0)
    }
}

/// Returns the bytes of a value's JSON.
fn length(value: &impl Serialize) -> usize {
    struct Count(usize);

    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    // A value without a JSON form is refused before.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_each_item_once_and_none_is_longer_than_a_message() {
        let items: Vec<_> = (0..1000usize)
            .map(|number| {
                let list = [List::Ports, List::Threads, List::Jobs, List::Hosted][number / 250];
                let position = Position::new(list, number / 8, (number % 8) as u16);
                (position, format!("{number}:{}", "x".repeat(number * number % 20_000)))
            })
            .collect();
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let mut page = Page::after(after);
            let on_page: Vec<_> =
                items.iter().filter_map(|(position, item)| page.item(*position, item).unwrap()).collect();
            let length = on_page.iter().map(length).sum::<usize>();
            assert!(!on_page.is_empty() && length <= PAGE_BYTES + 20_010, "{length} bytes");
            found.extend(on_page);
            pages += 1;
            match page.next() {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert!(pages > 10, "{pages}");
        assert_eq!(found, items.into_iter().map(|(_, item)| Value::String(item)).collect::<Vec<_>>());
    }

    #[test]
    fn a_page_that_holds_all_is_the_last() {
        let mut page = Page::after(None);
        assert_eq!(page.item(Position::new(List::Jobs, 1, 0), &7).unwrap(), Some(Value::from(7)));
        assert_eq!(page.next(), None);
        let mut page = Page::after(Some(u64::MAX));
        assert_eq!(page.item(Position::new(List::Jobs, 1, 0), &7).unwrap(), None);
        assert_eq!(page.next(), None);
    }
}
