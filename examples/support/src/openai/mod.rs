//! The part of the OpenAI API that the examples speak: chat completions and
//! completions, streamed or whole.

mod request;
mod response;

pub use request::{Endpoint, Generate, MOST_TOKENS};
pub use response::{Reply, Usage};
