//! The promises of [`tower_overload::front`]. What clients of a whole gateway
//! see is in `tests/gateway`.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderName, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use std::{convert::Infallible, future::pending, num::NonZeroU64, time::Duration};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    api::{EstimateTokens, RequestReader},
    fleet::{Compose, Connect, Fleet, FleetBuilder, Origin, Registration},
    front::{Front, FrontBuilder, Key, Problem, WholeBody},
    limits::Streamed,
    load::tracker::Cost,
    pool::WorkerPool,
    status::{Model, OverloadStatusLayer},
};

type Client = BoxCloneSyncService<Request<WholeBody>, Response<Full<Bytes>>, BoxError>;
type Stack =
    BoxCloneSyncService<Request<WholeBody>, Response<BoxBody<Bytes, BoxError>>, Infallible>;

/// Tells what the front says of a request; one for `/v1/hang` has no answer.
async fn tell(request: Request<WholeBody>) -> Result<Response<Full<Bytes>>, BoxError> {
    if request.uri().path() == "/v1/hang" {
        return pending().await;
    }
    let (parts, body) = request.into_parts();
    let said = parts.extensions;
    let body = body.collect().await?.to_bytes();
    let text = format!(
        "{:?} {:?} {:?} {:?} {}",
        said.get().and_then(Model::name),
        said.get::<Streamed>().map(|streamed| streamed.0),
        said.get::<Cost>().map(Cost::prefill_tokens),
        said.get::<Key>().is_some(),
        body.len(),
    );
    Ok(Response::new(Full::from(text)))
}

/// A fleet with one worker for two models.
fn fleet() -> Fleet<Client, Stack> {
    let connect =
        |_: &Connect<'_>| Ok::<_, BoxError>(BoxCloneSyncService::new(tower::service_fn(tell)));
    let status = OverloadStatusLayer::builder().build().unwrap().infallible();
    let compose = move |model: Compose<'_, Client>| {
        let pool = WorkerPool::new(model.changes, model.set);
        let members = pool.members();
        let stack = ServiceBuilder::new()
            .map_response(|response: Response<_>| {
                response.map(|body| BodyExt::map_err(body, BoxError::from).boxed())
            })
            .layer(status.clone())
            .service(pool);
        Ok::<_, BoxError>((BoxCloneSyncService::new(stack), members))
    };
    let fleet = FleetBuilder::new().default_model("tiny");
    let fleet = fleet.build(connect, compose).unwrap();
    let worker = Registration::at("http://worker").models(["tiny", "large"]);
    fleet.register("a", worker, Origin::Static).unwrap();
    fleet
}

