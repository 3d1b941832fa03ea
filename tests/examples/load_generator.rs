//! What the load generators send, and what they make of the answers.

use http_body::Body;
use http_body_util::BodyExt;
use overload_examples::{
    openai::{Endpoint, Generate},
    replay::{Arrival, Events, Outcome, Pace, Requests},
};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_request_has_the_lengths_of_the_trace_and_says_its_size() {
    let url = "http://127.0.0.1:8000/".parse().unwrap();
    let requests = Requests::new(&url, "a \"model\"", Some(100));
    assert_eq!(requests.url(), "http://127.0.0.1:8000/v1/completions");
    let arrival = |prompt_tokens| Arrival {
        at: Duration::ZERO,
        prompt_tokens,
        generated_tokens: 7,
    };
    for words in [0, 1, 100] {
        let body = requests.body(arrival(words));
        let size = body.size_hint().exact().unwrap();
        let body = body.collect().await.unwrap().to_bytes();
        assert_eq!(body.len() as u64, size);
        let parsed = Generate::parse(Endpoint::Completions, &body).unwrap();
        assert_eq!(parsed.prompt_tokens, u64::from(words));
        assert_eq!((parsed.max_tokens, parsed.stream), (7, true));
        assert_eq!(parsed.model, "a \"model\"");
    }
}

fn chunk(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n")
}

#[tokio::test(start_paused = true)]
async fn the_pace_is_that_of_the_tokens_however_they_are_cut() {
    let stream = [
        chunk("a"),
        chunk(" b"),
        chunk(" c"),
        chunk(""),
        "data: [DONE]\n\n".into(),
    ];
    let due = Instant::now();
    let mut events = Events::default();
    for (n, event) in stream.iter().enumerate() {
        let now = due + Duration::from_millis(100 + 20 * n as u64);
        for byte in event.as_bytes() {
            events.read(&[*byte], now);
        }
    }
    assert_eq!(
        events.outcome(due),
        Outcome::Succeeded(Pace {
            first_token: Duration::from_millis(100),
            per_token: Duration::from_millis(20),
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_its_end_has_failed() {
    let due = Instant::now();
    let mut events = Events::default();
    events.read(chunk("a").as_bytes(), due);
    assert!(matches!(events.outcome(due), Outcome::Failed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_with_an_error_has_failed() {
    let due = Instant::now();
    let mut events = Events::default();
    let error = "data: {\"error\":{\"message\":\"gone\"}}\n\n";
    let stream = [chunk("a"), error.into(), "data: [DONE]\n\n".into()];
    events.read(stream.concat().as_bytes(), due);
    assert!(matches!(events.outcome(due), Outcome::Failed(_)));
}
