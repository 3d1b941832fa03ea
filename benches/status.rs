//! What the layer costs a request that succeeds, and what a refusal costs.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    future::{Ready, ready},
    hint::black_box,
    time::{Duration, Instant},
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

fn grpc_request() -> Request<()> {
    let mut request = request();
    let grpc = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert("content-type", grpc);
    request
}

fn run<S>(
    criterion: &mut Criterion,
    name: &str,
    mut service: S,
    request: fn() -> Request<()>,
) -> Duration
where
    S: Service<Request<()>>,
{
    let mut call = |request| black_box(service.call(request).now_or_never());
    criterion.bench_function(name, |bencher| {
        bencher.iter_batched(request, &mut call, BatchSize::SmallInput);
    });
    least(call, request)
}

/// The least time of a call. Unlike a mean, it can be subtracted from another
/// one on a machine that has other things to do.
fn least<T>(mut call: impl FnMut(Request<()>) -> T, request: fn() -> Request<()>) -> Duration {
    const CALLS: u32 = 100;
    let batch = || {
        let requests: Vec<_> = (0..CALLS).map(|_| request()).collect();
        let start = Instant::now();
        for request in requests {
            drop(call(request));
        }
        start.elapsed() / CALLS
    };
    std::iter::repeat_with(batch)
        .take(2000)
        .min()
        .unwrap_or_default()
}

fn benches(criterion: &mut Criterion) {
    let builder = || OverloadStatusLayer::builder().overload_status(529);
    let layer = builder().default_retry_after_secs(1.0).build().unwrap();
    layer.models().add("tiny").unwrap();
    let custom = Format::custom(|_| {
        let text = http::HeaderValue::from_static("text/plain");
        (text, Bytes::from_static(b"busy"))
    });
    let custom = builder().format(custom).build().unwrap();

    let bare = run(criterion, "success, bare", service_fn(succeed), request);
    let passed = layer.layer(service_fn(succeed));
    let passed = run(criterion, "success, through the layer", passed, request);
    let error = run(
        criterion,
        "refusal, bare error",
        service_fn(refuse),
        request,
    );
    let refused = layer.layer(service_fn(refuse));
    let answered = run(criterion, "refusal, answered", refused.clone(), request);
    let custom = custom.layer(service_fn(refuse));
    let custom = run(criterion, "refusal, custom format", custom, request);
    let grpc = run(criterion, "refusal, gRPC", refused, grpc_request);

    println!(
        "a success costs {:?} more through the layer",
        passed.saturating_sub(bare)
    );
    for (name, time) in [("JSON", answered), ("custom", custom), ("gRPC", grpc)] {
        println!(
            "a refusal in {name} costs {time:?}, of it the answer {:?}: {:.0} a second on one core",
            time.saturating_sub(error),
            1.0 / time.as_secs_f64(),
        );
    }
}

criterion_group!(status, benches);
criterion_main!(status);
