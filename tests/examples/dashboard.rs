//! The Grafana dashboard of the examples asks for what the crate emits, and
//! shows all of it.

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use tower_overload::metrics::{Kind, METRICS, Metric, Prefix, QUEUE_WAIT};

/// Metrics that no panel shows, each with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[];

/// Labels that Prometheus gives to what it scrapes.
const OF_THE_SCRAPE: &[&str] = &["instance", "job"];

fn dashboard() -> Value {
    serde_json::from_str(include_str!("../../examples/grafana/tower-overload.json")).unwrap()
}

/// A series that can be asked for: one of the several that a histogram is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Series {
    Counter,
    Gauge,
    Quantile,
    Bucket,
    SumOrCount,
}

/// The metric that the series `name` is one of.
fn find(name: &str) -> Option<(&'static Metric, Series)> {
    let prefix = Prefix::default();
    METRICS.iter().find_map(|metric| {
        let series = match (metric.kind(), name.strip_prefix(&metric.name(&prefix))?) {
            (Kind::Counter, "") => Series::Counter,
            (Kind::Gauge, "") => Series::Gauge,
            (Kind::Histogram, "") => Series::Quantile,
            (Kind::Histogram, "_bucket") => Series::Bucket,
            (Kind::Histogram, "_sum" | "_count") => Series::SumOrCount,
            _ => return None,
        };
        Some((metric, series))
    })
}

/// Whether the series of `metric` have `label`.
fn has_label((metric, series): (&Metric, Series), label: &str) -> bool {
    let of_series = match series {
        Series::Quantile => label == "quantile",
        Series::Bucket => label == "le",
        _ => false,
    };
    of_series || metric.labels().contains(&label) || OF_THE_SCRAPE.contains(&label)
}

