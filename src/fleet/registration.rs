//! What is said of a worker, by itself or by an operator: pure rules.

use super::Refused;
use crate::load::{Change, WorkerConfig};
use http::Uri;
use std::{sync::Arc, time::Duration};

/// The most bytes of the name of a worker or a model.
pub const MAX_NAME: usize = 256;

/// The most bytes of the URL of a worker.
pub const MAX_URL: usize = 2048;

/// The most models of one worker, LoRA adapters included.
pub const MAX_MODELS: usize = 1024;

/// The range of a [time to live](Origin::Reported).
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));

/// Who says that a worker is there, and so when it is there no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operator's configuration: it stays, whatever it does and whoever
    /// else registers it, until an operator [removes](super::Fleet::remove) it.
    Static,
    /// The worker itself: it is removed when nothing was heard of it for this
    /// long, from 1 ms to a day. A registration is heard, and a load event is.
    Reported(Duration),
    /// A discovery of this name: it is there until that says
    /// [otherwise](super::Fleet::leave).
    Source(Arc<str>),
}

impl Origin {
    /// A discovery of this name.
    pub fn source(name: impl Into<Arc<str>>) -> Self {
        Self::Source(name.into())
    }
}

/// A worker: where it is reached, and what it is.
///
/// ```
/// use tower_overload::fleet::Registration;
///
/// let worker = Registration::at("http://10.0.0.1:8000")
///     .models(["llama-3-8b"])
///     .lora("sql-adapter", "llama-3-8b")
///     .kv_total_blocks(4096);
/// assert_eq!(worker.models, Some(vec!["llama-3-8b".to_owned()]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// Where it is reached: `http://` or `https://`, a host, perhaps a port and
    /// a path.
    pub url: String,
    /// Its data-parallel ranks; `None` if that is not known, which is one rank
    /// 0 until its metrics say otherwise.
    pub dp_ranks: Option<Vec<u32>>,
    /// The KV blocks that each rank has, if known.
    pub kv_total_blocks: Option<u64>,
    /// The tokens that each rank takes into one batch, if known.
    pub max_num_batched_tokens: Option<u64>,
    /// Whether it wants no new requests.
    pub draining: bool,
    /// What it serves; `None` is the default model of the fleet.
    pub models: Option<Vec<String>>,
    /// The LoRA adapters that it serves, each with the one of its models that
    /// it adapts.
    pub loras: Vec<(String, String)>,
}

impl Registration {
    /// A worker of which only the address is known.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ..Self::default()
        }
    }

    /// Its data-parallel ranks.
    #[must_use]
    pub fn dp_ranks(mut self, ranks: impl IntoIterator<Item = u32>) -> Self {
        self.dp_ranks = Some(ranks.into_iter().collect());
        self
    }

    /// The KV blocks of each rank.
    #[must_use]
    pub fn kv_total_blocks(mut self, blocks: impl Into<Option<u64>>) -> Self {
        self.kv_total_blocks = blocks.into();
        self
    }

    /// The tokens that each rank takes into one batch.
    #[must_use]
    pub fn max_num_batched_tokens(mut self, tokens: impl Into<Option<u64>>) -> Self {
        self.max_num_batched_tokens = tokens.into();
        self
    }

    /// Whether it wants no new requests.
    #[must_use]
    pub fn draining(mut self, draining: bool) -> Self {
        self.draining = draining;
        self
    }

    /// What it serves.
    #[must_use]
    pub fn models<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.models = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// A LoRA adapter that it serves, and the model that this adapts.
    #[must_use]
    pub fn lora(mut self, name: impl Into<String>, base: impl Into<String>) -> Self {
        self.loras.push((name.into(), base.into()));
        self
    }

    /// What its members say, taken apart.
    pub(super) fn check(&self, default_model: Option<&str>) -> Result<Checked, Refused> {
        let url = check_url(&self.url)?;
        let ranks = self.dp_ranks.clone().unwrap_or_else(|| vec![0]);
        let given = WorkerConfig::new(ranks)
            .map_err(Refused::invalid)?
            .kv_total_blocks(self.kv_total_blocks)
            .max_num_batched_tokens(self.max_num_batched_tokens);
        let bases: Vec<&str> = match (&self.models, default_model) {
            (Some(names), _) => names.iter().map(String::as_str).collect(),
            (None, Some(model)) => vec![model],
            (None, None) => return Err(Refused::invalid("models is not given")),
        };
        let names = bases.len() + self.loras.len();
        if bases.is_empty() || names > MAX_MODELS {
            return Err(Refused::invalid(format!(
                "models has {names} names: expected from 1 to {MAX_MODELS}, loras included"
            )));
        }
        let mut models: Vec<ModelName> = Vec::with_capacity(names);
        for name in bases {
            models.push(ModelName::new(name, None));
        }
        for (name, base) in &self.loras {
            if !models.iter().any(|model| model.is_base(base)) {
                return Err(Refused::invalid(format!(
                    "loras has {name:?} of {base:?}: expected one of models"
                )));
            }
            models.push(ModelName::new(name, Some(base)));
        }
        let mut seen = std::collections::HashSet::with_capacity(names);
        for model in &models {
            check_name("models", &model.name)?;
            if !seen.insert(&*model.name) {
                return Err(Refused::invalid(format!(
                    "models has {:?} twice",
                    &*model.name
                )));
            }
        }
        Ok(Checked { url, given, models })
    }
}

