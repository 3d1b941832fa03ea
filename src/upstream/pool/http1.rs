//! A connection with HTTP/1.1: one request at a time.

use super::{Lost, task::Task};
use crate::upstream::{
    connect::Connector,
    fault::{Fault, FaultKind},
    io::{Idle, Io, Watch},
    upload::{Back, Outgoing},
};
use http::{HeaderMap, Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{sync::Arc, time::Duration};

/// The longest head of an answer. hyper bounds the number of headers.
const MAX_HEAD: usize = 64 * 1024;

/// A connection; dropped, it is closed.
pub(in crate::upstream) struct Http1 {
    // Before the task, which ends without it.
    sender: SendRequest<Outgoing>,
    watch: Arc<Watch>,
    task: Task,
}

impl Http1 {
    pub(super) async fn over(io: Io, connector: &Connector) -> Result<Self, Fault> {
        let watch = io.watch().clone();
        let handshake = http1::Builder::new()
            .max_header_size(MAX_HEAD)
            .handshake(TokioIo::new(io));
        let (sender, connection) = handshake
            .await
            .map_err(|error| connector.fault(FaultKind::NotConnected, error))?;
        let task = Task::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a worker ended");
            }
        });
        Ok(Self {
            sender,
            watch,
            task,
        })
    }

    /// What can be done with it after it was idle.
    pub(super) fn state(&self) -> State {
        if self.sender.is_closed() {
            State::Closed
        } else if !self.sender.is_ready() {
            State::Busy
        } else if self.watch.look() == Idle::Open {
            State::Ready
        } else {
            State::Closed
        }
    }

    /// As far as is known without asking.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(super) fn set_idle(&mut self, yes: bool) {
        self.task.set_idle(yes);
    }

    /// Sends a request; the connection is the answer's until its end.
    pub(super) async fn send(
        mut self,
        mut request: Request<Outgoing>,
        back: Back,
    ) -> Result<(Response<Incoming>, Self, Back), Lost> {
        let before = self.watch.received();
        let watch = self.watch.clone();
        hyper::ext::on_informational(&mut request, move |_| watch.informational());
        match self.sender.try_send_request(request).await {
            Ok(response) => {
                self.watch.answered();
                Ok((response, self, back))
            }
            Err(mut error) => {
                let begun = self.watch.received() > before;
                let flooded = self.watch.is_flooded();
                // It ends the body, wherever that is, and so brings it back.
                drop(error.take_message());
                drop(self);
                Err(Lost {
                    error: error.into_error(),
                    begun,
                    flooded,
                    back,
                })
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Its last answer has come to an end here, but not yet in its own task.
    Busy,
    Closed,
}

/// For how long the worker says that it keeps an idle connection.
pub(in crate::upstream) fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("keep-alive").iter();
    let mut parameters = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']));
    let seconds = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("timeout") {
            return None;
        }
        value.trim().parse().ok()
    })?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_keep_alive_is_read() {
        for (value, seconds) in [
            ("timeout=5", Some(5)),
            ("max=100, Timeout = 75", Some(75)),
            ("timeout=5; max=3", Some(5)),
            ("timeout=x, timeout=7", Some(7)),
            ("timeout", None),
            ("300", None),
            ("", None),
            ("timeout=-1", None),
        ] {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("keep-alive"),
                value.parse().unwrap(),
            )]);
            assert_eq!(
                keep_alive(&headers),
                seconds.map(Duration::from_secs),
                "{value}"
            );
        }
    }
}
