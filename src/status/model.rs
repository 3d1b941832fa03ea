use super::{Endpoint, answer::AnswerKind};
use crate::{
    metrics::{MODEL_REJECTIONS, MODEL_UNAVAILABLE, Prefix},
    sync::{Mutex, lock},
};
use metrics::Counter;
use std::{
    collections::HashMap,
    error::Error,
    fmt,
    sync::{Arc, OnceLock},
};

/// The model that a request is for, as an extension of the request.
///
/// It is what the `model` label of the rejection counters is read from. The
/// application knows it once it has parsed the request's JSON. Where that
/// happens *before* the layer, a handler that then calls the stack:
///
/// ```
/// use tower_overload::status::Model;
///
/// # let mut request = http::Request::new(());
/// request.extensions_mut().insert(Model::new("tiny"));
/// ```
///
/// Where it happens *inside*, with the layer on the router, something outside
/// of the layer gives every request a `Model` of its own that is
/// [`unset`](Self::unset), and the handler fills it in. All clones see it:
///
/// ```
/// use tower_overload::status::Model;
///
/// # let mut request = http::Request::new(());
/// // Outside, for example in a `tower::util::MapRequestLayer`:
/// request.extensions_mut().insert(Model::unset());
/// // Inside:
/// if let Some(model) = request.extensions().get::<Model>() {
///     model.set("tiny");
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Model(Arc<OnceLock<Box<str>>>);

impl Model {
    /// A model that is known already. One value can be made per model and its
    /// clones given to all the requests for it.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(Arc::new(OnceLock::from(name.into())))
    }

    /// A model that somebody further in will know.
    pub fn unset() -> Self {
        Self::default()
    }

    /// Says which model it is. Whoever comes first decides: a second call
    /// changes nothing.
    pub fn set(&self, name: impl Into<Box<str>>) {
        let _ = self.0.set(name.into());
    }

    /// The model's name, if it is known by now.
    pub fn name(&self) -> Option<&str> {
        self.0.get().map(|name| &**name)
    }
}

/// The models that have rejection counters of their own: a shared handle.
///
/// A client can ask for any name, and a metric series cannot be taken back.
/// So requests for a model that the application did not [`add`](Self::add),
/// and those without a [`Model`], are counted under `model="unknown"`.
///
/// The counters of a model are registered when it is added, for every
/// endpoint, with the recorder that is installed then.
#[derive(Clone)]
pub struct KnownModels(Arc<Shared>);

struct Shared {
    prefix: Prefix,
    limit: usize,
    unknown: Arc<Counters>,
    known: Mutex<HashMap<Box<str>, Arc<Counters>>>,
}

impl KnownModels {
    /// The value of the `model` label for all the models that are not known.
    pub const UNKNOWN: &'static str = "unknown";

    /// How many models can be known unless [`with_limit`](Self::with_limit)
    /// says otherwise.
    pub const DEFAULT_LIMIT: usize = 1024;

    /// No model is known yet; the counters are named with `prefix`.
    pub fn new(prefix: Prefix) -> Self {
        Self::with_limit(prefix, Self::DEFAULT_LIMIT)
    }

    /// As [`new`](Self::new), for at most `limit` models.
    pub fn with_limit(prefix: Prefix, limit: usize) -> Self {
        Self(Arc::new(Shared {
            unknown: Arc::new(Counters::register(&prefix, Self::UNKNOWN)),
            prefix,
            limit,
            known: Mutex::new(HashMap::new()),
        }))
    }

    /// Gives `model` counters of its own. Nothing changes if it has them.
    ///
    /// # Errors
    ///
    /// As many models as allowed are known already; this one stays unknown.
    pub fn add(&self, model: &str) -> Result<(), TooManyModels> {
        let admit = |known: &HashMap<Box<str>, _>| {
            if known.contains_key(model) {
                Ok(false)
            } else if known.len() < self.0.limit {
                Ok(true)
            } else {
                Err(TooManyModels {
                    model: model.into(),
                    limit: self.0.limit,
                })
            }
        };
        if !admit(&lock(&self.0.known))? {
            return Ok(());
        }
        // The recorder is foreign code and may be slow: not under the lock.
        let counters = Arc::new(Counters::register(&self.0.prefix, model));
        let mut known = lock(&self.0.known);
        if admit(&known)? {
            known.insert(model.into(), counters);
        }
        Ok(())
    }

    /// From now on `model` is counted as unknown. Its series stay as they are.
    pub fn remove(&self, model: &str) {
        let gone = lock(&self.0.known).remove(model);
        drop(gone);
    }

    /// Whether `model` has counters of its own.
    pub fn contains(&self, model: &str) -> bool {
        lock(&self.0.known).contains_key(model)
    }

    pub(super) fn count(&self, kind: AnswerKind, model: Option<&Model>, endpoint: Endpoint) {
        let known = model
            .and_then(Model::name)
            .and_then(|name| lock(&self.0.known).get(name).cloned());
        let counters = known.as_ref().unwrap_or(&self.0.unknown);
        match kind {
            AnswerKind::Overloaded => counters.rejected[endpoint as usize].increment(1),
            AnswerKind::Unavailable => counters.unavailable[endpoint as usize].increment(1),
            AnswerKind::BadGateway | AnswerKind::Internal => {}
        }
    }
}

/// No model is known; the default prefix.
impl Default for KnownModels {
    fn default() -> Self {
        Self::new(Prefix::default())
    }
}

impl fmt::Debug for KnownModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownModels")
            .field("prefix", &self.0.prefix)
            .field("limit", &self.0.limit)
            .field("known", &lock(&self.0.known).len())
            .finish()
    }
}

/// The counters of one model, by endpoint.
struct Counters {
    rejected: [Counter; Endpoint::ALL.len()],
    unavailable: [Counter; Endpoint::ALL.len()],
}

impl Counters {
    fn register(prefix: &Prefix, model: &str) -> Self {
        Self {
            rejected: Endpoint::ALL
                .map(|endpoint| MODEL_REJECTIONS.counter(prefix, &[model, endpoint.as_str()])),
            unavailable: Endpoint::ALL
                .map(|endpoint| MODEL_UNAVAILABLE.counter(prefix, &[model, endpoint.as_str()])),
        }
    }
}

/// A model was not added: as many as allowed are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyModels {
    model: Box<str>,
    limit: usize,
}

impl fmt::Display for TooManyModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model {:?} cannot be added: at most {} models can be known",
            self.model, self.limit
        )
    }
}

impl Error for TooManyModels {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_the_endpoints_are_in_the_order_of_the_counters() {
        for (index, endpoint) in Endpoint::ALL.into_iter().enumerate() {
            assert_eq!(endpoint as usize, index);
        }
    }

    #[test]
    fn the_first_name_of_a_model_stays() {
        let model = Model::unset();
        assert_eq!(model.name(), None);
        let inside = model.clone();
        inside.set("tiny");
        inside.set("other");
        assert_eq!(model.name(), Some("tiny"));
    }

    #[test]
    fn no_more_models_are_known_than_allowed() {
        let models = KnownModels::with_limit(Prefix::default(), 2);
        models.add("a").unwrap();
        models.add("b").unwrap();
        let refused = models.add("c").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "model \"c\" cannot be added: at most 2 models can be known"
        );
        assert!(!models.contains("c"));
        models.add("a").expect("it is known already");
        models.remove("a");
        models.add("c").expect("there is room again");
    }
}
