//! Workers over HTTP: bytes in, bytes out, over real sockets.

mod bodies;
mod faults;
mod forwarding;
mod http2;
mod idle;
mod sse;
mod support;
mod tls;
