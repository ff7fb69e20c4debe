//! Rates between two readings of a program's statistics, which are JSON.

use std::time::Duration;

use serde_json::Value;

/// One object of the statistics, the same object at the last reading, and the time between both.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub now: &'a Value,
    /// None when the object is new.
    pub before: Option<&'a Value>,
    pub elapsed: Duration,
}

impl<'a> Pair<'a> {
    /// Returns the pair of a member of both objects.
    pub fn at(self, key: &str) -> Pair<'a> {
        Pair { now: &self.now[key], before: self.before.map(|before| &before[key]), ..self }
    }

    /// Returns the pairs of a list's objects, which are the same when `keys` are.
    pub fn items(self, keys: &'static [&'static str]) -> impl Iterator<Item = Pair<'a>> {
        let before = self.before.map_or(&[][..], list);
        list(self.now).iter().map(move |now| {
            let same = |other: &&Value| keys.iter().all(|key| other[*key] == now[*key]);
            Pair { now, before: before.iter().find(same), elapsed: self.elapsed }
        })
    }

    pub fn count(self, key: &str) -> u64 {
        self.now[key].as_u64().unwrap_or(0)
    }

    pub fn number(self, key: &str) -> f64 {
        self.now[key].as_f64().unwrap_or(0.0)
    }

    pub fn text(self, key: &str) -> String {
        self.now[key].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the growth of a counter; none when there is no earlier reading, or it began anew.
    pub fn growth(self, key: &str) -> Option<u64> {
        self.count(key).checked_sub(self.before?[key].as_u64().unwrap_or(0))
    }

    /// Returns the growth a second.
    pub fn rate(self, key: &str) -> Option<f64> {
        Some(self.growth(key)? as f64 / self.elapsed.as_secs_f64().max(1e-3))
    }

    /// Returns the growth of one counter by that of another; none while the other stands still.
    pub fn ratio(self, key: &str, of: &str) -> Option<f64> {
        let of = self.growth(of).filter(|of| *of > 0)?;
        Some(self.growth(key)? as f64 / of as f64)
    }

    /// Returns a quantile, in seconds, of the durations that were added to a histogram since the last
    /// reading.
    pub fn quantile(self, fraction: f64) -> Option<f64> {
        let buckets = |histogram: &Value| -> Vec<(u64, u64)> {
            let pairs = list(&histogram["buckets"]).iter();
            pairs.filter_map(|pair| Some((pair[0].as_u64()?, pair[1].as_u64()?))).collect()
        };
        let before = self.before.map(buckets).unwrap_or_default();
        let grown = buckets(self.now).into_iter().map(|(upper, count)| {
            let earlier = before.iter().find(|(other, _)| *other == upper).map_or(0, |(_, count)| *count);
            (upper, count.saturating_sub(earlier))
        });
        let grown: Vec<(u64, u64)> = grown.collect();
        let wanted = grown.iter().map(|(_, count)| count).sum::<u64>() as f64 * fraction;
        let mut below = 0;
        let reached = grown.iter().find(|(_, count)| {
            below += count;
            below > 0 && below as f64 >= wanted
        });
        reached.map(|(upper, _)| *upper as f64 * 1e-9)
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_those_of_the_same_object_between_both_readings() {
        let before = json!([{ "name": "a", "sent": 100, "lost": 5, "times": { "buckets": [[1024, 9]] } }]);
        let now = json!([
            { "name": "b", "sent": 7 },
            { "name": "a",
                "sent": 300, "lost": 15, "times": { "buckets": [[1024, 9], [2048, 3], [4096, 1]] } },
        ]);
        let all = Pair { now: &now, before: Some(&before), elapsed: Duration::from_secs(2) };
        let pairs: Vec<_> = all.items(&["name"]).collect();
        assert_eq!((pairs[0].rate("sent"), pairs[0].growth("sent")), (None, None), "it is new");
        assert_eq!((pairs[1].rate("sent"), pairs[1].ratio("lost", "sent")), (Some(100.0), Some(0.05)));
        let times = pairs[1].at("times");
        assert_eq!([0.5, 0.99].map(|at| times.quantile(at)), [Some(2048e-9), Some(4096e-9)]);
        let same = Pair { now: &before, before: Some(&before), elapsed: Duration::from_secs(1) };
        let still = same.items(&["name"]).next().unwrap();
        assert_eq!((still.ratio("lost", "sent"), still.at("times").quantile(0.5)), (None, None));
    }

    #[test]
    fn a_counter_that_began_anew_has_no_rate() {
        let (before, now) = (json!({ "sent": 100 }), json!({ "sent": 3 }));
        let pair = Pair { now: &now, before: Some(&before), elapsed: Duration::from_secs(1) };
        assert_eq!(pair.rate("sent"), None);
    }
}
