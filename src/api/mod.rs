//! What a gateway has to know of a request: model, stream, prompt size.
//!
//! [`RequestReader`] reads them from the body, before a worker is picked. It
//! knows the requests of OpenAI's API (chat, completions, responses,
//! embeddings, audio), of Anthropic's messages, of rerank and score, of
//! SGLang's `/generate` and of llama.cpp's `/completion` and `/infill`, and
//! does not ask for the path: what a member means follows from its name.
//!
//! ```
//! use http::HeaderMap;
//! use tower_overload::api::RequestReader;
//!
//! let reader = RequestReader::new();
//! let body = br#"{
//!     "model": "Qwen/Qwen3-32B",
//!     "messages": [{"role": "user", "content": "Why is the sky blue?"}],
//!     "stream": true
//! }"#;
//!
//! let request = reader.read(&HeaderMap::new(), body)?;
//!
//! assert_eq!(request.model.as_deref(), Some("Qwen/Qwen3-32B"));
//! assert_eq!(request.streamed, Some(true));
//! assert_eq!(request.choices, 1);
//! assert!((8..16).contains(&request.prompt_tokens));
//! # Ok::<_, tower_overload::api::ReadError>(())
//! ```
//!
//! # Bodies
//!
//! A body is read by its headers and in one pass, without a tree of it:
//!
//! - **JSON**, also where there is no `Content-Type`, or the one that curl
//!   sends for everything. It has to be whole and valid, and nested at most
//!   [128 deep](RequestReader::max_depth). A `model` that is no string, or is
//!   there twice, is an error: the gateway and the worker could take it for
//!   different ones.
//! - **Forms** (`multipart/form-data`), as audio is sent in. A file is gone
//!   over, and not copied.
//! - **Compressed** bodies of both kinds: gzip, deflate, br and zstd, of at
//!   most [32 MiB](RequestReader::max_decoded_bytes) when they are decoded,
//!   and of at most 1,024 gzip members or zstd frames, each of which takes its
//!   time however short it is. The body that was given stays as it was, to be
//!   sent on.
//! - Anything else is a file: it names no model.
//!
//! # Prompt size
//!
//! | In the request | Counts as |
//! |---|---|
//! | text of messages, system prompts, instructions, prompts, inputs, documents | what the [estimator](EstimateTokens) says |
//! | each message | 4 tokens more, for the chat template |
//! | tools, functions, arguments of tool calls | the estimate of each name and text, and 1 or 2 for the signs around it |
//! | a prompt that is given as tokens | their number |
//! | an image, embedded or by address | [1,024 tokens](RequestReader::media_tokens), whatever its size |
//! | audio, video or a file, embedded or in a form | 1 token for each 1,000 bytes |
//! | the same by address or id | as an image |
//! | a query of a ranking | once with each document; several once each |
//!
//! A prompt counts once, however many [choices](ReadRequest::choices) are
//! asked for: engines prefill it once. A prompt that cannot be parsed here but
//! perhaps by a worker (half of a surrogate pair) counts by its length.
//!
//! # Models
//!
//! [`models`] has the answer to `GET /v1/models`.
//!
//! # Cost
//!
//! 2 to 3 ms for each MB of JSON with the prompt, about a tenth of it
//! [without](RequestReader::prompts); no memory for what is not escaped. See
//! `benches/api.rs`.

mod coding;
mod depth;
mod error;
mod estimate;
mod json;
pub mod models;
mod multipart;
mod prompt;
mod reader;
mod scalar;

pub use self::{
    error::ReadError,
    estimate::{EstimateTokens, ScriptEstimator},
    reader::{ReadRequest, RequestReader},
};
