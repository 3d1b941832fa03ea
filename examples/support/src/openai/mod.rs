//! The part of the OpenAI API that the examples speak: chat completions and
//! completions, streamed or whole, and the errors in their usual form.

mod error;
mod request;
mod response;

pub use error::ApiError;
pub use request::{Endpoint, Generate};
pub use response::{Reply, Usage, models};
