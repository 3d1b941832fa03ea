use super::{future::ResponseFuture, layer::Options};
use crate::{
    BoxError, OverloadReason, UnavailableReason,
    busy::{
        answer::{Answer, Answers},
        members::{Members, Verdict},
        notify::Observation,
    },
};
use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep},
};
use tower_service::Service;

/// A balanced service set that never hangs; see [`BusyFilterLayer`].
///
/// `poll_ready` is `Ready` when a worker is, and also when none is and the
/// answer is known: the error then comes from the response future, and the
/// service works again for the next request. It is `Pending` only while some
/// worker without a mark may still become ready, for at most the configured
/// wait.
///
/// [`BusyFilterLayer`]: super::BusyFilterLayer
pub struct BusyFilter<S> {
    inner: S,
    members: Members,
    observation: Observation,
    options: Options,
    step: Step,
    /// The epoch in which the inner service was last found pending: until it
    /// changes, asking again would say the same.
    pending_at: Option<u64>,
    wait: Option<Wait>,
    grace_until: Option<Instant>,
    answers: Arc<Answers>,
    condition: Condition,
}

/// What the next call does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Unready,
    Dispatch { epoch: u64 },
    Answer { epoch: u64, answer: Answer },
}

/// A caller waits for a worker, or has waited in vain.
struct Wait {
    /// Waiting for the discovery, whose grace ends then.
    grace: Option<Instant>,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
    /// The members' joins when it was found to be in vain.
    in_vain: Option<u64>,
}

/// Whoever waits is woken at the deadline. If nobody looks within this time,
/// the caller had left, and the wait was nobody's.
const LATE: Duration = Duration::from_millis(100);

/// What the filter last found; a change is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Serving,
    Refusing(Answer),
}

/// How often a set that changes while it is asked is asked again at once.
const ROUNDS: usize = 4;

impl<S> BusyFilter<S> {
    pub(super) fn new(inner: S, members: Members, options: Options) -> Self {
        let grace = options.startup_grace;
        Self {
            inner,
            observation: members.notifier().observe(),
            members,
            answers: Arc::new(Answers::new(&options.prefix, &options.model)),
            step: Step::Unready,
            pending_at: None,
            wait: None,
            grace_until: (!grace.is_zero()).then(|| Instant::now() + grace),
            condition: Condition::Serving,
            options,
        }
    }

    /// The membership that decides.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The wrapped service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Asks the inner service, unless it said `Pending` and nothing changed.
    ///
    /// Outside of the cooperative budget: a `Pending` of an exhausted budget
    /// says nothing about the workers.
    fn poll_inner<Req>(&mut self) -> Poll<Result<u64, BoxError>>
    where
        S: Service<Req>,
        S::Error: Into<BoxError>,
    {
        for _ in 0..ROUNDS {
            let epoch = self.observation.epoch();
            if self.pending_at == Some(epoch) {
                break;
            }
            let mut cx = Context::from_waker(self.observation.waker());
            let inner = &mut self.inner;
            let ask = pin!(unconstrained(poll_fn(|cx| inner.poll_ready(cx))));
            match ask.poll(&mut cx) {
                Poll::Ready(Ok(())) => {
                    self.pending_at = None;
                    return Poll::Ready(Ok(epoch));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    self.pending_at = Some(epoch);
                }
            }
        }
        Poll::Pending
    }