/// What a query asks for.
#[derive(Debug, Default)]
struct Query {
    metrics: Vec<(&'static Metric, Series)>,
    /// The labels that its results have, and the variables that it uses.
    labels: BTreeSet<String>,
    variables: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Sign(char),
}

fn tokens(query: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = query.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |char: char| char.is_ascii_alphanumeric() || "_:".contains(char);
        let length = match first {
            '"' => 2 + rest[1..].find('"').ok_or("a text without its end")?,
            '0'..='9' => rest
                .find(|char| !is_name(char) && char != '.')
                .unwrap_or(rest.len()),
            '$' => {
                1 + rest[1..]
                    .find(|char| !is_name(char))
                    .unwrap_or(rest.len() - 1)
            }
            _ if is_name(first) => rest.find(|char| !is_name(char)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(match first {
            '"' => Token::Text(token[1..length - 1].to_owned()),
            '0'..='9' => Token::Number,
            _ if is_name(first) || first == '$' => Token::Name(token.to_owned()),
            _ => Token::Sign(first),
        });
        rest = after.trim_start();
    }
    Ok(tokens)
}

/// A reader of the part of PromQL that the dashboard is written in: functions,
/// aggregations with `by`, selectors with matchers and a range, `or`, `/`.
/// What it does not know is an error, so a query is understood or refused.
struct Reader<'a> {
    tokens: &'a [Token],
    query: Query,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<Token> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first.clone())
    }

    fn takes(&mut self, sign: char) -> bool {
        let is_next = self.tokens.first() == Some(&Token::Sign(sign));
        if is_next {
            self.next();
        }
        is_next
    }

    fn expect(&mut self, sign: char) -> Result<(), String> {
        match self.next() {
            Some(Token::Sign(next)) if next == sign => Ok(()),
            other => Err(format!("expected {sign:?}, found {other:?}")),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.next() {
            Some(Token::Name(name)) => Ok(name),
            other => Err(format!("expected a name, found {other:?}")),
        }
    }

    /// One or more operands; their series, with the labels that are left.
    fn expression(&mut self) -> Result<BTreeSet<String>, String> {
        let mut labels = self.operand()?;
        loop {
            match self.tokens.first() {
                Some(Token::Name(name)) if name == "or" => drop(self.next()),
                Some(Token::Sign('/')) => drop(self.next()),
                _ => return Ok(labels),
            }
            // One of the two may have lost a label that the other has.
            let other = self.operand()?;
            labels = &labels & &other;
        }
    }

    fn operand(&mut self) -> Result<BTreeSet<String>, String> {
        if self.tokens.first() == Some(&Token::Number) {
            self.next();
            return Ok(BTreeSet::new());
        }
        let name = self.name()?;
        match name.as_str() {
            "sum" | "max" => {
                let mut by = BTreeSet::new();
                if self.tokens.first() == Some(&Token::Name("by".into())) {
                    self.next();
                    self.expect('(')?;
                    by.insert(self.name()?);
                    while self.takes(',') {
                        by.insert(self.name()?);
                    }
                    self.expect(')')?;
                }
                self.expect('(')?;
                let labels = self.expression()?;
                self.expect(')')?;
                match by.iter().find(|label| !labels.contains(*label)) {
                    Some(label) => Err(format!("nothing here has the label {label}")),
                    None => Ok(by),
                }
            }
            "rate" | "increase" => {
                self.expect('(')?;
                let name = self.name()?;
                let (series, labels) = self.selector(&name)?;
                if matches!(series, Series::Gauge | Series::Quantile) {
                    return Err(format!("{name} falls too, so it has no rate"));
                }
                self.expect('[')?;
                let range = self.name()?;
                if !["$__rate_interval", "$__range"].contains(&range.as_str()) {
                    return Err(format!("{range} is no range of Grafana's"));
                }
                self.expect(']')?;
                self.expect(')')?;
                Ok(labels)
            }
            "histogram_quantile" => {
                self.expect('(')?;
                self.expression()?;
                self.expect(',')?;
                let mut labels = self.expression()?;
                self.expect(')')?;
                if !labels.remove("le") {
                    return Err("a quantile of what are no buckets".into());
                }
                Ok(labels)
            }
            _ => match self.selector(&name)? {
                (Series::Gauge | Series::Quantile, labels) => Ok(labels),
                _ => Err(format!("{name} only rises, so ask for its rate")),
            },
        }
    }

    fn selector(&mut self, name: &str) -> Result<(Series, BTreeSet<String>), String> {
        let found = find(name).ok_or_else(|| format!("{name} is no metric of the crate"))?;
        self.query.metrics.push(found);
        if self.takes('{') {
            loop {
                let label = self.name()?;
                if !has_label(found, &label) {
                    return Err(format!("{name} has no label {label}"));
                }
                self.expect('=')?;
                self.takes('~');
                match self.next() {
                    Some(Token::Text(text)) => {
                        let variable = text.strip_prefix('$').map(str::to_owned);
                        self.query.variables.extend(variable);
                    }
                    other => return Err(format!("expected a text, found {other:?}")),
                }
                if !self.takes(',') {
                    break;
                }
            }
            self.expect('}')?;
        }
        let own = ["quantile", "le"]
            .into_iter()
            .chain(OF_THE_SCRAPE.iter().copied());
        let labels = own.chain(found.0.labels().iter().copied());
        let labels = labels
            .filter(|label| has_label(found, label))
            .map(str::to_owned);
        Ok((found.1, labels.collect()))
    }
}

fn read(query: &str) -> Result<Query, String> {
    let tokens = tokens(query)?;
    let mut reader = Reader {
        tokens: &tokens,
        query: Query::default(),
    };
    reader.query.labels = reader.expression()?;
    match reader.tokens {
        [] => Ok(reader.query),
        rest => Err(format!("not understood: {rest:?}")),
    }
}

