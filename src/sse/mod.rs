//! Streams of server-sent events, as models answer with them: read in pieces,
//! wherever they are cut.
//!
//! [`Reader`] finds the events in a stream, and [`StreamProgress`] what they
//! say: whether there is a first token, how many there are so far, the usage,
//! and the end. [`FrameProgress`] takes the frames of any response body. The
//! load tracker and the first-token limit of the admission use it for every
//! answer that [is one](is_event_stream), or that has no `Content-Type` and
//! begins as one.
//!
//! # What counts
//!
//! | event | counts as |
//! |---|---|
//! | a comment, `ping`, an event without data | nothing |
//! | `[DONE]`, `message_stop`, `response.completed`, `response.failed`, `response.incomplete`, `error` | the end |
//! | chat: `choices[].delta` with a role only, or with an empty text | nothing |
//! | chat: `content`, `reasoning_content`, `reasoning`, `refusal`, and the names and arguments of tools | its text |
//! | completions: `choices[].text` | its text |
//! | either with `token_ids` | as many tokens as ids |
//! | responses: `delta` of `response.*.delta` | its text |
//! | Anthropic: `text`, `thinking` or `partial_json` of a `content_block_delta`; the name of a tool | its text |
//! | llama.cpp `content`, TGI `token.text`, Workers AI `response` | its text |
//! | any other of these APIs, such as `message_start` or `response.created` | nothing |
//! | another JSON | one token |
//! | what is no JSON | its text |
//! | `usage`, `response.usage`, `meta_info`, `timings`, `tokens_predicted` or TGI's `details` in any of them | all tokens so far |
//!
//! A text is *estimated*: over all events, a token for each 4 bytes of it, and
//! one for each event at least. So an engine that sends each token when it has
//! it is counted exactly or, where its tokens are longer, a little high; and
//! one that sends several at once is not counted as one. Once the stream says
//! how many tokens there are, that is the number, and only what comes after it
//! is estimated. A `usage` of less than before is not believed.
//!
//! An answer that is finished without a token (`finish_reason`) has begun as
//! well: its prefill is over. Several answers to one request count together.
//!
//! # What it costs
//!
//! Nothing of a stream is kept, so a stream takes [less than half a
//! KiB](StreamProgress) whatever it has, a line of 1 GB included, and time
//! that is linear in its bytes, some 2 s for that line. [`FrameProgress`] allocates that once for each
//! stream, and nothing else is. What is malformed is no error, it is only
//! counted as something else.

mod frames;
mod json;
mod progress;
mod reader;

#[cfg(all(test, not(tower_overload_loom)))]
mod tests;

pub use self::{
    frames::FrameProgress,
    progress::StreamProgress,
    reader::{Part, Reader},
};

use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

/// Whether a body with these headers is a stream of events that can be read:
/// its `Content-Type` is `text/event-stream`, and it is not compressed.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    let is_one = headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().split(|byte| *byte == b';').next();
        value.is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(TYPE))
    });
    is_one && !headers.contains_key(CONTENT_ENCODING)
}
