//! What the layer costs a request that succeeds, and what a refusal costs.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    future::{Ready, ready},
    hint::black_box,
};
use tower::{BoxError, Layer, Service, service_fn};
use tower_overload::{
    OverloadReason, ServiceOverloaded,
    status::{Format, Model, OverloadStatusLayer},
};

type Outcome = Result<Response<Full<Bytes>>, BoxError>;

fn succeed(_: Request<()>) -> Ready<Outcome> {
    ready(Ok(Response::new(Full::default())))
}

fn refuse(_: Request<()>) -> Ready<Outcome> {
    ready(Err(
        ServiceOverloaded::new(OverloadReason::AllWorkersBusy).into()
    ))
}

fn request() -> Request<()> {
    let mut request = Request::post("/v1/chat/completions")
        .header("host", "localhost:8000")
        .header("content-type", "application/json")
        .header("authorization", "Bearer none")
        .header("user-agent", "bench")
        .body(())
        .unwrap();
    request.extensions_mut().insert(Model::new("tiny"));
    request
}

fn run<S>(criterion: &mut Criterion, name: &str, mut service: S, request: fn() -> Request<()>)
where
    S: Service<Request<()>>,
{
    criterion.bench_function(name, |bencher| {
        bencher.iter_batched(
            request,
            |request| black_box(service.call(request).now_or_never()),
            BatchSize::SmallInput,
        );
    });
}

fn benches(criterion: &mut Criterion) {
    let layer = OverloadStatusLayer::builder()
        .overload_status(529)
        .default_retry_after_secs(1.0)
        .build()
        .unwrap();
    layer.models().add("tiny").unwrap();
    let infallible = layer.clone().infallible();

    run(criterion, "success, no layer", service_fn(succeed), request);
    run(
        criterion,
        "success, through the layer",
        infallible.layer(service_fn(succeed)),
        request,
    );
    run(
        criterion,
        "refusal, no layer (the error)",
        service_fn(refuse),
        request,
    );
    run(
        criterion,
        "refusal, answered",
        infallible.layer(service_fn(refuse)),
        request,
    );

    let custom = Format::custom(|_| {
        (
            http::HeaderValue::from_static("text/plain"),
            Bytes::from_static(b"busy"),
        )
    });
    let custom = OverloadStatusLayer::builder()
        .overload_status(529)
        .format(custom)
        .build()
        .unwrap();
    run(
        criterion,
        "refusal, custom format",
        custom.layer(service_fn(refuse)),
        request,
    );

    run(
        criterion,
        "refusal, gRPC",
        infallible.layer(service_fn(refuse)),
        || {
            let mut request = request();
            let grpc = http::HeaderValue::from_static("application/grpc");
            request.headers_mut().insert("content-type", grpc);
            request
        },
    );
}

criterion_group!(status, benches);
criterion_main!(status);
