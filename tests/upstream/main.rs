//! Workers over HTTP: bytes in, bytes out, over real sockets.

mod bodies;
mod differential;
mod faults;
mod forwarding;
mod grpc;
mod http2;
mod idle;
mod proxies;
#[path = "../support/sockets.rs"]
mod sockets;
mod sse;
mod stack;
mod support;
mod tls;
mod wire;