/// A registration that can be used.
pub(super) struct Checked {
    pub(super) url: Uri,
    /// With a rank 0, should it say nothing of ranks.
    pub(super) given: WorkerConfig,
    pub(super) models: Vec<ModelName>,
}

/// A model that a worker serves.
pub(super) struct ModelName {
    pub(super) name: Arc<str>,
    /// What it adapts, if it is a LoRA adapter.
    pub(super) base: Option<Arc<str>>,
}

impl ModelName {
    fn new(name: &str, base: Option<&String>) -> Self {
        Self {
            name: name.into(),
            base: base.map(|base| base.as_str().into()),
        }
    }

    fn is_base(&self, name: &str) -> bool {
        self.base.is_none() && *self.name == *name
    }
}

/// A change of a worker: what it does not name stays as it is.
///
/// ```
/// use tower_overload::{fleet::WorkerUpdate, load::Change};
///
/// let update = WorkerUpdate::new().draining(true).kv_total_blocks(Change::Clear);
/// assert!(!update.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct WorkerUpdate {
    url: Option<String>,
    dp_ranks: Change<Vec<u32>>,
    kv_total_blocks: Change<u64>,
    max_num_batched_tokens: Change<u64>,
    draining: Option<bool>,
    models: Change<Vec<String>>,
    loras: Change<Vec<(String, String)>>,
    pub(super) ttl: Option<Duration>,
}

impl WorkerUpdate {
    /// An update that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes where it is reached: with another URL it is another worker.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Changes its ranks.
    pub fn dp_ranks(mut self, ranks: impl Into<Change<Vec<u32>>>) -> Self {
        self.dp_ranks = ranks.into();
        self
    }

    /// Changes the KV blocks of each rank.
    pub fn kv_total_blocks(mut self, blocks: impl Into<Change<u64>>) -> Self {
        self.kv_total_blocks = blocks.into();
        self
    }

    /// Changes the tokens that each rank takes into one batch.
    pub fn max_num_batched_tokens(mut self, tokens: impl Into<Change<u64>>) -> Self {
        self.max_num_batched_tokens = tokens.into();
        self
    }

    /// Drains the worker, or ends that.
    ///
    /// There are two wishes, and either is enough: the worker's own, which is
    /// meant with a [`ttl`](Self::ttl), and the operator's, which is meant
    /// without. So a worker that registers again does not end what its
    /// operator has begun.
    pub fn draining(mut self, draining: bool) -> Self {
        self.draining = Some(draining);
        self
    }

    /// Changes what it serves.
    pub fn models(mut self, models: impl Into<Change<Vec<String>>>) -> Self {
        self.models = models.into();
        self
    }

    /// Changes the LoRA adapters that it serves, each with the model that it
    /// adapts.
    pub fn loras(mut self, loras: impl Into<Change<Vec<(String, String)>>>) -> Self {
        self.loras = loras.into();
        self
    }

    /// The worker itself says so, and is removed when nothing was heard of it
    /// for this long. Without it, an operator says so.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The registration with what the update names.
    pub(super) fn onto(self, known: Option<&Registration>) -> Result<Registration, Refused> {
        let known = known.cloned().unwrap_or_default();
        let url = self.url.unwrap_or(known.url);
        if url.is_empty() {
            return Err(Refused::invalid("url is not given"));
        }
        Ok(Registration {
            url,
            dp_ranks: self.dp_ranks.onto(known.dp_ranks),
            kv_total_blocks: self.kv_total_blocks.onto(known.kv_total_blocks),
            max_num_batched_tokens: self
                .max_num_batched_tokens
                .onto(known.max_num_batched_tokens),
            draining: match (self.ttl, self.draining) {
                (Some(_), Some(draining)) => draining,
                _ => known.draining,
            },
            models: self.models.onto(known.models),
            loras: self.loras.onto(Some(known.loras)).unwrap_or_default(),
        })
    }

