//! What clients see of overload: over real sockets, in axum, hyper and tonic.

mod axum;
mod fuzz;
mod grpc;
mod metrics;
mod readiness;
mod support;
mod wire;
