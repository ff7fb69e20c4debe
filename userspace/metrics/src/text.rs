//! The older text format of Prometheus, for readers that do not ask for OpenMetrics, such as `promtool check
//! metrics`.

/// Rewrites OpenMetrics as the Prometheus text format 0.0.4. There a counter is described by the name of its
/// series, and an info is a gauge.
pub(crate) fn prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", _, words] => help = Some(words),
            ["#", "TYPE", name, kind] => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                if let Some(help) = help.take() {
                    text += &format!("# HELP {name}{suffix} {help}\n");
                }
                text += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            ["#", ..] => {}
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_the_name_of_their_series() {
        let open_metrics = "\
# HELP sent_bytes All that was sent.
# TYPE sent_bytes counter
# UNIT sent_bytes bytes
sent_bytes_total{job_name=\"a # b\"} 3
# HELP build The build.
# TYPE build info
build_info{version=\"1\"} 1
# HELP clients The clients.
# TYPE clients gauge
clients 2
# EOF
";
        let expected = "\
# HELP sent_bytes_total All that was sent.
# TYPE sent_bytes_total counter
sent_bytes_total{job_name=\"a # b\"} 3
# HELP build_info The build.
# TYPE build_info gauge
build_info{version=\"1\"} 1
# HELP clients The clients.
# TYPE clients gauge
clients 2
";
        assert_eq!(prometheus(open_metrics), expected);
    }
}