/// A query with its legend, which may name labels of the results alone.
fn read_with_legend(query: &str, legend: &str) -> Result<Query, String> {
    let query = read(query)?;
    for part in legend.split("{{").skip(1) {
        let label = part.split("}}").next().unwrap_or_default();
        if !query.labels.contains(label) {
            return Err(format!(
                "the legend {legend:?} names {label}, which is not in the result"
            ));
        }
    }
    Ok(query)
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("{key} is an array in {value}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} is text in {value}"))
}

/// Every query of every panel, with its legend.
fn queries(dashboard: &Value) -> Vec<(&str, &str)> {
    let panels = array(dashboard, "panels").iter();
    let targets = panels
        .filter(|panel| panel["type"] != "row")
        .flat_map(|panel| array(panel, "targets"));
    targets
        .map(|target| (text(target, "expr"), text(target, "legendFormat")))
        .collect()
}

#[test]
fn every_query_asks_for_what_the_crate_emits() {
    let dashboard = dashboard();
    let queries = queries(&dashboard);
    assert!(!queries.is_empty());
    for (query, legend) in queries {
        if let Err(error) = read_with_legend(query, legend) {
            panic!("{query}: {error}");
        }
    }
}

#[test]
fn every_metric_is_shown_or_left_out_on_purpose() {
    let dashboard = dashboard();
    let queries = queries(&dashboard)
        .into_iter()
        .map(|(query, _)| read(query).unwrap());
    let prefix = Prefix::default();
    let shown: HashSet<_> = queries
        .flat_map(|query| query.metrics)
        .map(|(metric, _)| metric.name(&prefix))
        .collect();
    for metric in METRICS {
        let name = metric.name(&prefix);
        let left_out = NOT_SHOWN.iter().any(|(not_shown, _)| *not_shown == name);
        assert!(
            shown.contains(&name) != left_out,
            "{name}: shown, or in NOT_SHOWN, and not both"
        );
    }
    for (name, _) in NOT_SHOWN {
        assert!(find(name).is_some(), "{name} is no metric of the crate");
    }
}

#[test]
fn a_query_for_anything_else_is_found() {
    for (query, legend, error) in [
        (
            "sum(rate(dynamo_load_events_total[$__rate_interval]))",
            "",
            "no metric",
        ),
        (
            "sum(rate(other_frontend_load_events_total[$__rate_interval]))",
            "",
            "no metric",
        ),
        ("dynamo_request_queue_sum", "", "no metric"),
        ("dynamo_request_queue_wait_seconds_total", "", "no metric"),
        ("sum by (model) (dynamo_request_queue)", "", "label model"),
        (
            "sum by (mark, reason) (dynamo_frontend_excluded_workers)",
            "",
            "label reason",
        ),
        (r#"dynamo_request_queue{model="a"}"#, "", "no label model"),
        (
            r#"dynamo_frontend_excluded_workers{le="1"}"#,
            "",
            "no label le",
        ),
        (
            "sum by (le) (dynamo_request_queue_wait_seconds)",
            "",
            "label le",
        ),
        ("dynamo_rejection_request_total", "", "only rises"),
        ("dynamo_request_queue_wait_seconds_count", "", "only rises"),
        (
            "rate(dynamo_request_queue[$__rate_interval])",
            "",
            "falls too",
        ),
        (
            "rate(dynamo_rejection_request_total[$interval])",
            "",
            "no range",
        ),
        ("rate(dynamo_rejection_request_total)", "", "expected '['"),
        (
            "histogram_quantile(0.5, sum(dynamo_request_queue))",
            "",
            "no buckets",
        ),
        ("sum(dynamo_request_queue", "", "expected ')'"),
        (
            "dynamo_request_queue dynamo_request_queue",
            "",
            "not understood",
        ),
        ("topk(3, dynamo_request_queue)", "", "no metric"),
        (
            "sum(dynamo_request_queue)",
            "{{instance}}",
            "names instance",
        ),
        (
            "sum by (instance) (dynamo_request_queue)",
            "{{job}}",
            "names job",
        ),
    ] {
        let found = read_with_legend(query, legend).unwrap_err();
        assert!(found.contains(error), "{query}: {found}");
    }
}

#[test]
fn the_names_are_those_that_an_exporter_renders() {
    let prefix = Prefix::default();
    let histogram = QUEUE_WAIT.name(&prefix);
    let render = |builder: PrometheusBuilder| {
        let recorder = builder.build_recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!(histogram.clone()).record(1)
        });
        recorder.handle().render()
    };
    let summary = render(PrometheusBuilder::new());
    let buckets = render(PrometheusBuilder::new().set_buckets(&[1.0]).unwrap());

    let dashboard = dashboard();
    let mut seen = Vec::new();
    for (query, _) in queries(&dashboard) {
        let tokens = tokens(query).unwrap();
        for (at, token) in tokens.iter().enumerate() {
            let Token::Name(name) = token else { continue };
            let Some((_, series)) =
                find(name).filter(|(metric, _)| metric.name(&prefix) == histogram)
            else {
                continue;
            };
            let (rendered, sample) = match (series, tokens.get(at + 1..)) {
                (Series::Quantile, Some([_, _, _, Token::Text(quantile), ..])) => {
                    (&summary, format!("{name}{{quantile=\"{quantile}\"}} "))
                }
                (Series::Bucket, _) => (&buckets, format!("{name}{{le=\"1\"}} ")),
                (Series::SumOrCount, _) => (&summary, format!("{name} ")),
                other => panic!("{query}: {other:?}"),
            };
            assert!(
                rendered.lines().any(|line| line.starts_with(&sample)),
                "{sample}: {rendered}"
            );
            seen.push(series);
        }
    }
    for series in [Series::Quantile, Series::Bucket, Series::SumOrCount] {
        assert!(seen.contains(&series), "no panel asks for a {series:?}");
    }
}

