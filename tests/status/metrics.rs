//! What is counted, under which labels.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use metrics::with_local_recorder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::{collections::BTreeMap, time::Duration};
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_overload::{
    Limit, LimitPassed, Unreachable,
    metrics::Prefix,
    status::{KnownModels, Model, OverloadStatusLayer},
};

const REJECTED: &str = "dynamo_frontend_model_rejection_total";
const UNAVAILABLE: &str = "dynamo_frontend_model_unavailable_total";

/// Everything counted so far that is not 0, as `name{model,endpoint}`.
/// A snapshot of counters starts them again from 0.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let snapshot = snapshotter.snapshot().into_vec();
    let counted = snapshot.into_iter().filter_map(|(key, _, _, value)| {
        let DebugValue::Counter(count) = value else {
            panic!("only counters are made here")
        };
        let mut labels: Vec<_> = key.key().labels().collect();
        labels.sort_by_key(|label| std::cmp::Reverse(label.key()));
        let values: Vec<_> = labels.iter().map(|label| label.value()).collect();
        let name = format!("{}{{{}}}", key.key().name(), values.join(","));
        (count > 0).then_some((name, count))
    });
    counted.collect()
}

fn recorded(prefix: Prefix) -> (DebuggingRecorder, KnownModels) {
    let recorder = DebuggingRecorder::new();
    let models = with_local_recorder(&recorder, || {
        let models = KnownModels::new(prefix);
        models.add("tiny").unwrap();
        models
    });
    (recorder, models)
}

fn with(models: &KnownModels) -> OverloadStatusLayer {
    builder().models(models.clone()).build().unwrap()
}

fn refuse(layer: OverloadStatusLayer, error: impl Into<BoxError> + Clone, request: Request<()>) {
    let Ok(_) = block_on(layer.infallible().layer(failing(error)).oneshot(request));
}

fn request(path: &str, model: Option<Model>) -> Request<()> {
    let mut request = Request::post(path).body(()).unwrap();
    if let Some(model) = model {
        request.extensions_mut().insert(model);
    }
    request
}

fn tiny() -> Option<Model> {
    Some(Model::new("tiny"))
}

#[test]
fn refusals_are_counted_by_model_and_endpoint() {
    let (recorder, models) = recorded(Prefix::default());
    for (path, times) in [
        ("/v1/chat/completions", 3),
        ("/v1/completions", 1),
        ("/v1/responses", 2),
        ("/v1/messages", 1),
        ("/v1/embeddings", 1),
    ] {
        for _ in 0..times {
            refuse(with(&models), BUSY, request(path, tiny()));
        }
    }
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([
            (format!("{REJECTED}{{tiny,chat_completions}}"), 3),
            (format!("{REJECTED}{{tiny,completions}}"), 1),
            (format!("{REJECTED}{{tiny,responses}}"), 2),
            (format!("{REJECTED}{{tiny,anthropic_messages}}"), 1),
            (format!("{REJECTED}{{tiny,other}}"), 1),
        ])
    );
}

#[test]
fn unavailable_answers_are_counted_apart_those_of_workers_that_do_not_answer_too() {
    let (recorder, models) = recorded(Prefix::default());
    refuse(
        with(&models),
        NO_WORKERS,
        request("/v1/completions", tiny()),
    );
    refuse(
        with(&models),
        Unreachable::new("refused"),
        request("/v1/completions", tiny()),
    );
    refuse(
        with(&models),
        LimitPassed::new(Limit::Head, Duration::from_secs(60)),
        request("/v1/completions", tiny()),
    );
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([(format!("{UNAVAILABLE}{{tiny,completions}}"), 3)])
    );
}

#[test]
fn a_500_is_in_neither() {
    let (recorder, models) = recorded(Prefix::default());
    refuse(with(&models), "broken", request("/v1/completions", tiny()));
    assert_eq!(counted(&recorder.snapshotter()), BTreeMap::new());
}

