use super::{Arrival, Outcome, Pace};
use crate::client::{self, HttpClient};
use bytes::{BufMut, Bytes, BytesMut};
use http::{Method, Request, StatusCode, Uri, header::CONTENT_TYPE};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};
use tower_overload::BoxError;

/// A word of a prompt: as short as one can be.
const WORD: &[u8] = b"a ";
const REFUSED: u16 = 529;

/// Makes and sends the requests of a replay, and reads the answers.
#[derive(Debug)]
pub struct Requests {
    client: HttpClient<Slices>,
    url: String,
    /// All prompts are slices of the longest one.
    words: Bytes,
    /// A JSON string.
    model: String,
}

impl Requests {
    /// Requests to the gateway at `url`, with prompts up to the longest one.
    pub fn new(url: &Uri, model: &str, longest_prompt: Option<u32>) -> Self {
        let words = longest_prompt.unwrap_or(0) as usize;
        Self {
            client: client::new(Duration::from_secs(10)),
            url: format!("{}/v1/completions", url.to_string().trim_end_matches('/')),
            words: WORD.repeat(words).into(),
            model: serde_json::Value::from(model).to_string(),
        }
    }

    /// Sends the request of `arrival`, which was due at `due`.
    pub async fn send(&self, arrival: Arrival, due: Instant) -> Outcome {
        let mut events = Events::default();
        let ended = self.exchange(arrival, &mut events).await;
        Self::outcome(ended, &events, due)
    }

    /// As [`send`](Self::send), but at `until` the client hangs up.
    pub async fn send_until(&self, arrival: Arrival, due: Instant, until: Instant) -> Outcome {
        let mut events = Events::default();
        match timeout_at(until, self.exchange(arrival, &mut events)).await {
            Ok(ended) => Self::outcome(ended, &events, due),
            Err(_) => Outcome::GaveUp(events.first.map(|first| first - due)),
        }
    }

    fn outcome(ended: Result<StatusCode, BoxError>, events: &Events, due: Instant) -> Outcome {
        match ended {
            Ok(StatusCode::OK) => events.outcome(due),
            Ok(status) if status.as_u16() == REFUSED => Outcome::Refused,
            Ok(status) => Outcome::Failed(format!("status {}", status.as_u16())),
            Err(error) => Outcome::Failed(in_few_words(&*error)),
        }
    }

    /// Completes with the status, and only after the answer if that is 200.
    async fn exchange(
        &self,
        arrival: Arrival,
        events: &mut Events,
    ) -> Result<StatusCode, BoxError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .body(self.body(arrival))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Ok(status);
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                events.read(data, Instant::now());
            }
        }
        Ok(status)
    }

    /// The prompt is not copied, whatever its length.
    fn body(&self, arrival: Arrival) -> Slices {
        let Self { model, words, .. } = self;
        let max_tokens = arrival.generated_tokens.max(1);
        let head =
            format!(r#"{{"model":{model},"max_tokens":{max_tokens},"stream":true,"prompt":""#);
        let prompt = words.slice(..arrival.prompt_tokens as usize * WORD.len());
        Slices([head.into(), prompt, Bytes::from_static(b"\"}")])
    }
}

/// A request body of three parts that knows its length.
#[derive(Debug)]
struct Slices([Bytes; 3]);

impl Body for Slices {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.iter_mut().find(|slice| !slice.is_empty());
        Poll::Ready(next.map(|slice| Ok(Frame::data(std::mem::take(slice)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|slice| slice.len() as u64).sum())
    }
}

/// What arrives of an event stream, a line at a time.
#[derive(Debug, Default)]
struct Events {
    /// The start of a line whose end has not arrived.
    line: BytesMut,
    tokens: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    done: bool,
    /// A gateway ends a stream that breaks off as one that has ended, but for
    /// this.
    error: bool,
}

impl Events {
    fn read(&mut self, mut data: &[u8], now: Instant) {
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = data.split_at(end);
            data = &rest[1..];
            if self.line.is_empty() {
                self.event(line, now);
            } else {
                self.line.put_slice(line);
                let line = std::mem::take(&mut self.line);
                self.event(&line, now);
            }
        }
        self.line.put_slice(data);
    }

    fn event(&mut self, line: &[u8], now: Instant) {
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        match data.trim_ascii() {
            b"[DONE]" => self.done = true,
            error if error.starts_with(br#"{"error":"#) => self.error = true,
            // The event with the reason for the end has no token.
            chunk if contains(chunk, br#""text":"""#) => {}
            _ => {
                self.tokens += 1;
                self.first.get_or_insert(now);
                self.last = Some(now);
            }
        }
    }

    fn outcome(&self, due: Instant) -> Outcome {
        match (self.first, self.last) {
            _ if self.error => Outcome::Failed("the stream ended with an error".into()),
            (Some(first), Some(last)) if self.done => Outcome::Succeeded(Pace {
                first_token: first - due,
                per_token: match self.tokens {
                    0 | 1 => Duration::ZERO,
                    tokens => (last - first) / (tokens - 1),
                },
            }),
            _ => Outcome::Failed("the stream ended early".into()),
        }
    }
}

fn contains(text: &[u8], pattern: &[u8]) -> bool {
    text.windows(pattern.len()).any(|window| window == pattern)
}

/// The first and the last error of a chain: what failed, and why.
fn in_few_words(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let (error, cause) = (error.to_string(), cause.to_string());
    if error == cause {
        error
    } else {
        format!("{error}: {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Endpoint, Generate};

    #[tokio::test]
    async fn a_request_has_the_lengths_of_the_trace_and_says_its_size() {
        let url = "http://127.0.0.1:8000/".parse().unwrap();
        let requests = Requests::new(&url, "a \"model\"", Some(100));
        assert_eq!(requests.url, "http://127.0.0.1:8000/v1/completions");
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
}
