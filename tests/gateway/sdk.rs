//! What a client of OpenAI's API makes of the gateway's answers.

use crate::{
    gateway::GatewayConfig,
    serving::STUCK,
    support::{Fleet, OVERLOADED, Stub, UNAVAILABLE},
};
use async_openai::{
    Client,
    config::OpenAIConfig,
    error::OpenAIError,
    types::chat::{
        ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest,
        CreateChatCompletionRequestArgs,
    },
};
use axum::{body::Body, response::Response};
use futures::StreamExt;
use overload_examples::engine::Timing;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

fn sdk(fleet: &Fleet) -> Client<OpenAIConfig> {
    let base = format!("http://{}/v1", fleet.gateway.address());
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key("none"))
}

fn chat() -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessageArgs::default()
        .content("one two three")
        .build()
        .unwrap();
    CreateChatCompletionRequestArgs::default()
        .model("tiny")
        .messages([message.into()])
        .max_completion_tokens(4_u32)
        .build()
        .unwrap()
}

#[tokio::test]
async fn an_answer_is_understood() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    let answer = sdk(&fleet).chat().create(chat()).await.unwrap();
    assert_eq!(answer.model, "tiny");
    assert!(answer.choices[0].message.content.is_some());
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 4));
}

#[tokio::test]
async fn a_stream_is_understood() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    let stream = sdk(&fleet).chat().create_stream(chat()).await.unwrap();
    let chunks: Vec<_> = stream.map(Result::unwrap).collect().await;
    let tokens = chunks.iter().flat_map(|chunk| &chunk.choices);
    let tokens = tokens.filter(|choice| {
        choice
            .delta
            .content
            .as_ref()
            .is_some_and(|text| !text.is_empty())
    });
    assert_eq!(tokens.count(), 4);
}

/// The first refusal says when to come again. Without that the client would
/// have spent its three attempts while the worker is leased.
#[tokio::test]
async fn a_refusal_is_tried_again_when_it_said_to() {
    let refused = Arc::new(AtomicBool::new(false));
    let stub = Stub::start(move |_| {
        if !refused.swap(true, Ordering::SeqCst) {
            let refusal = Response::builder().status(529).header("retry-after", "2");
            return refusal.body(Body::empty()).unwrap();
        }
        let answer = json!({
            "id": "1", "object": "chat.completion", "created": 1, "model": "tiny",
            "choices": [{
                "index": 0, "finish_reason": "stop", "logprobs": null,
                "message": {"role": "assistant", "content": "hello"},
            }],
        });
        let answer = Body::from(answer.to_string());
        Response::builder()
            .header("content-type", "application/json")
            .body(answer)
            .unwrap()
    })
    .await;
    let fleet = Fleet::empty().await;
    fleet.register("a", &stub.url, json!({})).await;
    let answer = sdk(&fleet).chat().create(chat()).await.unwrap();
    assert_eq!(answer.choices[0].message.content.as_deref(), Some("hello"));
    assert_eq!(stub.calls(), 2);
    let refusals =
        r#"dynamo_frontend_model_rejection_total{model="tiny",endpoint="chat_completions"} 1"#;
    let metrics = fleet.metrics().await;
    assert!(
        metrics.contains(refusals),
        "the second attempt came when there was room: {metrics}"
    );
}

/// The status and the body that the client gave up with, and how often it
/// asked.
async fn given_up(fleet: &Fleet, counter: &str) -> (u16, String, u64) {
    let error = sdk(fleet).chat().create(chat()).await.unwrap_err();
    let OpenAIError::ApiError(error) = error else {
        panic!("not the gateway's answer: {error}");
    };
    let series = format!(r#"{counter}{{model="tiny",endpoint="chat_completions"}} "#);
    let metrics = fleet.metrics().await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    let attempts = line.unwrap().parse().unwrap();
    (
        error.status_code.as_u16(),
        error.api_error.message,
        attempts,
    )
}

#[tokio::test]
async fn overload_that_lasts_is_tried_again_and_then_told() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let _worker = fleet.join("a", Some((1, 0)), STUCK).await;
    let _running = fleet.public.start(2).await;
    let counter = "dynamo_frontend_model_rejection_total";
    let given_up = given_up(&fleet, counter).await;
    assert_eq!(given_up, (529, OVERLOADED.into(), 4), "one, and three more");
}

#[tokio::test]
async fn no_worker_is_tried_again_and_then_told() {
    let fleet = Fleet::empty().await;
    let counter = "dynamo_frontend_model_unavailable_total";
    let given_up = given_up(&fleet, counter).await;
    assert_eq!(
        given_up,
        (503, UNAVAILABLE.into(), 4),
        "one, and three more"
    );
}