    /// Whether the operator drains the worker from here on; `None`: as before.
    pub(super) fn operator_drains(&self) -> Option<bool> {
        self.draining.filter(|_| self.ttl.is_none())
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), Refused> {
    if (TTL.0..=TTL.1).contains(&ttl) {
        return Ok(());
    }
    Err(Refused::invalid(format!(
        "the time to live is {ttl:?}: expected from {:?} to {:?}",
        TTL.0, TTL.1
    )))
}

pub(super) fn check_id(id: &str) -> Result<(), Refused> {
    check_name("the id", id)?;
    // However they are encoded, clients resolve them when they are a segment of
    // a path: no request of the admin API would come to the worker.
    if matches!(id, "." | "..") {
        return Err(Refused::invalid(format!(
            "the id is {id:?}, which no URL can name"
        )));
    }
    Ok(())
}

pub(super) fn check_name(what: &str, name: &str) -> Result<(), Refused> {
    if !name.is_empty() && name.len() <= MAX_NAME {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME).collect();
    Err(Refused::invalid(format!(
        "{what} is {shown:?}: expected at least one character and at most {MAX_NAME} bytes"
    )))
}

fn check_url(url: &str) -> Result<Uri, Refused> {
    let refused = || {
        // It may hold a password, which is not for logs.
        let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
        let shown: String = shown.chars().take(MAX_NAME).collect();
        Refused::invalid(format!(
            "url is {shown:?}: expected a URL of the form http://HOST:PORT or https://HOST:PORT, \
             perhaps with a path, with at most {MAX_URL} bytes"
        ))
    };
    let parsed: Uri = url.parse().map_err(|_| refused())?;
    let is_http = matches!(parsed.scheme_str(), Some("http" | "https"));
    let has_host = parsed.host().is_some_and(|host| !host.is_empty());
    let is_base = parsed.query().is_none() && !url.contains(['#', '@']);
    if url.len() <= MAX_URL && is_http && has_host && is_base && has_usable_port(&parsed) {
        Ok(parsed)
    } else {
        Err(refused())
    }
}

/// The parser of URLs takes any digits after the colon.
fn has_usable_port(url: &Uri) -> bool {
    url.authority().is_some_and(|authority| {
        let port = authority.as_str().rsplit_once(':');
        let named = port.is_some_and(|(_, port)| !port.ends_with(']'));
        !named || authority.port_u16().is_some_and(|port| port > 0)
    })
}

/// Whether both are the URL of one worker: a slash at the end says nothing.
pub(super) fn is_same_url(one: &Uri, other: &Uri) -> bool {
    let path = |url: &Uri| url.path().trim_end_matches('/').to_owned();
    one.scheme() == other.scheme()
        && one.authority() == other.authority()
        && path(one) == path(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(registration: Registration) -> String {
        let checked = registration.check(Some("tiny"));
        checked.err().expect("it is refused").to_string()
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let good = || Registration::at("http://a:1");
        assert!(good().check(Some("tiny")).is_ok());
        assert!(refusal(Registration::at("ftp://a")).contains("url"));
        assert!(refusal(Registration::at("http://a:65536")).contains("url"));
        assert!(refusal(Registration::at("http://a?b")).contains("url"));
        let secret = refusal(Registration::at("http://user:secret@a"));
        assert!(!secret.contains("secret"), "{secret}");
        assert!(refusal(good().dp_ranks([0, 0])).contains("twice"));
        assert!(refusal(good().models([""; 0])).contains("1 to 1024"));
        assert!(refusal(good().models(["m", "m"])).contains("twice"));
        assert!(refusal(good().models(["m"]).lora("m", "m")).contains("twice"));
        assert!(refusal(good().models(["m"]).lora("l", "n")).contains("one of models"));
        assert!(good().check(None).is_err(), "no model, and no default");
    }

    #[test]
    fn a_lora_is_of_a_model_that_the_worker_serves() {
        let checked = Registration::at("http://a")
            .lora("sql", "tiny")
            .check(Some("tiny"))
            .unwrap_or_else(|refused| panic!("{refused}"));
        let names: Vec<_> = checked
            .models
            .iter()
            .map(|model| (&*model.name, model.base.as_deref()))
            .collect();
        assert_eq!(names, [("tiny", None), ("sql", Some("tiny"))]);
    }

    #[test]
    fn an_update_changes_what_it_names_and_nothing_else() {
        let known = Registration::at("http://a")
            .dp_ranks([0, 1])
            .kv_total_blocks(10)
            .max_num_batched_tokens(20)
            .models(["m"])
            .lora("l", "m");
        let unchanged = WorkerUpdate::new().onto(Some(&known));
        assert_eq!(unchanged.ok().as_ref(), Some(&known));
        let update = WorkerUpdate::new()
            .kv_total_blocks(Change::Clear)
            .max_num_batched_tokens(30);
        let changed = update.onto(Some(&known)).ok();
        let expected = known
            .clone()
            .kv_total_blocks(None)
            .max_num_batched_tokens(30);
        assert_eq!(changed, Some(expected));
        assert!(WorkerUpdate::new().onto(None).is_err(), "no url");
    }

    #[test]
    fn the_worker_and_its_operator_drain_apart() {
        let known = Registration::at("http://a").draining(true);
        let operator = WorkerUpdate::new().draining(false);
        assert_eq!(operator.operator_drains(), Some(false));
        assert!(operator.onto(Some(&known)).is_ok_and(|new| new.draining));
        let worker = WorkerUpdate::new()
            .ttl(Duration::from_secs(1))
            .draining(false);
        assert_eq!(worker.operator_drains(), None);
        assert!(worker.onto(Some(&known)).is_ok_and(|new| !new.draining));
    }

    #[test]
    fn a_slash_at_the_end_is_no_other_url() {
        let same =
            |one: &str, other: &str| is_same_url(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(same("http://a:1", "http://a:1/") && same("http://a/b/", "http://a/b"));
        assert!(!same("http://a:1", "https://a:1") && !same("http://a/b", "http://a/c"));
    }
}
