//! The HTTP client of the examples: HTTP/1.1, connections kept alive, and
//! `TCP_NODELAY` on.

use http_body::Body;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use std::time::Duration;

/// A client that sends bodies of type `B`.
pub type HttpClient<B> = Client<HttpConnector, B>;

/// A client that gives up on a connection that is not made in `connect_timeout`.
pub fn new<B>(connect_timeout: Duration) -> HttpClient<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    // With Nagle's algorithm on, the second small write of an exchange waits
    // for the peer's delayed acknowledgement: some 40 ms.
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        // Sooner than a server of these examples closes it.
        .pool_idle_timeout(Duration::from_secs(10))
        .build(connector)
}
