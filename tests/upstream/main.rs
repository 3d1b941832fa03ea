//! Workers over HTTP: bytes in, bytes out, over real sockets.

mod bodies;
mod faults;
mod forwarding;
mod grpc;
mod http2;
mod idle;
mod sse;
mod stack;
mod support;
mod tls;
