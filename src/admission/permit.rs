//! The permit that a request owns while it is in the engine.

use super::gate::Gate;
use crate::{completion::ObserveFrame, sse::FrameProgress, sync::Arc};
use bytes::Buf;
use http::{HeaderMap, Response};
use http_body::Frame;
use tower::load::TrackCompletion;

/// A request's right to be in the engine. Dropping it gives the slot to the
/// oldest waiting request, or frees it.
///
/// Made by the services of this module only. A
/// [`TrackCompletion`] of one's own gets it together with the engine's
/// response, and decides how long it lives.
#[derive(Debug)]
pub struct Permit(Held);

// A first token is awaited in the engine only: so it goes before the slot.
#[derive(Debug)]
enum Held {
    /// There is no cap, or no slot yet.
    Nothing,
    Own {
        prefill: Option<Prefill>,
        slot: Slot,
    },
    Shared {
        prefill: Option<Prefill>,
        slot: SlotHold,
    },
}

/// Counts as awaiting the first token until it is dropped.
#[derive(Debug)]
struct Prefill(Arc<Gate>);

impl Drop for Prefill {
    fn drop(&mut self) {
        self.0.first_token();
    }
}

#[derive(Debug)]
struct Slot {
    gate: Arc<Gate>,
    /// When it was taken, by the gate's clock; 0 if that is not measured.
    since: u64,
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        if self.since > 0 {
            self.gate.record_held(self.since);
        }
        self.gate.release();
    }
}

impl Permit {
    /// Of a slot that was taken already, and counted as awaiting its first
    /// token or not; `sampled`: the time that it is held is to be measured.
    #[inline]
    pub(super) fn new(gate: &Arc<Gate>, sampled: bool, counted: bool) -> Self {
        Self(Held::Own {
            prefill: counted.then(|| Prefill(gate.clone())),
            slot: Slot {
                gate: gate.clone(),
                since: if sampled { gate.now() } else { 0 },
            },
        })
    }

    /// Holds nothing: there is no cap, or no slot yet.
    #[inline]
    pub(super) const fn empty() -> Self {
        Self(Held::Nothing)
    }

    /// Leaves nothing behind.
    #[inline]
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::empty())
    }

    fn awaits_first_token(&self) -> bool {
        match &self.0 {
            Held::Nothing => false,
            Held::Own { prefill, .. } | Held::Shared { prefill, .. } => prefill.is_some(),
        }
    }

    /// Says that the request has produced its first token, and so does not
    /// count against the first-token limit any more. Later calls do nothing.
    #[inline]
    pub fn first_token(&mut self) {
        match &mut self.0 {
            Held::Nothing => {}
            Held::Own { prefill, .. } | Held::Shared { prefill, .. } => *prefill = None,
        }
    }

    /// A handle that keeps the slot taken for as long as it or a clone of it
    /// lives, also after this permit is gone.
    pub fn hold(&mut self) -> SlotHold {
        let (prefill, slot) = match self.take().0 {
            Held::Nothing => return SlotHold { _slot: None },
            Held::Own { prefill, slot } => {
                let slot = Some(Arc::new(slot));
                (prefill, SlotHold { _slot: slot })
            }
            Held::Shared { prefill, slot } => (prefill, slot),
        };
        let hold = slot.clone();
        self.0 = Held::Shared { prefill, slot };
        hold
    }
}

/// Keeps a slot of the engine taken until the last clone is dropped.
///
/// For work that goes on after the response body: an upgraded connection, a
/// detached task. The response has it in its extensions when the layer was
/// told to put it there, see
/// [`hold_in_extensions`](super::EngineAdmissionLayer::hold_in_extensions).
#[derive(Clone, Debug)]
pub struct SlotHold {
    /// `None` without a cap.
    _slot: Option<Arc<Slot>>,
}

/// Puts a [`SlotHold`] into the extensions of the response, and completes the
/// request as `C` says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldInExtensions<C>(pub(super) C);

impl<B, C> TrackCompletion<Permit, Response<B>> for HoldInExtensions<C>
where
    C: TrackCompletion<Permit, Response<B>>,
{
    type Output = C::Output;

    fn track_completion(&self, mut permit: Permit, mut response: Response<B>) -> C::Output {
        response.extensions_mut().insert(permit.hold());
        self.0.track_completion(permit, response)
    }
}

/// Of a stream of events the first token is what
/// [`StreamProgress`](crate::sse::StreamProgress) takes for it; of another body
/// it is the first frame. A stream is read up to there, and only under a
/// first-token limit.
#[derive(Clone, Debug, Default)]
pub struct FirstToken {
    progress: FrameProgress,
}

impl FirstToken {
    pub(super) const fn new() -> Self {
        Self {
            progress: FrameProgress::new(),
        }
    }
}

impl<D: Buf> ObserveFrame<Permit, D> for FirstToken {
    fn head(&mut self, permit: &mut Permit, headers: &HeaderMap) {
        if permit.awaits_first_token() {
            self.progress = FrameProgress::of(headers);
        }
    }

    fn observe(&mut self, permit: &mut Permit, frame: &Frame<D>) {
        if permit.awaits_first_token() {
            self.progress.frame(frame);
            if self.progress.has_begun() {
                permit.first_token();
                self.progress = FrameProgress::new();
            }
        }
    }
}

/// The first frame of a response body that satisfies a predicate is its first
/// token.
#[derive(Clone, Copy, Debug)]
pub struct FirstMatch<P>(pub(super) P);

impl<D, P> ObserveFrame<Permit, D> for FirstMatch<P>
where
    P: FnMut(&Frame<D>) -> bool,
{
    fn observe(&mut self, permit: &mut Permit, frame: &Frame<D>) {
        if permit.awaits_first_token() && (self.0)(frame) {
            permit.first_token();
        }
    }
}
