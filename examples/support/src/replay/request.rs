use super::{Arrival, Outcome, Pace};
use crate::client::{self, HttpClient};
use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Chain};
use http::{Method, Request, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use std::{error::Error, time::Duration};
use tokio::time::{Instant, timeout_at};
use tower_overload::BoxError;

/// A word of a prompt: as short as one can be.
const WORD: &[u8] = b"a ";
/// What follows it.
const END: &[u8] = b"\"}";
const REFUSED: u16 = 529;

/// Makes and sends the requests of a replay, and reads the answers.
#[derive(Debug)]
pub struct Requests {
    client: HttpClient<Prompt>,
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

    /// Where they go.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The body of the request of `arrival`. The prompt is not copied, whatever
    /// its length.
    pub fn body(&self, arrival: Arrival) -> Prompt {
        let Self { model, words, .. } = self;
        let max_tokens = arrival.generated_tokens.max(1);
        let head =
            format!(r#"{{"model":{model},"max_tokens":{max_tokens},"stream":true,"prompt":""#);
        let prompt = words.slice(..arrival.prompt_tokens as usize * WORD.len());
        Full::new(Bytes::from(head).chain(prompt).chain(END))
    }
}

/// A request body of three parts that knows its length.
pub type Prompt = Full<Chain<Chain<Bytes, Bytes>, &'static [u8]>>;

/// What arrives of an event stream, a line at a time.
#[derive(Debug, Default)]
pub struct Events {
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
    /// Reads what has arrived `now`.
    pub fn read(&mut self, mut data: &[u8], now: Instant) {
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

    /// How a request has ended that was due at `due`.
    pub fn outcome(&self, due: Instant) -> Outcome {
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
