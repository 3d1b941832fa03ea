//! Metrics as an operator scrapes them.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub struct Scrape(PrometheusHandle);

/// Runs a test with a recorder for its thread.
pub fn recorded(test: impl FnOnce(&Scrape)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = Scrape(recorder.handle());
    ::metrics::with_local_recorder(&recorder, || test(&scrape));
}

impl Scrape {
    /// The value of a series, by its name without `dynamo_frontend_` and by
    /// its labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.0.render();
        let name = format!("dynamo_frontend_{name}");
        let mut matching = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (series, its_labels) = series.split_once('{').unwrap_or((series, ""));
            let has = |(key, value): &(&str, &str)| {
                let label = format!("{key}=\"{value}\"");
                its_labels
                    .trim_end_matches('}')
                    .split(',')
                    .any(|its| its == label)
            };
            (series == name && labels.iter().all(has)).then(|| value.parse().unwrap())
        });
        let value = matching.next();
        assert_eq!(matching.next(), None, "{name} {labels:?} is ambiguous");
        value
    }
}