#[test]
fn the_metric_says_overload_whatever_the_status() {
    let (recorder, models) = recorded(Prefix::default());
    let layer = builder()
        .overload_status(503)
        .models(models)
        .build()
        .unwrap();
    refuse(layer.clone(), BUSY, request("/v1/completions", tiny()));
    let mut grpc = request("/pkg.Model/Complete", tiny());
    let content_type = http::HeaderValue::from_static("application/grpc");
    grpc.headers_mut().insert("content-type", content_type);
    refuse(layer, BUSY, grpc);
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([
            (format!("{REJECTED}{{tiny,completions}}"), 1),
            (format!("{REJECTED}{{tiny,other}}"), 1),
        ])
    );
}

#[test]
fn clients_cannot_make_series_by_asking_for_names() {
    let (recorder, models) = recorded(Prefix::default());
    let series = recorder.snapshotter().snapshot().into_vec().len();
    for index in 0..100 {
        let made_up = Some(Model::new(format!("made-up-{index}")));
        with_local_recorder(&recorder, || {
            refuse(with(&models), BUSY, request("/v1/completions", made_up));
        });
    }
    refuse(with(&models), BUSY, request("/v1/completions", None));
    refuse(
        with(&models),
        BUSY,
        request("/v1/completions", Some(Model::unset())),
    );
    let snapshotter = recorder.snapshotter();
    assert_eq!(
        counted(&snapshotter),
        BTreeMap::from([(format!("{REJECTED}{{unknown,completions}}"), 102)])
    );
    assert_eq!(snapshotter.snapshot().into_vec().len(), series);
}

#[test]
fn a_model_that_becomes_known_has_its_series_before_its_first_refusal() {
    let (recorder, models) = recorded(Prefix::default());
    let names = || {
        let snapshot = recorder.snapshotter().snapshot().into_vec();
        let large = |label: &metrics::Label| label.value() == "large";
        snapshot
            .iter()
            .filter(|(key, ..)| key.key().labels().any(large))
            .count()
    };
    assert_eq!(names(), 0);
    with_local_recorder(&recorder, || models.add("large")).unwrap();
    assert_eq!(names(), 10, "five endpoints, two counters");
    models.remove("large");
    refuse(
        with(&models),
        BUSY,
        request("/v1/completions", Some(Model::new("large"))),
    );
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([(format!("{REJECTED}{{unknown,completions}}"), 1)])
    );
}

#[test]
fn a_model_that_is_found_out_inside_is_counted() {
    let (recorder, models) = recorded(Prefix::default());
    let service = service_fn(|request: Request<()>| async move {
        request.extensions().get::<Model>().unwrap().set("tiny");
        Err::<Response<Full<Bytes>>, BoxError>(BUSY.into())
    });
    let service = with(&models).infallible().layer(service);
    let request = request("/v1/completions", Some(Model::unset()));
    let Ok(_) = block_on(service.oneshot(request));
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([(format!("{REJECTED}{{tiny,completions}}"), 1)])
    );
}

#[test]
fn an_extractor_of_the_users_and_another_prefix() {
    let (recorder, models) = recorded(Prefix::new("acme"));
    let layer = builder()
        .models(models)
        .model_from(|head| Some(Model::new(head.headers.get("x-model")?.to_str().ok()?)))
        .build()
        .unwrap();
    let mut asked = request("/v1/completions", None);
    let tiny = http::HeaderValue::from_static("tiny");
    asked.headers_mut().insert("x-model", tiny);
    refuse(layer, BUSY, asked);
    assert_eq!(
        counted(&recorder.snapshotter()),
        BTreeMap::from([(
            "acme_frontend_model_rejection_total{tiny,completions}".into(),
            1
        )])
    );
}

#[test]
fn a_refusal_that_nobody_waits_for_is_not_counted() {
    let (recorder, models) = recorded(Prefix::default());
    let service = with(&models).infallible().layer(failing(BUSY));
    drop(service.oneshot(request("/v1/completions", tiny())));
    assert_eq!(counted(&recorder.snapshotter()), BTreeMap::new());
}
