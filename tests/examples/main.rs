//! The examples, as people run them: over real sockets, and as processes.

mod processes;
mod replay;
mod support;
mod worker;
