//! Load generators: a trace of real requests, or any other, sent in an open
//! loop.
//!
//! Requests are sent when they are due, whether or not earlier ones are
//! answered. Their prompts and answers have the lengths of the trace. Times are
//! measured from when a request was due, so a generator that falls behind does
//! not flatter whom it measures.

mod open_loop;
mod outcome;
mod request;
mod trace;

pub use open_loop::open_loop;
pub use outcome::{Outcome, Pace};
pub use request::{Events, Prompt, Requests};
pub use trace::{Arrival, LeftOut, Trace, TraceError, parse_trace};
