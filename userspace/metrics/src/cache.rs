//! The rendered metrics. A rendering reads the program's statistics, so that frequent scrapes share one.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::text;

/// The interval of renderings that go on, and the number of them that may come at once before. Scrapes in
/// between have the last one.
const INTERVAL: Duration = Duration::from_millis(250);
const BURST: u32 = 20;

/// All metrics, in both formats.
#[derive(Clone, Debug)]
pub(crate) struct Rendering {
    pub(crate) open_metrics: Bytes,
    pub(crate) prometheus: Bytes,
}

#[derive(Debug)]
struct State {
    /// `None`: the statistics could not be read.
    last: Option<Rendering>,
    /// The time up to which renderings are accounted for (a generic cell rate).
    accounted: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Cache {
    registry: Registry,
    interval: Duration,
    state: Arc<Mutex<State>>,
}

impl Cache {
    pub(crate) fn new(registry: Registry) -> Cache {
        let state = Arc::new(Mutex::new(State { last: None, accounted: None }));
        Cache { registry, interval: INTERVAL, state }
    }

    /// Returns the metrics, or `None` when the statistics cannot be read.
    pub(crate) async fn get(self: &Arc<Cache>) -> Option<Rendering> {
        let state = self.state.clone().lock_owned().await;
        // A rendering goes on when the scraper that asked for it goes away: others have it.
        tokio::spawn(self.clone().update(state)).await.unwrap_or_default()
    }

    async fn update(self: Arc<Cache>, mut state: OwnedMutexGuard<State>) -> Option<Rendering> {
        let now = Instant::now();
        let accounted = state.accounted.map_or(now, |accounted| accounted.max(now));
        let next = accounted + self.interval;
        if next.duration_since(now) <= self.interval * BURST {
            state.accounted = Some(next);
            // The program may take some time to read its statistics.
            state.last = spawn_blocking(move || self.encode()).await.unwrap_or_default();
        }
        state.last.clone()
    }

    fn encode(&self) -> Option<Rendering> {
        let mut text = String::new();
        encode(&mut text, &self.registry).ok()?;
        let prometheus = text::prometheus(&text).into();
        Some(Rendering { open_metrics: text.into(), prometheus })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::group::{Encode, Encoder, Group, Metric, Source, Unit};

    const COUNT: Group<u64> =
        Group { labels: &[], metrics: &[Metric::counter("renderings", Unit::None, "Renderings", |it| *it)] };

    #[derive(Debug, Default)]
    struct Program(AtomicU64);

    impl Encode for Program {
        fn encode(&self, encoder: &mut Encoder<'_>) -> fmt::Result {
            COUNT.encode(encoder, &[(Vec::new(), self.0.fetch_add(1, Ordering::Relaxed) + 1)])
        }
    }

    #[tokio::test]
    async fn frequent_scrapes_share_a_rendering() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Source(Program::default())));
        let cache = Arc::new(Cache { interval: Duration::from_secs(3600), ..Cache::new(registry) });
        for scrape in 1..=1000 {
            let text = cache.get().await.unwrap().open_metrics;
            let rendering = format!("renderings_total {}\n", scrape.min(BURST));
            assert!(
                text.windows(rendering.len()).any(|part| part == rendering.as_bytes()),
                "scrape {scrape}"
            );
        }
    }
}
