//! A worker over real sockets.

use crate::support::{Client, STUCK, config, events, prompt, text, value, worker};
use axum::{
    Json, Router,
    extract::State,
    routing::{post, put},
};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use overload_examples::{
    engine::{RankLoad, Timing},
    serve::Server,
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_chat_streams_valid_objects_the_usage_and_its_end() {
    let worker = worker(None, Timing::INSTANT).await;
    let client = Client::new(worker.url());
    let request = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true},
    });
    let response = client.post(CHAT, &request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let stream = text(response).await;
    let events = events(&stream);
    let (done, objects) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let objects: Vec<Value> = objects
        .iter()
        .map(|object| serde_json::from_str(object).unwrap())
        .collect();
    assert!(objects.iter().all(|object| {
        object["object"] == "chat.completion.chunk"
            && object["model"] == "tiny"
            && object["id"] == objects[0]["id"]
    }));
    let deltas: Vec<_> = objects.iter().map(|object| &object["choices"][0]).collect();
    assert_eq!(deltas[0]["delta"]["role"], "assistant");
    assert_eq!(deltas[1]["delta"]["content"], "and");
    assert_eq!(deltas[2]["delta"]["content"], " tokens");
    assert_eq!(deltas[3]["finish_reason"], "length");
    assert_eq!(objects[4]["choices"], json!([]));
    assert_eq!(
        objects[4]["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    );
    assert_eq!(objects.len(), 5);
}

#[tokio::test]
async fn a_completion_that_is_not_streamed_is_one_object_with_its_usage() {
    let worker = worker(None, Timing::INSTANT).await;
    let client = Client::new(worker.url());
    let request = json!({"model": "tiny", "prompt": ["one two", "three"]});
    let response = client.post(COMPLETIONS, &request).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    assert!(response.headers().contains_key("content-length"));
    let object = value(response).await;
    assert_eq!(object["object"], "text_completion");
    assert_eq!(object["choices"].as_array().unwrap().len(), 2);
    assert_eq!(
        object["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 32, "total_tokens": 35})
    );
}

#[tokio::test]
async fn a_burst_gets_exactly_the_slots_and_the_queue() {
    let worker = worker(Some((2, 3)), STUCK).await;
    let client = Client::new(worker.url());
    let (heads, mut answered) = mpsc::channel(50);
    for _ in 0..50 {
        let (client, heads) = (client.clone(), heads.clone());
        tokio::spawn(async move {
            let response = client.post(COMPLETIONS, &prompt(2)).await;
            let _ = heads.send(response).await;
        });
    }
    let (mut running, mut refused) = (Vec::new(), 0);
    while running.len() + refused < 47 {
        let response = answered.recv().await.unwrap();
        match response.status().as_u16() {
            200 => running.push(response),
            529 => refused += 1,
            other => panic!("status {other}"),
        }
    }
    assert_eq!((running.len(), refused), (2, 45));
    let snapshot = worker.admission().unwrap().snapshot();
    assert_eq!((snapshot.in_engine, snapshot.queued), (2, 3));
}

#[tokio::test]
async fn a_full_worker_refuses_with_the_references_answer() {
    let worker = worker(Some((1, 0)), STUCK).await;
    let client = Client::new(worker.url());
    let _running = client.start(2).await;
    let refused = client.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    assert_eq!(refused.headers()["content-type"], "application/json");
    assert_eq!(
        text(refused).await,
        r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#
    );
}

#[tokio::test]
async fn what_is_outside_of_the_cap_answers_while_the_worker_is_full() {
    let worker = worker(Some((1, 0)), STUCK).await;
    let client = Client::new(worker.url());
    let _running = client.start(2).await;
    assert_eq!(client.get("/health").await.status(), StatusCode::OK);
    let models = value(client.get("/v1/models").await).await;
    assert_eq!(models["data"][0]["id"], "tiny");
    let metrics = text(client.get("/metrics").await).await;
    assert!(metrics.contains("dynamo_engine_request 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_bad_request_gets_openais_error_and_takes_no_slot() {
    // Full: whatever came to the admission would be refused with 529.
    let worker = worker(Some((1, 0)), STUCK).await;
    let client = Client::new(worker.url());
    let _running = client.start(2).await;
    let chat = |model: Value, max_tokens: Value| {
        json!({
            "model": model, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "hi"}],
        })
        .to_string()
    };
    for (path, body, status, param) in [
        (CHAT, "{".into(), 400, json!(null)),
        (CHAT, chat(json!(null), json!(1)), 400, json!("model")),
        (
            CHAT,
            chat(json!("tiny"), json!(-1)),
            400,
            json!("max_tokens"),
        ),
        (
            COMPLETIONS,
            chat(json!("tiny"), json!(1)),
            400,
            json!("prompt"),
        ),
        (CHAT, chat(json!("huge"), json!(1)), 404, json!("model")),
        (
            "/v1/embeddings",
            chat(json!("tiny"), json!(1)),
            404,
            json!(null),
        ),
        ("/v1/models", String::new(), 405, json!(null)),
    ] {
        let response = client.send(Method::POST, path, &[], body.clone()).await;
        let response = response.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path} {body}");
        let error = &value(response).await["error"];
        assert_eq!(error["type"], "invalid_request_error", "{path} {body}");
        assert_eq!(error["param"], param, "{path} {body}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    let snapshot = worker.admission().unwrap().snapshot();
    assert_eq!((snapshot.in_engine, snapshot.queued), (1, 0));
}

#[tokio::test]
async fn a_client_that_leaves_makes_room_for_the_next() {
    let worker = worker(Some((1, 1)), STUCK).await;
    let client = Client::new(worker.url());
    let loads = || {
        let load = worker.loads()[0];
        (load.prefill_tokens, load.kv_blocks)
    };
    let running = client.start(2).await;
    let queued = tokio::spawn({
        let client = client.clone();
        async move { client.start(2).await }
    });
    drop(running);
    // The head of a queued request comes when it is in the engine.
    let mut running = queued.await.unwrap().into_body();
    assert!(running.frame().await.unwrap().is_ok());
    assert_eq!(loads(), (0, 1), "the first one's block is free");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_its_place() {
    let worker = worker(Some((1, 1)), STUCK).await;
    let client = Client::new(worker.url());
    let _running = client.start(2).await;
    let queued = tokio::spawn({
        let client = client.clone();
        async move { client.start(2).await }
    });
    let admission = worker.admission().unwrap();
    while admission.snapshot().queued == 0 {
        tokio::task::yield_now().await;
    }
    queued.abort();
    while admission.snapshot().queued == 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(admission.snapshot().in_engine, 1);
}

#[tokio::test]
async fn a_request_that_will_not_wait_is_refused_while_another_would_be_queued() {
    let worker = worker(Some((1, 1)), STUCK).await;
    let client = Client::new(worker.url());
    let running = client.start(2).await;
    let send = |value: &'static str| {
        let (client, body) = (client.clone(), prompt(1).to_string());
        async move {
            let headers = [("x-no-queue", value)];
            client.send(Method::POST, COMPLETIONS, &headers, body).await
        }
    };
    assert_eq!(send("true").await.unwrap().status().as_u16(), 529);
    let queued = tokio::spawn(send("false"));
    let admission = worker.admission().unwrap();
    while admission.snapshot().queued == 0 {
        tokio::task::yield_now().await;
    }
    drop(running);
    assert_eq!(queued.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn workers_in_one_process_have_metrics_of_their_own() {
    let full = worker(Some((1, 0)), STUCK).await;
    let idle = worker(Some((1, 0)), STUCK).await;
    let (client, other) = (Client::new(full.url()), Client::new(idle.url()));
    let _running = client.start(2).await;
    let refused = client.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    let full = text(client.get("/metrics").await).await;
    assert!(
        full.contains("dynamo_rejection_request_total 1\n"),
        "{full}"
    );
    assert!(!full.contains("frontend"), "{full}");
    let idle = text(other.get("/metrics").await).await;
    assert!(
        idle.contains("dynamo_rejection_request_total 0\n"),
        "{idle}"
    );
    assert!(idle.contains("dynamo_engine_request 0\n"), "{idle}");
}

#[tokio::test]
async fn ranks_are_loaded_in_turn() {
    let worker = Worker::start(WorkerConfig {
        dp_ranks: 2,
        timing: Timing {
            prefill_tokens_per_second: 1e-9,
            decode_tokens_per_second: 0.0,
        },
        ..config(None, STUCK)
    })
    .await
    .unwrap();
    let client = Client::new(worker.url());
    let _running = [
        client.start(1).await,
        client.start(1).await,
        client.start(1).await,
    ];
    let load = |requests| RankLoad {
        prefill_tokens: 3 * requests,
        kv_blocks: requests,
    };
    assert_eq!(worker.loads(), [load(2), load(1)]);
}

#[tokio::test]
async fn a_worker_that_drains_leaves_its_gateway_finishes_and_takes_nothing_new() {
    let (calls, mut called) = mpsc::channel::<&str>(1024);
    let registered = put(async |State(calls): State<mpsc::Sender<_>>| {
        let _ = calls.send("put").await;
        Json(json!({}))
    })
    .delete(async |State(calls): State<mpsc::Sender<_>>| {
        let _ = calls.send("delete").await;
        StatusCode::NO_CONTENT
    });
    let admin = Router::new()
        .route("/workers/{id}", registered)
        .route(
            "/worker_load",
            post(async || Json(json!({"accepted": 1, "dropped": 0}))),
        )
        .with_state(calls);
    let admin = Server::start("127.0.0.1:0".parse().unwrap(), admin)
        .await
        .unwrap();
    let worker = Worker::start(WorkerConfig {
        register: Some(format!("http://{}", admin.address()).parse().unwrap()),
        ..config(
            Some((1, 1)),
            Timing {
                prefill_tokens_per_second: 0.0,
                decode_tokens_per_second: 100.0,
            },
        )
    })
    .await
    .unwrap();
    assert_eq!(called.recv().await, Some("put"));
    let client = Client::new(worker.url());
    let admission = worker.admission().unwrap().clone();
    let running = client.start(20).await;
    let queued = tokio::spawn({
        let client = client.clone();
        async move { client.start(2).await }
    });
    while admission.snapshot().queued == 0 {
        tokio::task::yield_now().await;
    }
    let drained = tokio::spawn(worker.drain());
    assert_eq!(called.recv().await, Some("delete"));
    assert_eq!(events(&text(running).await).len(), 22);
    assert_eq!(events(&text(queued.await.unwrap()).await).len(), 4);
    drained.await.unwrap();
    let late = client.send(Method::GET, "/health", &[], "").await;
    assert!(late.is_err(), "nobody listens any more");
}
