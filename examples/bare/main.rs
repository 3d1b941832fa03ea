//! What a gateway costs at least: a handler that reads a request and answers
//! it, and a proxy that reads nothing, without any of the layers.
//!
//! ```text
//! cargo run --release --example bare -- 127.0.0.1:8001 http://127.0.0.1:8100
//! ```
//!
//! - `POST /refuse` reads the body, parses the JSON for its `model` and answers
//!   529 with the body that a gateway answers with.
//! - `POST /refuse-unread` answers the same without reading.
//! - Everything else is sent on to the URL, if there is one.
//!
//! `benches/http.sh` measures a gateway beside it.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode, Uri,
        header::{CONTENT_TYPE, HOST},
        uri::Authority,
    },
    response::{IntoResponse, Response},
    routing::post,
    serve::ListenerExt,
};
use overload_examples::client::{self, HttpClient};
use serde::Deserialize;
use std::{borrow::Cow, error::Error, time::Duration};
use tokio::net::TcpListener;

const OVERLOADED: &str =
    r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let listen = args.next().ok_or("usage: bare ADDR:PORT [URL]")?;
    let app = Router::new()
        .route("/refuse", post(refuse))
        .route("/refuse-unread", post(async || overloaded()));
    let app = match args.next() {
        None => app,
        Some(url) => app.merge(Router::new().fallback(proxy).with_state(Upstream {
            authority: authority(&url)?,
            client: client::new(Duration::from_secs(1)),
        })),
    };
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, app).await?)
}

#[derive(Deserialize)]
struct OfModel<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
}

async fn refuse(body: Bytes) -> Response {
    match serde_json::from_slice::<OfModel<'_>>(&body) {
        Ok(of) if of.model.is_some() => overloaded(),
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

fn overloaded() -> Response {
    let json = HeaderValue::from_static("application/json");
    let status = StatusCode::from_u16(529).expect("529 is a status");
    (status, [(CONTENT_TYPE, json)], OVERLOADED).into_response()
}

fn authority(url: &str) -> Result<Authority, Box<dyn Error>> {
    let url: Uri = url.parse()?;
    Ok(url.into_parts().authority.ok_or("the URL has no host")?)
}

#[derive(Clone)]
struct Upstream {
    authority: Authority,
    client: HttpClient<Body>,
}

async fn proxy(State(upstream): State<Upstream>, mut request: Request) -> Response {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let target = Uri::builder()
        .scheme("http")
        .authority(upstream.authority)
        .path_and_query(path)
        .build();
    let Ok(target) = target else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    *request.uri_mut() = target;
    request.headers_mut().remove(HOST);
    match upstream.client.request(request).await {
        Ok(response) => response.map(Body::new).into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}
