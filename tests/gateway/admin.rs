//! What operators and workers say to the gateway.

use crate::{
    gateway::GatewayConfig,
    serving::{STUCK, prompt, text, value},
    support::{COMPLETIONS, Fleet, JSON, NOWHERE, NOWHERE_ELSE, Stub, eventually},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

const PUT: Method = Method::PUT;
const POST: Method = Method::POST;
const GET: Method = Method::GET;
const DELETE: Method = Method::DELETE;
const PATCH: Method = Method::PATCH;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

impl Fleet {
    /// The status and the body of an answer.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        let body = body.to_owned();
        let response = self.admin.send(method, path, headers, body).await.unwrap();
        (response.status().as_u16(), text(response).await)
    }

    async fn post_load(&self, body: Value) -> Value {
        let (status, answer) = self
            .ask(POST, "/worker_load", JSON, &body.to_string())
            .await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn rank(&self, id: &str) -> Value {
        self.worker(id).await.unwrap()["ranks"][0].clone()
    }

    async fn state(&self) -> (Value, Value) {
        let thresholds = value(self.admin.get("/busy_threshold").await).await;
        (self.workers().await, thresholds)
    }
}

#[tokio::test]
async fn a_registration_is_answered_with_the_workers_object() {
    let fleet = Fleet::empty().await;
    assert_eq!(fleet.workers().await, json!({"workers": []}));
    let more = json!({
        "dp_ranks": [1, 0], "kv_total_blocks": 4096, "max_num_batched_tokens": 8192, "draining": false,
    });
    let answer = fleet.register("b", NOWHERE, more).await;
    let rank = |dp_rank| {
        json!({
            "dp_rank": dp_rank, "active_decode_blocks": null, "kv_used_blocks": null,
            "active_prefill_tokens": null, "busy": false,
        })
    };
    let expected = json!({
        "id": "b", "url": NOWHERE, "origin": "reported", "eligible": true, "busy": false, "leased": false,
        "unreachable": false, "failing": false, "draining": false, "marks": [],
        "ranks": [rank(0), rank(1)],
        "kv_total_blocks": 4096, "max_num_batched_tokens": 8192, "models": ["tiny"],
    });
    assert_eq!(answer, expected);
    let least = fleet.register("a%2Fb", NOWHERE, json!({})).await;
    assert_eq!(least["id"], "a/b");
    assert_eq!(least["ranks"], json!([rank(0)]));
    assert_eq!(least["kv_total_blocks"], json!(null));
    assert_eq!(least["max_num_batched_tokens"], json!(null));
    let all = fleet.workers().await;
    assert_eq!(all, json!({"workers": [least, expected]}), "by id");
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong_and_change_nothing() {
    let fleet = Fleet::empty().await;
    fleet
        .register("a", NOWHERE, json!({"kv_total_blocks": 10}))
        .await;
    fleet
        .post_load(json!({"worker": "a", "kv_used_blocks": 3}))
        .await;
    let before = fleet.state().await;

    let text: &[(&str, &str)] = &[("content-type", "text/plain")];
    let worker = |member: &str| format!(r#"{{"url": "http://127.0.0.1:2", {member}}}"#);
    let good = worker(r#""dp_ranks": [0]"#);
    let long = "x".repeat(257);
    let too_many: Vec<String> = (0..1025).map(|n| format!("m{n}")).collect();
    let mut cases = vec![
        (400, PUT, "/workers/a", JSON, "{".to_owned()),
        (400, PUT, "/workers/a", JSON, String::new()),
        (400, PUT, "/workers/%FF", JSON, good.clone()),
        (400, DELETE, "/workers/%FF", JSON, String::new()),
        (415, PUT, "/workers/a", text, good.clone()),
        (415, PUT, "/workers/a", &[], good.clone()),
        (422, PUT, "/workers/a", JSON, "[]".into()),
        (422, PUT, "/workers/a", JSON, "null".into()),
        (422, PUT, "/workers/b", JSON, "{}".into()),
        (422, PUT, "/workers/a", JSON, r#"{"url": 7}"#.into()),
        (405, POST, "/workers", JSON, good.clone()),
        (405, POST, "/workers/a", JSON, good.clone()),
        (404, GET, "/workers/b", JSON, String::new()),
        (404, PATCH, "/workers/b", JSON, good.clone()),
        (400, DELETE, "/workers/a?leaving=1", JSON, String::new()),
        (404, DELETE, "/workers/b", JSON, String::new()),
        (404, PUT, "/workers/", JSON, good.clone()),
        (404, GET, "/", JSON, String::new()),
        (400, POST, "/worker_load", JSON, "{".into()),
        (400, POST, "/worker_load", JSON, String::new()),
        (405, GET, "/worker_load", JSON, String::new()),
        (415, POST, "/worker_load", text, r#"{"worker": "a"}"#.into()),
        (405, POST, "/metrics", JSON, String::new()),
        (405, DELETE, "/busy_threshold", JSON, String::new()),
        (
            415,
            POST,
            "/busy_threshold",
            text,
            r#"{"model": "tiny"}"#.into(),
        ),
        (400, POST, "/busy_threshold", JSON, "{".into()),
        (422, POST, "/busy_threshold", JSON, "{}".into()),
    ];
    let long_id = format!("/workers/{long}");
    cases.push((422, PUT, &long_id, JSON, good.clone()));
    for url in ["", "127.0.0.1:1", "ftp://a", "http://", "http://a?b", "/x"] {
        let body = json!({"url": url}).to_string();
        cases.push((422, PUT, "/workers/a", JSON, body));
    }
    let long_url = json!({"url": format!("http://a/{}", "x".repeat(2048))});
    cases.push((422, PUT, "/workers/a", JSON, long_url.to_string()));
    for member in [
        r#""dp_ranks": []"#,
        r#""dp_ranks": [0, 0]"#,
        r#""dp_ranks": [-1]"#,
        r#""dp_ranks": [0.5]"#,
        r#""dp_ranks": 0"#,
        r#""kv_total_blocks": -1"#,
        r#""kv_total_blocks": 1.5"#,
        r#""kv_total_blocks": "10""#,
        r#""max_num_batched_tokens": -1"#,
        r#""max_num_batched_tokens": 0.5"#,
        r#""draining": "yes""#,
        r#""ttl_ms": 0"#,
        r#""ttl_ms": -1"#,
        r#""loras": ["sql"]"#,
        r#""loras": {"sql": "huge"}"#,
        r#""loras": {"sql": "tiny", "sql": "tiny"}"#,
        r#""models": []"#,
        r#""models": [""]"#,
        r#""models": ["m", "m"]"#,
        r#""models": "m""#,
        &format!(r#""models": ["m", "{long}"]"#),
        &format!(r#""models": {}"#, json!(too_many)),
        &format!(r#""dp_ranks": {}"#, json!((0..1025).collect::<Vec<_>>())),
    ] {
        cases.push((422, PUT, "/workers/a", JSON, worker(member)));
    }
    for event in [
        "null",
        "7",
        "{}",
        r#"{"worker": 7}"#,
        r#"{"worker": "a", "dp_rank": -1}"#,
        r#"{"worker": "a", "dp_rank": 0.5}"#,
        r#"{"worker": "a", "dp_rank": 4294967296}"#,
        r#"{"worker": "a", "kv_used_blocks": -1}"#,
        r#"{"worker": "a", "kv_used_blocks": 1.5}"#,
        r#"{"worker": "a", "active_decode_blocks": "7"}"#,
        r#"{"worker": "a", "active_prefill_tokens": 18446744073709551616}"#,
        r#"{"worker": "a", "active_prefill_tokens": true}"#,
    ] {
        cases.push((422, POST, "/worker_load", JSON, event.into()));
        let good = r#"{"worker": "a", "kv_used_blocks": 9}"#;
        cases.push((
            422,
            POST,
            "/worker_load",
            JSON,
            format!("[{good}, {event}]"),
        ));
    }
    for (status, thresholds) in [
        (400, r#""active_decode_blocks_threshold": 1.1"#),
        (400, r#""active_decode_blocks_threshold": -0.1"#),
        (400, r#""active_prefill_tokens_threshold_frac": -1"#),
        (
            400,
            r#""active_prefill_tokens_threshold": 5, "active_decode_blocks_threshold": 2"#,
        ),
        (422, r#""active_prefill_tokens_threshold": -1"#),
        (422, r#""active_prefill_tokens_threshold": 1.5"#),
        (422, r#""active_prefill_tokens_threshold": "1""#),
        (422, r#""active_decode_block_threshold": 0.5"#),
    ] {
        let body = format!(r#"{{"model": "tiny", {thresholds}}}"#);
        cases.push((status, POST, "/busy_threshold", JSON, body));
    }
    let unknown = r#"{"model": "huge", "active_decode_blocks_threshold": 0.5}"#;
    cases.push((404, POST, "/busy_threshold", JSON, unknown.into()));
    let huge = format!("[{}", " ".repeat(5 * 1024 * 1024));
    cases.push((413, POST, "/worker_load", JSON, huge));

    for (status, method, path, headers, body) in cases {
        let (got, answer) = fleet.ask(method.clone(), path, headers, &body).await;
        let body = body.get(..200).unwrap_or(&body);
        assert_eq!(got, status, "{method} {path} {body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect(body);
        let members = answer.as_object().unwrap();
        assert_eq!(members.len(), 1, "{method} {path} {body}");
        assert!(
            !members["error"].as_str().unwrap().is_empty(),
            "{method} {path} {body}"
        );
    }
    assert_eq!(fleet.state().await, before);
}

#[tokio::test]
async fn the_same_url_keeps_the_load_and_another_is_a_fresh_worker() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let stub = Stub::answering(529, &[]).await;
    let capacity = json!({"kv_total_blocks": 100, "max_num_batched_tokens": 10});
    fleet.register("a", &stub.url, capacity).await;
    fleet
        .post_load(json!({"worker": "a", "kv_used_blocks": 60, "active_prefill_tokens": 5}))
        .await;
    let body = r#"{"model": "tiny", "active_decode_blocks_threshold": 0.5}"#;
    assert_eq!(fleet.ask(POST, "/busy_threshold", JSON, body).await.0, 200);

    // The threshold, and a capacity, take effect with this registration.
    let same = fleet
        .register("a", &stub.url, json!({"kv_total_blocks": 100}))
        .await;
    assert_eq!(same["busy"], true);
    assert_eq!(same["ranks"][0]["kv_used_blocks"], 60);
    assert_eq!(same["ranks"][0]["active_prefill_tokens"], 5);
    assert_eq!(same["max_num_batched_tokens"], json!(10), "absent stays");

    let unknown = json!({"kv_total_blocks": null});
    let unknown = fleet
        .register("a", &format!("{}/", stub.url), unknown)
        .await;
    assert_eq!(unknown["kv_total_blocks"], json!(null));
    assert_eq!(
        unknown["busy"], false,
        "without a capacity the check cannot hold"
    );
    assert_eq!(
        unknown["ranks"][0]["kv_used_blocks"], 60,
        "a slash is no other URL"
    );

    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    let leased = fleet
        .register("a", &stub.url, json!({"kv_total_blocks": 100}))
        .await;
    assert_eq!(
        (&leased["leased"], &leased["busy"]),
        (&json!(true), &json!(true))
    );

    let other = Stub::answering(200, &[]).await;
    let fresh = fleet
        .register("a", &other.url, json!({"kv_total_blocks": 100}))
        .await;
    assert_eq!(
        (&fresh["eligible"], &fresh["leased"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(fresh["ranks"][0]["kv_used_blocks"], json!(null));
    let served = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(served.status(), StatusCode::OK);
    assert_eq!(fleet.worker("a").await.unwrap(), fresh);
    assert_eq!((stub.calls(), other.calls()), (1, 1));
}

#[tokio::test]
async fn ranks_that_stay_keep_their_load_and_the_others_are_gone() {
    let fleet = Fleet::empty().await;
    fleet
        .register("a", NOWHERE, json!({"dp_ranks": [0, 1]}))
        .await;
    let loads = json!([
        {"worker": "a", "dp_rank": 0, "kv_used_blocks": 5},
        {"worker": "a", "dp_rank": 1, "kv_used_blocks": 6},
    ]);
    assert_eq!(
        fleet.post_load(loads).await,
        json!({"accepted": 2, "dropped": 0})
    );
    let ranks = fleet
        .register("a", NOWHERE, json!({"dp_ranks": [1, 2]}))
        .await["ranks"]
        .clone();
    assert_eq!(
        (&ranks[0]["dp_rank"], &ranks[0]["kv_used_blocks"]),
        (&json!(1), &json!(6))
    );
    assert_eq!(
        (&ranks[1]["dp_rank"], &ranks[1]["kv_used_blocks"]),
        (&json!(2), &json!(null))
    );
}

#[tokio::test]
async fn a_worker_that_drains_gets_nothing_new_and_finishes_what_it_has() {
    let fleet = Fleet::empty().await;
    let worker = crate::serving::worker(Some((2, 0)), STUCK).await;
    fleet.register("a", worker.url(), json!({})).await;
    let running = fleet.public.start(2).await;
    for url in [worker.url(), NOWHERE_ELSE, worker.url()] {
        // At another URL too, and before anything is routed there.
        let drained = fleet.register("a", url, json!({"draining": true})).await;
        assert_eq!(
            (&drained["draining"], &drained["eligible"]),
            (&json!(true), &json!(false))
        );
        let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), 503, "{url}");
    }
    assert_eq!(worker.admission().unwrap().snapshot().in_engine, 1);
    let back = fleet
        .register("a", worker.url(), json!({"draining": false}))
        .await;
    assert_eq!(
        (&back["draining"], &back["eligible"]),
        (&json!(false), &json!(true))
    );
    let _second = fleet.public.start(2).await;
    drop(running);
    eventually("the first one ended", async || {
        worker.admission().unwrap().snapshot().in_engine == 1
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_deleted_gets_nothing_new_and_finishes_what_it_has() {
    let fleet = Fleet::empty().await;
    let worker = crate::serving::worker(Some((1, 0)), STUCK).await;
    fleet.register("a", worker.url(), json!({})).await;
    let _running = fleet.public.start(2).await;
    let (status, body) = fleet.ask(DELETE, "/workers/a", &[], "").await;
    assert_eq!((status, &*body), (204, ""));
    assert_eq!(fleet.workers().await, json!({"workers": []}));
    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 503);
    assert_eq!(worker.admission().unwrap().snapshot().in_engine, 1);
    assert_eq!(fleet.ask(DELETE, "/workers/a", &[], "").await.0, 404);
    let late = fleet
        .post_load(json!({"worker": "a", "kv_used_blocks": 1}))
        .await;
    assert_eq!(late, json!({"accepted": 0, "dropped": 1}));
    assert_eq!(
        fleet.workers().await,
        json!({"workers": []}),
        "nothing is revived"
    );
}

#[tokio::test]
async fn load_events_come_alone_or_in_arrays_and_say_how_many_were_of_use() {
    let fleet = Fleet::empty().await;
    fleet.register("a", NOWHERE, json!({"dp_ranks": [0]})).await;
    let one = json!({"worker": "a", "active_decode_blocks": 1, "kv_used_blocks": 2, "active_prefill_tokens": 3});
    assert_eq!(
        fleet.post_load(one).await,
        json!({"accepted": 1, "dropped": 0})
    );
    let expected = json!({
        "dp_rank": 0, "active_decode_blocks": 1, "kv_used_blocks": 2, "active_prefill_tokens": 3,
        "busy": false,
    });
    assert_eq!(fleet.rank("a").await, expected);
    let many = json!([
        {"worker": "a", "dp_rank": 0, "kv_used_blocks": 9},
        {"worker": "a", "dp_rank": 1, "kv_used_blocks": 9},
        {"worker": "b", "kv_used_blocks": 9},
        {"worker": "a", "active_decode_blocks": 0, "active_prefill_tokens": null},
    ]);
    assert_eq!(
        fleet.post_load(many).await,
        json!({"accepted": 2, "dropped": 2})
    );
    let expected = json!({
        "dp_rank": 0, "active_decode_blocks": 0, "kv_used_blocks": 9, "active_prefill_tokens": 3,
        "busy": false,
    });
    assert_eq!(fleet.rank("a").await, expected, "absent leaves, 0 clears");
    assert_eq!(
        fleet.post_load(json!([])).await,
        json!({"accepted": 0, "dropped": 0})
    );
}

#[tokio::test]
async fn a_worker_that_is_silent_for_too_long_is_removed_but_not_a_permanent_one() {
    let fleet = Fleet::start(GatewayConfig {
        registration_ttl: Duration::from_millis(50),
        workers: vec![("permanent".into(), NOWHERE.parse().unwrap())],
        ..GatewayConfig::default()
    })
    .await;
    // A registration does not make it one that can expire.
    fleet
        .register("permanent", NOWHERE, json!({"kv_total_blocks": 7}))
        .await;
    fleet.register("silent", NOWHERE_ELSE, json!({})).await;
    eventually("the silent one is gone", async || {
        fleet.worker("silent").await.is_none()
    })
    .await;
    let again = fleet.register("silent", NOWHERE_ELSE, json!({})).await;
    assert_eq!(again["eligible"], true);
    eventually("it is gone again", async || {
        fleet.worker("silent").await.is_none()
    })
    .await;
    assert_eq!(
        fleet.worker("permanent").await.unwrap()["kv_total_blocks"],
        7
    );
}

#[tokio::test]
async fn thresholds_are_read_and_set_as_the_reference_does() {
    let fleet = Fleet::empty().await;
    let entry = |model: &str, decode: Value, tokens: Value, frac: Value| {
        json!({
            "model": model, "active_decode_blocks_threshold": decode,
            "active_prefill_tokens_threshold": tokens,
            "active_prefill_tokens_threshold_frac": frac,
        })
    };
    let post = async |body: Value| {
        let (status, answer) = fleet
            .ask(POST, "/busy_threshold", JSON, &body.to_string())
            .await;
        (status, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let null = Value::Null;
    let unset = |model| entry(model, null.clone(), null.clone(), null.clone());
    assert_eq!(post(json!({"model": "tiny"})).await, (200, unset("tiny")));
    assert_eq!(post(json!({"model": "huge"})).await, (200, unset("huge")));
    let set = json!({"model": "tiny", "active_decode_blocks_threshold": 0.9, "active_prefill_tokens_threshold": 5});
    let now = entry("tiny", json!(0.9), json!(5), null.clone());
    assert_eq!(post(set).await, (200, now));
    let set = json!({"model": "tiny", "active_prefill_tokens_threshold_frac": 1.5, "active_prefill_tokens_threshold": null});
    let now = entry("tiny", json!(0.9), null.clone(), json!(1.5));
    assert_eq!(post(set).await, (200, now.clone()));
    let all = value(fleet.admin.get("/busy_threshold").await).await;
    assert_eq!(all, json!({"thresholds": [now]}));
}

#[tokio::test]
async fn clients_cannot_reach_what_is_for_operators_nor_the_other_way_round() {
    let fleet = Fleet::empty().await;
    fleet.register("a", NOWHERE, json!({})).await;
    let before = fleet.state().await;
    for (method, path, body) in [
        (GET, "/workers", json!(null)),
        (PUT, "/workers/b", json!({"url": NOWHERE})),
        (DELETE, "/workers/a", json!(null)),
        (
            POST,
            "/worker_load",
            json!({"worker": "a", "kv_used_blocks": 1}),
        ),
        (GET, "/busy_threshold", json!(null)),
        (
            POST,
            "/busy_threshold",
            json!({"model": "tiny", "active_decode_blocks_threshold": 0.0}),
        ),
        (GET, "/metrics", json!(null)),
    ] {
        let response = fleet
            .public
            .send(method, path, JSON, body.to_string())
            .await;
        assert_eq!(response.unwrap().status(), StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(fleet.state().await, before);
    for path in [COMPLETIONS, "/v1/models", "/health"] {
        let (status, answer) = fleet.ask(POST, path, JSON, &prompt(1).to_string()).await;
        assert_eq!(status, 404, "{path}: {answer}");
    }
}

#[tokio::test]
async fn an_update_changes_what_it_names_and_nothing_else() {
    let fleet = Fleet::empty().await;
    let known = json!({"kv_total_blocks": 100, "max_num_batched_tokens": 10, "dp_ranks": [0, 1]});
    let before = fleet.register("a", NOWHERE, known).await;
    for method in [PUT, PATCH] {
        let draining = |draining: bool| json!({ "draining": draining }).to_string();
        let (status, drained) = fleet
            .ask(method.clone(), "/workers/a", JSON, &draining(true))
            .await;
        assert_eq!(status, 200, "{drained}");
        let drained = parsed(&drained);
        assert_eq!(drained["draining"], true);
        for member in ["url", "kv_total_blocks", "max_num_batched_tokens", "ranks"] {
            assert_eq!(drained[member], before[member], "{member}");
        }
        let (status, back) = fleet
            .ask(method, "/workers/a", JSON, &draining(false))
            .await;
        assert_eq!((status, parsed(&back)), (200, before.clone()));
    }
    let (status, read) = fleet.ask(GET, "/workers/a", &[], "").await;
    assert_eq!((status, parsed(&read)), (200, before));
}

#[tokio::test]
async fn a_static_worker_that_was_deleted_is_brought_back_by_an_operator_alone() {
    let fleet = Fleet::start(GatewayConfig {
        workers: vec![("a".into(), NOWHERE.parse().unwrap())],
        ..GatewayConfig::default()
    })
    .await;
    // It says itself that it goes, and is expected back.
    let (status, stays) = fleet.ask(DELETE, "/workers/a?leaving=true", &[], "").await;
    assert_eq!(status, 200, "{stays}");
    assert_eq!(fleet.worker("a").await.unwrap()["origin"], "static");

    let (status, said) = fleet.ask(DELETE, "/workers/a", &[], "").await;
    assert_eq!(status, 200);
    let said = parsed(&said);
    assert_eq!(said["removed"], "a");
    assert!(said["message"].as_str().unwrap().contains("PUT"), "{said}");
    let put = |ttl: Value| json!({"url": NOWHERE, "ttl_ms": ttl}).to_string();
    let (status, refused) = fleet.ask(PUT, "/workers/a", JSON, &put(json!(9000))).await;
    assert_eq!(status, 409, "{refused}");
    assert!(refused.contains("operator"), "{refused}");
    assert!(fleet.worker("a").await.is_none());
    assert_eq!(
        fleet
            .ask(PUT, "/workers/a", JSON, &put(Value::Null))
            .await
            .0,
        200
    );
    assert_eq!(fleet.worker("a").await.unwrap()["origin"], "static");
}

#[tokio::test]
async fn requests_for_an_adapter_go_to_the_worker_that_has_it() {
    let fleet = Fleet::empty().await;
    let stub = Stub::answering(200, &[]).await;
    let adapter = json!({"models": ["large"], "loras": {"sql": "large"}});
    let worker = fleet.register("a", &stub.url, adapter).await;
    assert_eq!(worker["models"], json!(["large", "sql"]));
    let ask = json!({"model": "sql", "prompt": "word"});
    let answer = fleet.public.post(COMPLETIONS, &ask).await;
    assert_eq!((answer.status(), stub.calls()), (StatusCode::OK, 1));
}

#[tokio::test]
async fn the_series_of_workers_that_are_gone_end() {
    let fleet = Fleet::empty().await;
    for n in 0..20 {
        let id = format!("w{n}");
        fleet.register(&id, NOWHERE, json!({})).await;
        fleet
            .post_load(json!({"worker": &id, "kv_used_blocks": 1}))
            .await;
        let path = format!("/workers/{id}");
        assert_eq!(fleet.ask(DELETE, &path, &[], "").await.0, 204);
    }
    fleet.register("stays", NOWHERE, json!({})).await;
    let metrics = fleet.metrics().await;
    let of_workers = metrics.lines().filter(|line| line.contains("worker_id="));
    assert_eq!(of_workers.count(), 3, "{metrics}");
}
