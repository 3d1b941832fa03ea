use std::time::Duration;
use tower_overload::limits::TimeLimitLayer;

/// How long a worker may take; `None` is any time.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// To a connection.
    pub connect: Option<Duration>,
    /// To the head of an answer that is streamed.
    pub head: Option<Duration>,
    /// To the head of an answer that comes whole.
    pub whole_head: Option<Duration>,
    /// From the head to the first frame.
    pub first_frame: Option<Duration>,
    /// From one frame to the next.
    pub frame: Option<Duration>,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self {
            connect: Some(Duration::from_secs(1)),
            head: Some(Duration::from_secs(60)),
            whole_head: None,
            first_frame: Some(Duration::from_secs(60)),
            frame: Some(Duration::from_secs(30)),
        }
    }
}

impl WorkerLimits {
    /// The layer around a worker, which is called as it is here.
    pub(super) fn layer(&self, worker: &str) -> TimeLimitLayer {
        TimeLimitLayer::new()
            .worker(worker)
            .head(self.head)
            .whole_head(self.whole_head)
            .first_frame(self.first_frame)
            .frame(self.frame)
    }
}
