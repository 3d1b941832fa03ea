//! The mock engine as a service.

use bytes::Bytes;
use futures::FutureExt;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use overload_examples::{
    engine::{Ledger, Timing},
    openai::{Endpoint, Generate},
    worker::Engine,
};
use std::{convert::Infallible, num::NonZeroU64, sync::Arc, time::Duration};
use tokio::time::Instant;
use tower::Service;

const SLOW: Timing = Timing {
    prefill_tokens_per_second: 100.0,
    decode_tokens_per_second: 50.0,
};

fn engine(timing: Timing) -> (Engine, Arc<Ledger>) {
    let ledger = Arc::new(Ledger::new(1, NonZeroU64::new(16).unwrap()));
    (Engine::new(Arc::clone(&ledger), timing), ledger)
}

fn request(stream: bool) -> Request<Generate> {
    Request::new(Generate {
        endpoint: Endpoint::Completions,
        model: "tiny".into(),
        prompt_tokens: 10,
        choices: 1,
        max_tokens: 3,
        stream,
        include_usage: false,
    })
}

fn occupied(ledger: &Ledger) -> (u64, u64) {
    let load = ledger.snapshot().next().unwrap();
    (load.prefill_tokens, load.kv_blocks)
}

fn events(frame: Option<Result<Frame<Bytes>, Infallible>>) -> usize {
    let data = frame.unwrap().unwrap().into_data().unwrap();
    data.windows(6).filter(|window| window == b"data: ").count()
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_its_head_at_once_and_a_frame_for_each_token() {
    let (mut engine, ledger) = engine(SLOW);
    let start = Instant::now();
    let mut body = engine.call(request(true)).await.unwrap().into_body();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(occupied(&ledger), (10, 1));
    assert_eq!(events(body.frame().await), 1);
    assert_eq!(start.elapsed(), Duration::from_millis(100));
    assert_eq!(occupied(&ledger), (0, 1));
    assert_eq!(events(body.frame().await), 1);
    // With the reason and `[DONE]`: there is nothing to wait for.
    assert_eq!(events(body.frame().await), 3);
    assert_eq!(start.elapsed(), Duration::from_millis(140));
    assert!(body.is_end_stream());
    assert_eq!(occupied(&ledger), (0, 0));
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_comes_with_the_last_token() {
    let (mut engine, ledger) = engine(SLOW);
    let start = Instant::now();
    let body = engine.call(request(false)).await.unwrap().into_body();
    assert_eq!(start.elapsed(), Duration::from_millis(140));
    assert_eq!(occupied(&ledger), (0, 0));
    let body = body.collect().await.unwrap().to_bytes();
    let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["choices"][0]["text"], "and tokens flow");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_or_the_body_empties_the_engine() {
    let (mut engine, ledger) = engine(SLOW);
    let mut whole = engine.call(request(false));
    assert!((&mut whole).now_or_never().is_none());
    assert_eq!(occupied(&ledger), (10, 1));
    drop(whole);
    assert_eq!(occupied(&ledger), (0, 0));

    let mut body = engine.call(request(true)).await.unwrap().into_body();
    body.frame().await;
    assert_eq!(occupied(&ledger), (0, 1));
    drop(body);
    assert_eq!(occupied(&ledger), (0, 0));
}

#[test]
fn an_infinitely_fast_stream_is_one_frame() {
    let (mut engine, _) = engine(Timing::INSTANT);
    let response = engine.call(request(true)).now_or_never().unwrap();
    let mut body = response.unwrap().into_body();
    assert_eq!(events(body.frame().now_or_never().unwrap()), 5);
    assert!(body.is_end_stream());
}
