use super::{EstimateTokens, ReadError, ScriptEstimator, coding, json, multipart, prompt::Counter};
use http::{HeaderMap, header::CONTENT_TYPE};
use std::borrow::Cow;

/// Reads what a gateway has to know of a request: its model, whether its
/// answer is streamed, how many answers it asks for, and the size of its
/// prompt.
///
/// One reader is made for all requests. See the [module](super) for what it
/// reads, and what counts.
#[derive(Clone, Debug)]
pub struct RequestReader<E = ScriptEstimator> {
    estimator: E,
    media_tokens: u64,
    max_decoded_bytes: usize,
    pub(super) max_depth: usize,
    pub(super) prompts: bool,
    pub(super) keys: bool,
}

/// What was read of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadRequest<'a> {
    /// The model, if the request names one.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is streamed. `None` where a request cannot say: it
    /// has no body, or one that is neither JSON nor a form.
    pub streamed: Option<bool>,
    /// How many answers are generated: the larger of `n` and `best_of`, for
    /// each prompt. At least 1. Where prompts are [not
    /// read](RequestReader::prompts) they are taken for one.
    pub choices: u64,
    /// An estimate of the tokens to prefill. 0 if prompts are [not
    /// read](RequestReader::prompts), or there is none.
    pub prompt_tokens: u64,
    /// The same for requests whose prompts begin with the same text, if [keys
    /// are read](RequestReader::keys) and there is one.
    pub key: Option<u64>,
}

impl ReadRequest<'_> {
    /// Returns the same without the body from which it was read.
    #[must_use]
    pub fn into_owned(self) -> ReadRequest<'static> {
        ReadRequest {
            model: self.model.map(|model| model.into_owned().into()),
            ..self
        }
    }
}

pub(super) type Found<'a> = ReadRequest<'a>;

impl RequestReader {
    /// Returns a reader that estimates prompts and makes no keys.
    pub const fn new() -> Self {
        Self {
            estimator: ScriptEstimator::new(),
            media_tokens: 1024,
            max_decoded_bytes: 32 * 1024 * 1024,
            max_depth: 128,
            prompts: true,
            keys: false,
        }
    }
}

impl Default for RequestReader {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> RequestReader<E> {
    /// Has `estimator` say of how many tokens a text is.
    pub fn estimator<F: EstimateTokens>(self, estimator: F) -> RequestReader<F> {
        RequestReader {
            estimator,
            media_tokens: self.media_tokens,
            max_decoded_bytes: self.max_decoded_bytes,
            max_depth: self.max_depth,
            prompts: self.prompts,
            keys: self.keys,
        }
    }

    /// What an image counts as, and audio, video or a file of which there is
    /// only the address (default: 1,024 tokens).
    #[must_use]
    pub const fn media_tokens(mut self, tokens: u64) -> Self {
        self.media_tokens = tokens;
        self
    }

    /// The longest that a compressed body may be when it is decoded (default:
    /// 32 MiB). So much memory is taken while it is read.
    #[must_use]
    pub const fn max_decoded_bytes(mut self, bytes: usize) -> Self {
        self.max_decoded_bytes = bytes;
        self
    }

    /// To how many a request's objects and arrays may be in each other
    /// (default: 128). Servers in Python fail at about a thousand.
    #[must_use]
    pub const fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = depth;
        self
    }

    /// Whether prompts are read and estimated (default: they are). Without
    /// them there are no keys either.
    #[must_use]
    pub const fn prompts(mut self, read: bool) -> Self {
        self.prompts = read;
        self
    }

    /// Whether requests get [keys](ReadRequest::key), for
    /// [`Affinity`](crate::pool::pick::Affinity) (default: they do not).
    #[must_use]
    pub const fn keys(mut self, made: bool) -> Self {
        self.keys = made;
        self
    }
}

impl<E: EstimateTokens> RequestReader<E> {
    /// Reads a request's body, by the `Content-Type` and the
    /// `Content-Encoding` among its headers.
    ///
    /// Does not wait, and takes time that is linear in the length of the body,
    /// as it came and decoded: 2 to 3 ms for each MB. What is made to hurt
    /// takes more, up to 0.3 s for each MB of deflate that says nothing. So a
    /// runtime is not held up by what is usual, and where bodies are long, or
    /// compressed, it is called where blocking is allowed.
    ///
    /// # Errors
    ///
    /// If the body is not what its headers say, or longer or deeper than it
    /// may be.
    pub fn read<'a>(
        &self,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<ReadRequest<'a>, ReadError> {
        match coding::decode(headers, body, self.max_decoded_bytes)? {
            Cow::Borrowed(body) => self.read_decoded(headers, body),
            Cow::Owned(body) => Ok(self.read_decoded(headers, &body)?.into_owned()),
        }
    }

    fn read_decoded<'a>(
        &self,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<Found<'a>, ReadError> {
        if body.is_empty() {
            return Ok(Found::nothing());
        }
        match Content::of(headers) {
            Content::Json => json::read(self, body),
            Content::Form(content_type) => multipart::read(self, content_type, body),
            Content::Unknown if begins_as_json(body) => match json::read(self, body) {
                Ok(found) => Ok(found),
                Err(_) => Ok(self.opaque(body)),
            },
            Content::Unknown => Ok(self.opaque(body)),
        }
    }

    /// A body of which nothing is known but its length.
    fn opaque(&self, body: &[u8]) -> Found<'static> {
        let mut counter = self.counter();
        if self.prompts {
            counter.file(body.len());
        }
        Found {
            prompt_tokens: counter.tokens,
            ..Found::nothing()
        }
    }

    pub(super) const fn counter(&self) -> Counter<'_, E> {
        Counter {
            estimator: &self.estimator,
            media_tokens: self.media_tokens,
            tokens: 0,
        }
    }
}

impl Found<'_> {
    pub(super) fn nothing() -> Self {
        Self {
            choices: 1,
            ..Self::default()
        }
    }
}

/// What a body is by its `Content-Type`.
enum Content<'h> {
    /// What is not said to be something else is taken for it, as servers do;
    /// and curl says that everything is a form.
    Json,
    Form(&'h str),
    Unknown,
}

impl<'h> Content<'h> {
    fn of(headers: &'h HeaderMap) -> Self {
        let Some(value) = headers.get(CONTENT_TYPE) else {
            return Self::Json;
        };
        let Ok(value) = value.to_str() else {
            return Self::Unknown;
        };
        let kind = value.split(';').next().unwrap_or_default().trim();
        let kind = kind.to_ascii_lowercase();
        match &*kind {
            "multipart/form-data" => Self::Form(value),
            "" | "application/json" | "application/x-www-form-urlencoded" => Self::Json,
            kind if kind.ends_with("+json") || kind.starts_with("text/") => Self::Json,
            _ => Self::Unknown,
        }
    }
}

fn begins_as_json(body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    body.trim_ascii_start().first() == Some(&b'{')
}
