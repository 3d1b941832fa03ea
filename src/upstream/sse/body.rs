use super::{api::Api, events::Events};
use crate::sse::is_event_stream;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// A response body that, if it is a stream of events, ends well.
    #[derive(Debug)]
    pub struct EventStreamBody<B> {
        #[pin]
        body: B,
        state: State,
    }
}

#[derive(Debug)]
enum State {
    /// Not a stream of events, or none of which an error is known.
    Other,
    Events {
        api: Api,
        events: Events,
    },
    /// The last frame is to come.
    Trailers(HeaderMap),
    Ended,
}

pub(super) fn ending<B>(response: Response<B>, api: Option<Api>) -> Response<EventStreamBody<B>> {
    let api = api.filter(|_| can_be_ended(&response));
    response.map(|body| EventStreamBody {
        body,
        state: match api {
            None => State::Other,
            Some(api) => State::Events {
                api,
                events: Events::default(),
            },
        },
    })
}

/// Whether events can be added to it.
fn can_be_ended<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::OK
        && is_event_stream(response.headers())
        && !response.headers().contains_key(CONTENT_LENGTH)
}

impl<B> Body for EventStreamBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: fmt::Display,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let data = |data: Bytes| Poll::Ready(Some(Ok(Frame::data(data))));
        loop {
            let (api, events) = match this.state {
                State::Other => return this.body.poll_frame(cx),
                State::Events { api, events } => (*api, events),
                State::Trailers(trailers) => {
                    let trailers = std::mem::take(trailers);
                    *this.state = State::Ended;
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                State::Ended => return Poll::Ready(None),
            };
            match ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(more) => {
                        let passed = events.push(more);
                        if !passed.is_empty() {
                            return data(passed);
                        }
                    }
                    Err(frame) => {
                        let rest = events.rest();
                        let Ok(trailers) = frame.into_trailers() else {
                            continue;
                        };
                        *this.state = State::Trailers(trailers);
                        if !rest.is_empty() {
                            return data(rest);
                        }
                    }
                },
                // What the worker has ended itself is not for others to judge.
                None => {
                    let rest = events.rest();
                    *this.state = State::Ended;
                    if !rest.is_empty() {
                        return data(rest);
                    }
                }
                Some(Err(error)) if events.can_be_ended() => {
                    let (count, is_over) = (events.count(), events.last_was_seen());
                    *this.state = State::Ended;
                    if !is_over {
                        tracing::warn!(%error, "a stream broke off, and ends with an error event");
                        return data(api.end(count));
                    }
                }
                Some(Err(error)) => {
                    *this.state = State::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Other => self.body.is_end_stream(),
            State::Ended => true,
            State::Events { .. } | State::Trailers(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Other => self.body.size_hint(),
            _ => SizeHint::new(),
        }
    }
}