async fn ask<B>(front: &Front<Client, Stack, impl Estimate>, request: Request<B>) -> (u16, String)
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: std::fmt::Display + Send,
{
    let Ok(response) = front.clone().oneshot(request).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

trait Estimate: EstimateTokens + Clone + Send + Sync + 'static {}
impl<E: EstimateTokens + Clone + Send + Sync + 'static> Estimate for E {}

fn post(body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post("/v1/completions")
        .body(Full::new(body.into()))
        .unwrap()
}

#[tokio::test]
async fn what_was_read_of_a_request_goes_with_it_and_what_it_had_does_not() {
    let block = NonZeroU64::new(16).unwrap();
    let header = HeaderName::from_static("x-session-id");
    let front = FrontBuilder::new()
        .costs(block)
        .keys(Some(header))
        .build(fleet());
    let body = r#"{"model": "large", "stream": true, "prompt": [1, 2, 3]}"#;
    let mut request = post(body);
    request.extensions_mut().insert(Streamed(false));
    request
        .headers_mut()
        .insert("x-session-id", "one".parse().unwrap());
    let said = format!("Some(\"large\") Some(true) Some(3) true {}", body.len());
    assert_eq!(ask(&front, request).await, (200, said));

    // Without any of it the default model is asked, and nothing is counted.
    let front = Front::new(fleet());
    let said = r#"Some("tiny") Some(false) None false 2"#;
    assert_eq!(ask(&front, post("{}")).await, (200, said.into()));
}

#[tokio::test]
async fn an_estimator_of_ones_own_takes_the_place_of_the_default() {
    /// A token for each byte.
    #[derive(Clone, Debug)]
    struct Bytewise;

    impl EstimateTokens for Bytewise {
        fn tokens(&self, text: &str) -> u64 {
            text.len() as u64
        }
    }

    let reader = RequestReader::new().estimator(Bytewise);
    let front = FrontBuilder::with_reader(reader)
        .costs(NonZeroU64::MIN)
        .build(fleet());
    let (_, said) = ask(&front, post(r#"{"prompt": "twelve bytes"}"#)).await;
    assert!(said.contains("Some(12)"), "{said}");
}

/// A body that comes in pieces of one byte, so far apart.
fn slow(pieces: usize, apart: Duration) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    let pieces = stream::iter(0..pieces).then(move |_| async move {
        sleep(apart).await;
        Ok(Frame::data(Bytes::from_static(b" ")))
    });
    StreamBody::new(pieces)
}

#[tokio::test(start_paused = true)]
async fn a_body_may_take_any_time_but_not_stop() {
    let front = FrontBuilder::new().max_body_bytes(1000).build(fleet());
    let send = async |body| {
        let request = Request::post("/v1/completions").body(body).unwrap();
        ask(&front, request).await.0
    };
    let secs = Duration::from_secs;
    assert_eq!(
        send(slow(1000, secs(29)).boxed()).await,
        400,
        "blanks are no JSON"
    );
    assert_eq!(send(slow(2, secs(31)).boxed()).await, 408);
    assert_eq!(send(slow(1001, secs(0)).boxed()).await, 413);
}

#[tokio::test]
async fn all_bodies_together_are_bounded_and_give_their_room_back() {
    let front = FrontBuilder::new().max_memory(64 * 1024).build(fleet());
    let long = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(40 * 1024));
    let hang = || {
        let (mut parts, body) = post(long.clone()).into_parts();
        parts.uri = "/v1/hang".parse().unwrap();
        Request::from_parts(parts, body)
    };
    let mut hangs = tokio_test::task::spawn(front.clone().oneshot(hang()));
    assert!(hangs.poll().is_pending(), "its body is kept");
    let (status, why) = ask(&front, post(long.clone())).await;
    assert_eq!(status, 503, "{why}");
    assert!(why.contains(r#""type":"server_error""#), "{why}");
    let mut request = post(long.clone());
    *request.uri_mut() = "/v1/messages".parse().unwrap();
    let (status, why) = ask(&front, request).await;
    assert!(status == 503 && why.contains("api_error"), "{why}");
    assert_eq!(
        ask(&front, post("{}")).await.0,
        200,
        "there is room for a short one"
    );
    drop(hangs);
    assert_eq!(ask(&front, post(long)).await.0, 200);
}

#[tokio::test]
async fn what_is_refused_is_said_in_the_words_of_the_api() {
    let check = |parts: &http::request::Parts| match parts.headers.contains_key("x-bad") {
        true => Err(Problem::new(StatusCode::FORBIDDEN, "not with x-bad")),
        false => Ok(()),
    };
    let front = FrontBuilder::new().check(check).build(fleet());
    let unknown = r#"{"model": "huge"}"#;
    let openai = r#"{"error":{"message":"The model `huge` does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}"#;
    assert_eq!(ask(&front, post(unknown)).await, (404, openai.into()));
    let mut request = post(unknown);
    *request.uri_mut() = "/v1/messages".parse().unwrap();
    let anthropic = r#"{"type":"error","error":{"type":"not_found_error","message":"The model `huge` does not exist"}}"#;
    assert_eq!(ask(&front, request).await, (404, anthropic.into()));
    let mut request = post("not read");
    request.headers_mut().insert("x-bad", "1".parse().unwrap());
    assert_eq!(ask(&front, request).await.0, 403);
}

#[tokio::test]
async fn what_is_no_load_is_answered_without_a_worker() {
    let front = Front::new(fleet());
    let get = |path: &str| Request::get(path).body(Full::<Bytes>::default()).unwrap();
    assert_eq!(
        ask(&front, get("/health")).await,
        (200, r#"{"status":"ok"}"#.into())
    );
    let (status, models) = ask(&front, get("/v1/models")).await;
    assert!(status == 200 && models.contains("large") && models.contains("tiny"));
    assert_eq!(ask(&front, get("/v1/models/large")).await.0, 200);
    assert_eq!(ask(&front, get("/v1/models/huge")).await.0, 404);
    assert_eq!(ask(&front, get("/elsewhere")).await.0, 404);
}