    /// The answer to a request while nothing is ready, or `Pending`.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        let verdict = self.members().verdict();
        let in_grace = verdict == Verdict::Unavailable(UnavailableReason::NoWorkers)
            && !self.members().discovered();
        let grace = self.grace_until.filter(|_| in_grace);
        let grace = grace.filter(|until| Instant::now() < *until);
        match Answer::due(verdict) {
            Some(answer) if grace.is_none() => {
                self.wait = None;
                Poll::Ready(answer)
            }
            _ => self.poll_wait(cx, grace),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, grace: Option<Instant>) -> Poll<Answer> {
        let now = Instant::now();
        let max_wait = self.options.max_wait;
        let joins = self.members().joins();
        let stands = |wait: &Wait| match wait.in_vain {
            None => wait.grace == grace && now < wait.deadline + LATE,
            // What was found by waiting stands for as long as it took to find,
            // unless a worker has come: those who queued behind it are
            // answered at once, and later ones wait for themselves.
            Some(then) => then == joins && now < wait.deadline + max_wait,
        };
        let wait = self.wait.take().filter(stands);
        let wait = self.wait.insert(wait.unwrap_or_else(|| {
            let longest = now + max_wait;
            let deadline = grace.map_or(longest, |grace| grace.min(longest));
            Wait {
                grace,
                deadline,
                timer: Box::pin(tokio::time::sleep_until(deadline)),
                in_vain: None,
            }
        }));
        if wait.deadline <= now {
            wait.in_vain = Some(joins);
            return Poll::Ready(Answer::WAITED_TOO_LONG);
        }
        if wait.timer.as_mut().poll(cx).is_ready() {
            // The deadline passed since the clock was read: look again.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    #[inline]
    fn found(&mut self, condition: Condition) {
        if self.condition != condition {
            self.condition = condition;
            self.log();
        }
    }

    /// Under overload this comes and goes with the requests, so it is no more
    /// than a line for those who debug; the counters tell how often.
    #[cold]
    fn log(&self) {
        let members = &self.members;
        let (model, alive, usable) = (&*self.options.model, members.alive(), members.usable());
        match self.condition {
            Condition::Serving => {
                tracing::debug!(model, alive, usable, "workers take requests again");
            }
            Condition::Refusing(answer) => {
                let answer = answer.as_str();
                tracing::debug!(model, answer, alive, usable, "no worker takes requests");
            }
        }
    }
}

impl<S, Req> Service<Req> for BusyFilter<S>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    /// # Errors
    ///
    /// Only what the inner service fails with; overload is no error here.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.step = Step::Unready;
        match self.poll_inner() {
            Poll::Ready(Ok(epoch)) => {
                // A request that probes a worker is no sign that those behind
                // it will be served: their wait goes on.
                if self.members.open() > 0 {
                    self.wait = None;
                }
                self.found(Condition::Serving);
                self.step = Step::Dispatch { epoch };
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {}
        }
        if let Poll::Ready(answer) = self.poll_answer(cx) {
            self.found(Condition::Refusing(answer));
            let epoch = self.pending_at.unwrap_or_default();
            self.step = Step::Answer { epoch, answer };
            return Poll::Ready(Ok(()));
        }
        // Whatever changes from here on wakes this task; what changed before
        // shows in the epoch, and is looked at after others had their turn.
        self.observation.register(cx.waker());
        if self.pending_at != Some(self.observation.epoch()) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// # Panics
    ///
    /// When called without a preceding `Ready` of `poll_ready`.
    fn call(&mut self, request: Req) -> Self::Future {
        let now = self.observation.epoch();
        let answer = match mem::replace(&mut self.step, Step::Unready) {
            Step::Unready => panic!("called before ready"),
            Step::Dispatch { epoch } if epoch == now => {
                return ResponseFuture::running(self.inner.call(request));
            }
            Step::Answer { epoch, answer } if epoch == now => answer,
            // Something changed since: what was ready may be busy, and what
            // was busy may be free.
            step => match self.poll_inner() {
                Poll::Ready(Ok(_)) => return ResponseFuture::running(self.inner.call(request)),
                Poll::Ready(Err(error)) => return ResponseFuture::failed(error),
                Poll::Pending => match (Answer::due(self.members().verdict()), step) {
                    (Some(answer), _) => answer,
                    (None, Step::Answer { answer, .. }) if answer == Answer::WAITED_TOO_LONG => {
                        answer
                    }
                    (None, _) => Answer::Overloaded(OverloadReason::BusyAtDispatch),
                },
            },
        };
        self.answers.count(answer);
        ResponseFuture::answered(answer)
    }
}

/// A clone has no readiness, and waits for itself.
impl<S: Clone> Clone for BusyFilter<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            observation: self.members.notifier().observe(),
            members: self.members.clone(),
            options: self.options.clone(),
            step: Step::Unready,
            pending_at: None,
            wait: None,
            grace_until: self.grace_until,
            answers: self.answers.clone(),
            condition: self.condition,
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for BusyFilter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyFilter")
            .field("inner", &self.inner)
            .field("members", self.members())
            .field("condition", &self.condition)
            .finish_non_exhaustive()
    }
}
