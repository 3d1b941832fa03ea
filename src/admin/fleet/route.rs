//! What a path is of.

use super::json::Wrong;
use http::StatusCode;
use percent_encoding::percent_decode_str;
use std::sync::Arc;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    Workers,
    Worker(Arc<str>),
    Load,
    Models,
    Thresholds,
}

impl Route {
    pub(super) fn of(path: &str) -> Result<Self, Wrong> {
        match path {
            "/workers" => Ok(Self::Workers),
            "/worker_load" => Ok(Self::Load),
            "/models" => Ok(Self::Models),
            "/busy_threshold" => Ok(Self::Thresholds),
            _ => match path.strip_prefix("/workers/") {
                Some(id) if !id.is_empty() && !id.contains('/') => Self::worker(id),
                _ => Err(Wrong::new(
                    StatusCode::NOT_FOUND,
                    format!("there is no {path}"),
                )),
            },
        }
    }

    fn worker(id: &str) -> Result<Self, Wrong> {
        match percent_decode_str(id).decode_utf8() {
            Ok(id) => Ok(Self::Worker((*id).into())),
            Err(_) => Err(Wrong::new(
                StatusCode::BAD_REQUEST,
                format!("the id {id:?} is not UTF-8 when it is decoded"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment_that_is_decoded() {
        let id = |path: &str| Route::of(path).map_err(|wrong| wrong.status.as_u16());
        assert_eq!(
            id("/workers/a%2Fb%20%C3%A9"),
            Ok(Route::Worker("a/b é".into()))
        );
        assert_eq!(id("/workers"), Ok(Route::Workers));
        assert_eq!(id("/workers/%FF"), Err(400));
        for path in ["/workers/", "/workers/a/b", "/workers/a/", "/", "/workersa"] {
            assert_eq!(id(path), Err(404), "{path}");
        }
    }
}
