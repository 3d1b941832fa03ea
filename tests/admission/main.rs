//! The engine admission as a service sees it.

mod backpressure;
mod body;
mod environment;
mod limits;
mod metrics;
mod shed;
mod sockets;
mod stress;
mod support;
