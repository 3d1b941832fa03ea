//! How a worker is chosen among the open ones.
//!
//! By default that is the lesser loaded of two at random, by requests in
//! flight. A [`Pick`] replaces it:
//!
//! | choice | for |
//! |---|---|
//! | none given | most fleets: constant cost, no herding |
//! | [`LeastLoaded`] of `d` or of all, by requests or by a [load](crate::load::WorkerLoad) that is kept beside each worker | requests of very unequal size: prompt tokens say more than requests |
//! | [`Affinity`] | engines with a prefix cache: requests with a key in common go to the same worker while it is not loaded above the others |
//!
//! ```
//! use http::Request;
//! use tower_overload::pool::pick::{Candidate, OpenWorkers, Pick};
//!
//! /// The first open worker of a list, by name.
//! struct Preferred(Vec<String>);
//!
//! impl<B> Pick<Request<B>> for Preferred {
//!     fn pick(
//!         &self,
//!         _: &Request<B>,
//!         workers: &OpenWorkers<'_, Request<B>>,
//!     ) -> Option<Candidate<Request<B>>> {
//!         let open: Vec<_> = (0..workers.len()).filter_map(|i| workers.get(i)).collect();
//!         let named = |name: &String| open.iter().find(|worker| worker.name() == *name);
//!         self.0.iter().find_map(named).or(open.first()).cloned()
//!     }
//! }
//! ```

mod affinity;
mod least;
mod open;

pub use self::{
    affinity::{Affinity, KeyOf, OfHeader, hash_key},
    least::LeastLoaded,
    open::{Candidate, OpenWorkers},
};
pub(super) use self::{least::two_of, open::Table};

/// Chooses a worker for a request.
///
/// It is called with the workers that take requests now, and at least one; what
/// comes or goes meanwhile may or may not be seen. It holds up the caller, so
/// it does not wait; and no lock is held while it runs.
///
/// Workers that this request has been to before are left out, as long as there
/// are others.
pub trait Pick<Req>: Send + Sync {
    /// The worker that is to have the request.
    ///
    /// If it has closed meanwhile, the choice is asked again, a few times.
    /// `None`, or to insist on one that has closed, leaves the choice to the
    /// default: the lesser loaded of two.
    fn pick(&self, request: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>>;
}