#[test]
fn every_source_and_variable_is_one_that_the_dashboard_has() {
    let dashboard = dashboard();
    let variables = array(&dashboard["templating"], "list");
    let names: Vec<_> = variables
        .iter()
        .map(|variable| text(variable, "name"))
        .collect();
    for (query, _) in queries(&dashboard) {
        for variable in read(query).unwrap().variables {
            assert!(names.contains(&variable.as_str()), "{query}: {variable}");
        }
    }

    let mut sources = Vec::new();
    for panel in array(&dashboard, "panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
    {
        sources.push(&panel["datasource"]);
        sources.extend(
            array(panel, "targets")
                .iter()
                .map(|target| &target["datasource"]),
        );
    }
    for variable in variables
        .iter()
        .filter(|variable| variable["type"] == "query")
    {
        sources.push(&variable["datasource"]);
        let query = text(&variable["query"], "query");
        let inner = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inner.unwrap().split_once(", ").unwrap();
        let found = find(metric).unwrap_or_else(|| panic!("{metric} is no metric of the crate"));
        assert!(has_label(found, label), "{query}");
    }
    let source = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    assert!(names.contains(&"datasource"));
    assert!(sources.into_iter().all(|used| *used == source));
}

#[test]
fn panels_have_ids_of_their_own_and_do_not_overlap() {
    let dashboard = dashboard();
    let panels = array(&dashboard, "panels");
    let ids: HashSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len());

    let mut taken = HashSet::new();
    for panel in panels {
        let title = text(panel, "title");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is not on the grid");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} lies over another panel");
        }
    }
}

#[test]
fn every_panel_says_what_it_shows() {
    for panel in array(&dashboard(), "panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
    {
        let title = text(panel, "title");
        assert!(
            !title.is_empty() && !text(panel, "description").is_empty(),
            "{title}"
        );
        let targets = array(panel, "targets");
        let ids: HashSet<_> = targets.iter().map(|target| text(target, "refId")).collect();
        assert_eq!(ids.len(), targets.len(), "{title}");
    }
}
