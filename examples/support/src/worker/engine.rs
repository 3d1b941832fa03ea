use crate::{
    engine::{Batch, Generation, Ledger, Timing},
    openai::{Generate, Reply, Usage},
};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Request, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::{Body, Frame, SizeHint};
use std::{
    convert::Infallible,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower::Service;

/// The mock engine as a service: a request is in the engine from `call` until
/// its last token, or until its future or body is dropped.
///
/// It is always ready. How many may be in it is for the layers above to say.
#[derive(Clone, Debug)]
pub struct Engine {
    ledger: Arc<Ledger>,
    timing: Timing,
    batch: Option<Arc<Batch>>,
    stream_interval: NonZeroU32,
}

impl Engine {
    /// An engine that is this fast and keeps its accounts in `ledger`.
    pub fn new(ledger: Arc<Ledger>, timing: Timing) -> Self {
        Self {
            ledger,
            timing,
            batch: None,
            stream_interval: NonZeroU32::MIN,
        }
    }

    /// Its requests share the speed of `batch`, which has as many ranks as the
    /// ledger. Without one each is as fast as if it were alone.
    #[must_use]
    pub fn batch(mut self, batch: Option<Arc<Batch>>) -> Self {
        self.batch = batch;
        self
    }

    /// After the first token, the tokens of a stream come so many at a time.
    #[must_use]
    pub fn stream_interval(mut self, tokens: NonZeroU32) -> Self {
        self.stream_interval = tokens;
        self
    }
}

impl Service<Request<Generate>> for Engine {
    type Response = Response<EngineBody>;
    type Error = Infallible;
    type Future = EngineFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Generate>) -> EngineFuture {
        let request = request.into_body();
        let mut generation = Generation::enter(
            &self.ledger,
            self.timing,
            request.prompt_tokens,
            request.choices,
            request.max_tokens,
        )
        .every(self.stream_interval);
        if let Some(batch) = &self.batch {
            generation = generation.in_batch(batch);
        }
        let running = Running {
            generation,
            reply: Reply::new(&request),
            tokens_each: u64::from(request.max_tokens),
        };
        EngineFuture {
            stream: request.stream,
            running: Some(running),
        }
    }
}

#[derive(Debug)]
struct Running {
    generation: Generation,
    reply: Reply,
    tokens_each: u64,
}

impl Running {
    fn usage(&self) -> Usage {
        Usage::new(self.generation.prompt_tokens(), self.generation.generated())
    }
}

/// The response of an [`Engine`]: there at once for a stream, and with the
/// last token otherwise.
#[derive(Debug)]
pub struct EngineFuture {
    stream: bool,
    running: Option<Running>,
}

impl Future for EngineFuture {
    type Output = Result<Response<EngineBody>, Infallible>;

    /// # Panics
    ///
    /// When it is polled again after it has completed.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "polled after it has completed";
        if !self.stream {
            let running = self.running.as_mut().expect(ONCE);
            while ready!(running.generation.poll_token(cx)).is_some() {}
        }
        let running = self.running.take().expect(ONCE);
        let response = if self.stream {
            let mut response = Response::new(EngineBody(State::Stream(running)));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            response
        } else {
            let body = running.reply.whole(running.tokens_each, running.usage());
            let mut response = Response::new(EngineBody(State::Rest(body)));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        };
        Poll::Ready(Ok(response))
    }
}

/// The body of an [`Engine`]'s response: one object, or a stream of events.
///
/// There is no task and no channel behind the stream: it generates when it is
/// polled. Events that are due at the same time are one frame.
#[derive(Debug)]
pub struct EngineBody(State);

#[derive(Debug)]
enum State {
    Stream(Running),
    Rest(Bytes),
}

/// A frame is not made larger than this plus one event.
const FULL_FRAME: usize = 16 * 1024;

impl Body for EngineBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let running = match &mut self.0 {
            State::Rest(rest) if rest.is_empty() => return Poll::Ready(None),
            State::Rest(rest) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
            State::Stream(running) => running,
        };
        let mut events = BytesMut::new();
        let ended = loop {
            match running.generation.poll_token(cx) {
                Poll::Ready(Some((choice, place))) => {
                    running.reply.token_event(&mut events, choice, place);
                    if events.len() >= FULL_FRAME {
                        break false;
                    }
                }
                Poll::Ready(None) => break true,
                Poll::Pending if events.is_empty() => return Poll::Pending,
                Poll::Pending => break false,
            }
        };
        if ended {
            running.reply.end_events(&mut events, running.usage());
            self.0 = State::Rest(Bytes::new());
        }
        Poll::Ready(Some(Ok(Frame::data(events.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, State::Rest(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Stream(_) => SizeHint::default(),
            State::Rest(rest) => SizeHint::with_exact(rest.len() as u64),
        }
    }
}
