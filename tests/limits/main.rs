//! How long a worker may take, on a clock that the test moves.

mod frames;
mod head;
mod model;
mod retry;
mod support;
