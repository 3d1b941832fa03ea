//! What the data of an event says, as it comes: no tree, and no byte is kept
//! but of names.

/// The members that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Key {
    Other = 1,
    Arguments,
    CacheCreationInputTokens,
    CacheReadInputTokens,
    Choices,
    CompletionTokens,
    Content,
    ContentBlock,
    Delta,
    Details,
    Error,
    FinishReason,
    Function,
    FunctionCall,
    GeneratedTokens,
    InputLength,
    InputTokens,
    Message,
    MetaInfo,
    Name,
    OutputTokens,
    PartialJson,
    PredictedN,
    PromptTokens,
    Reasoning,
    ReasoningContent,
    Refusal,
    Response,
    Stop,
    Text,
    Thinking,
    Timings,
    Token,
    TokenIds,
    TokensEvaluated,
    TokensPredicted,
    ToolCalls,
    Type,
    Usage,
}

impl Key {
    fn of(name: &[u8]) -> Self {
        match name {
            b"arguments" => Self::Arguments,
            b"cache_creation_input_tokens" => Self::CacheCreationInputTokens,
            b"cache_read_input_tokens" => Self::CacheReadInputTokens,
            b"choices" => Self::Choices,
            b"completion_tokens" => Self::CompletionTokens,
            b"content" => Self::Content,
            b"content_block" => Self::ContentBlock,
            b"delta" => Self::Delta,
            b"details" => Self::Details,
            b"error" => Self::Error,
            b"finish_reason" => Self::FinishReason,
            b"function" => Self::Function,
            b"function_call" => Self::FunctionCall,
            b"generated_tokens" => Self::GeneratedTokens,
            b"input_length" => Self::InputLength,
            b"input_tokens" => Self::InputTokens,
            b"message" => Self::Message,
            b"meta_info" => Self::MetaInfo,
            b"name" => Self::Name,
            b"output_tokens" => Self::OutputTokens,
            b"partial_json" => Self::PartialJson,
            b"predicted_n" => Self::PredictedN,
            b"prompt_tokens" => Self::PromptTokens,
            b"reasoning" => Self::Reasoning,
            b"reasoning_content" => Self::ReasoningContent,
            b"refusal" => Self::Refusal,
            b"response" => Self::Response,
            b"stop" => Self::Stop,
            b"text" => Self::Text,
            b"thinking" => Self::Thinking,
            b"timings" => Self::Timings,
            b"token" => Self::Token,
            b"token_ids" => Self::TokenIds,
            b"tokens_evaluated" => Self::TokensEvaluated,
            b"tokens_predicted" => Self::TokensPredicted,
            b"tool_calls" => Self::ToolCalls,
            b"type" => Self::Type,
            b"usage" => Self::Usage,
            _ => Self::Other,
        }
    }

    /// Only an event of an API that is known here has it at its top.
    const fn is_of_known_event(self) -> bool {
        use Key::*;
        matches!(
            self,
            Choices | Delta | Error | MetaInfo | Stop | Timings | Token | TokensPredicted | Usage
        )
    }
}

/// Where a value is: the keys that lead to it, a byte each. Arrays have none.
type Path = u64;

const fn below(path: Path, key: Key) -> Path {
    (path << 8) | key as Path
}

macro_rules! paths {
    ($($name:ident = $($key:ident).+;)*) => {
        $(const $name: Path = { let path = 0; $(let path = below(path, Key::$key);)+ path };)*
    };
}

paths! {
    CHAT = Choices.Delta.Content;
    CHAT_PART = Choices.Delta.Content.Text;
    CHAT_REFUSAL = Choices.Delta.Refusal;
    CHAT_TOOL = Choices.Delta.ToolCalls.Function.Name;
    CHAT_TOOL_ARGUMENTS = Choices.Delta.ToolCalls.Function.Arguments;
    CHAT_FUNCTION = Choices.Delta.FunctionCall.Name;
    CHAT_FUNCTION_ARGUMENTS = Choices.Delta.FunctionCall.Arguments;
    CHAT_REASONING = Choices.Delta.Reasoning;
    CHAT_REASONING_CONTENT = Choices.Delta.ReasoningContent;
    COMPLETION = Choices.Text;
    FINISHED = Choices.FinishReason;
    IDS = Choices.TokenIds;
    RESPONSES = Delta;
    ANTHROPIC_TEXT = Delta.Text;
    ANTHROPIC_THINKING = Delta.Thinking;
    ANTHROPIC_JSON = Delta.PartialJson;
    ANTHROPIC_BLOCK = ContentBlock.Text;
    ANTHROPIC_TOOL = ContentBlock.Name;
    LLAMA_CPP = Content;
    TGI = Token.Text;
    TOKEN = Token;
    WORKERS_AI = Response;
    TYPE = Type;
    STOP = Stop;
    ERROR = Error;
    OUT_OPENAI = Usage.CompletionTokens;
    OUT_ANTHROPIC = Usage.OutputTokens;
    OUT_RESPONSES = Response.Usage.OutputTokens;
    OUT_SGLANG = MetaInfo.CompletionTokens;
    OUT_LLAMA_CPP = TokensPredicted;
    OUT_TIMINGS = Timings.PredictedN;
    OUT_TGI = Details.GeneratedTokens;
    IN_OPENAI = Usage.PromptTokens;
    IN_ANTHROPIC = Usage.InputTokens;
    IN_ANTHROPIC_START = Message.Usage.InputTokens;
    IN_RESPONSES = Response.Usage.InputTokens;
    IN_SGLANG = MetaInfo.PromptTokens;
    IN_LLAMA_CPP = TokensEvaluated;
    IN_TGI = Details.InputLength;
    CACHE_READ = Usage.CacheReadInputTokens;
    CACHE_READ_START = Message.Usage.CacheReadInputTokens;
    CACHE_WRITTEN = Usage.CacheCreationInputTokens;
    CACHE_WRITTEN_START = Message.Usage.CacheCreationInputTokens;
}

/// What the data of one event has said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    text: u64,
    // Some engines send the same text as both.
    reasoning: u64,
    reasoning_content: u64,
    /// Ids of tokens.
    pub(super) ids: u64,
    /// All tokens of the answer so far, and those of the prompt.
    pub(super) output_tokens: Option<u64>,
    prompt_tokens: Option<u64>,
    /// What Anthropic's API leaves out of the tokens of the prompt.
    cached_tokens: u64,
    /// It is an event of an API that is known here.
    pub(super) is_known: bool,
    /// An answer has all its text.
    pub(super) is_finished: bool,
    /// It is the last event.
    pub(super) is_last: bool,
}

impl Said {
    /// Bytes of generated text.
    pub(super) fn text(&self) -> u64 {
        let reasoning = self.reasoning.max(self.reasoning_content);
        self.text.saturating_add(reasoning)
    }

    fn text_of(&mut self, path: Path) -> Option<&mut u64> {
        match path {
            CHAT
            | CHAT_PART
            | CHAT_REFUSAL
            | CHAT_TOOL
            | CHAT_TOOL_ARGUMENTS
            | CHAT_FUNCTION
            | CHAT_FUNCTION_ARGUMENTS
            | COMPLETION
            | RESPONSES
            | ANTHROPIC_TEXT
            | ANTHROPIC_THINKING
            | ANTHROPIC_JSON
            | ANTHROPIC_BLOCK
            | ANTHROPIC_TOOL
            | LLAMA_CPP
            | TGI
            | TOKEN
            | WORKERS_AI => Some(&mut self.text),
            CHAT_REASONING => Some(&mut self.reasoning),
            CHAT_REASONING_CONTENT => Some(&mut self.reasoning_content),
            _ => None,
        }
    }

    /// All tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        Some(self.prompt_tokens?.saturating_add(self.cached_tokens))
    }

    fn number(&mut self, path: Path, value: u64) {
        let count = match path {
            OUT_OPENAI | OUT_ANTHROPIC | OUT_RESPONSES | OUT_SGLANG | OUT_LLAMA_CPP
            | OUT_TIMINGS | OUT_TGI => &mut self.output_tokens,
            IN_OPENAI | IN_ANTHROPIC | IN_ANTHROPIC_START | IN_RESPONSES | IN_SGLANG
            | IN_LLAMA_CPP | IN_TGI => &mut self.prompt_tokens,
            CACHE_READ | CACHE_READ_START | CACHE_WRITTEN | CACHE_WRITTEN_START => {
                self.cached_tokens = self.cached_tokens.saturating_add(value);
                return;
            }
            _ => return,
        };
        *count = Some(count.map_or(value, |count| count.max(value)));
    }

    /// The name of an event, or its `type`.
    pub(super) fn name(&mut self, name: &[u8]) {
        let is_last = matches!(
            name,
            b"error"
                | b"message_stop"
                | b"response.completed"
                | b"response.failed"
                | b"response.incomplete"
        );
        self.is_last |= is_last;
        self.is_known |= is_last
            || name == b"ping"
            || [&b"response."[..], b"message_", b"content_block_"]
                .iter()
                .any(|api| name.starts_with(api));
    }
}

/// A short text, of which as much is kept as it takes to know it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    bytes: [u8; Self::LONGEST],
    length: u8,
}

impl Word {
    const LONGEST: usize = 32;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let length = usize::from(self.length);
        let end = length.saturating_add(bytes.len()).min(Self::LONGEST + 1);
        if let (Some(place), Some(bytes)) = (
            self.bytes.get_mut(length..end.min(Self::LONGEST)),
            bytes.get(..end.min(Self::LONGEST).saturating_sub(length)),
        ) {
            place.copy_from_slice(bytes);
        }
        // At most one more than there is room for.
        self.length = end as u8;
    }

    /// All of it, or its beginning if it is too long.
    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(Self::LONGEST)]
    }
}

/// Objects and arrays within each other that are looked into. The deepest that
/// matters is the seventh.
const DEEPEST: usize = 8;

/// Reads one JSON text in pieces of any size. Of what is none it makes
/// something, or nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Json {
    pub(super) said: Said,
    /// The path of each container, and whether it is an array.
    levels: [(Path, bool); DEEPEST],
    depth: u64,
    /// The last name in the container that is under way, and whether its
    /// value is under way.
    key: Option<Key>,
    at: At,
    word: Word,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Between,
    String(Escape),
    /// Its digits so far; `false`: no whole number any more.
    Number(u64, bool),
    /// `true`, `false`, `null`.
    Literal,
}

#[derive(Clone, Copy, Debug)]
enum Escape {
    None,
    Begun,
    /// The digits that came of a `\u`, and their value.
    Unicode(u8, u16),
}

impl Json {
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.at {
                At::String(Escape::None) => {
                    let end = bytes.iter().position(|it| matches!(it, b'"' | b'\\'));
                    let (text, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                    self.text(text, text.len() as u64);
                    bytes = rest.get(1..).unwrap_or_default();
                    match rest.first() {
                        Some(b'"') => self.end_string(),
                        Some(_) => self.at = At::String(Escape::Begun),
                        None => {}
                    }
                    continue;
                }
                At::String(escape) => self.escaped(escape, byte),
                At::Number(value, is_whole) => match byte {
                    b'0'..=b'9' if is_whole => {
                        let value = value.saturating_mul(10);
                        self.at = At::Number(value.saturating_add(u64::from(byte - b'0')), true);
                    }
                    b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-' => {
                        self.at = At::Number(value, false);
                    }
                    _ => {
                        self.at = At::Between;
                        if is_whole {
                            self.said.number(self.path(), value);
                        }
                        continue;
                    }
                },
                At::Literal if byte.is_ascii_alphabetic() => {}
                At::Literal => {
                    self.at = At::Between;
                    continue;
                }
                At::Between => self.between(byte),
            }
            bytes = rest;
        }
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.word = Word::default();
                self.at = At::String(Escape::None);
            }
            b'{' | b'[' => {
                let path = self.path();
                if path == ERROR {
                    self.said.is_last = true;
                }
                if let Some(level) = self.level(self.depth) {
                    *level = (path, byte == b'[');
                }
                self.depth = self.depth.saturating_add(1);
                self.key = None;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.key = None;
            }
            b',' => self.key = None,
            b'0'..=b'9' => {
                if self.path() == IDS {
                    self.said.ids = self.said.ids.saturating_add(1);
                }
                self.at = At::Number(u64::from(byte - b'0'), true);
            }
            b'-' => self.at = At::Number(0, false),
            b'a'..=b'z' => {
                if byte == b't' && self.path() == STOP {
                    self.said.is_last = true;
                }
                self.at = At::Literal;
            }
            _ => {}
        }
    }

    fn level(&mut self, depth: u64) -> Option<&mut (Path, bool)> {
        self.levels.get_mut(usize::try_from(depth).ok()?)
    }

    /// The container that is under way, if it is looked into.
    fn container(&self) -> Option<(Path, bool)> {
        let at = usize::try_from(self.depth.checked_sub(1)?).ok()?;
        self.levels.get(at).copied()
    }

    /// Where the value is that is under way.
    fn path(&self) -> Path {
        match (self.container(), self.key) {
            (Some((path, true)), _) => path,
            (Some((path, false)), Some(key)) => below(path, key),
            _ => 0,
        }
    }

    /// Whether a string that is under way is the name of a member.
    fn is_name(&self) -> bool {
        self.key.is_none() && matches!(self.container(), Some((_, false)))
    }

    /// More of a string: as it is written, and its bytes when it is decoded.
    fn text(&mut self, written: &[u8], bytes: u64) {
        if self.is_name() {
            self.word.push(written);
            return;
        }
        let path = self.path();
        if matches!(path, TYPE | FINISHED) {
            self.word.push(written);
        }
        if let Some(text) = self.said.text_of(path) {
            *text = text.saturating_add(bytes);
        }
    }

    fn escaped(&mut self, escape: Escape, byte: u8) {
        let (digits, value) = match escape {
            Escape::None | Escape::Begun if byte != b'u' => {
                self.at = At::String(Escape::None);
                return self.text(&[b'\\', byte], 1);
            }
            Escape::None | Escape::Begun => (0, 0),
            Escape::Unicode(digits, value) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0) as u16;
                (digits + 1, (value << 4) | digit)
            }
        };
        if digits < 4 {
            self.at = At::String(Escape::Unicode(digits, value));
            return;
        }
        self.at = At::String(Escape::None);
        // In UTF-8; two for each half of what is written as two.
        self.text(
            b"\\",
            match value {
                0..0x80 => 1,
                0x80..0x800 | 0xd800..0xe000 => 2,
                _ => 3,
            },
        );
    }

    fn end_string(&mut self) {
        self.at = At::Between;
        if self.is_name() {
            let key = Key::of(self.word.get());
            self.key = Some(key);
            self.said.is_known |= self.depth == 1 && key.is_of_known_event();
            return;
        }
        match self.path() {
            TYPE => {
                let word = self.word;
                self.said.name(word.get());
            }
            FINISHED => self.said.is_finished |= !self.word.get().is_empty(),
            ERROR => self.said.is_last = true,
            _ => {}
        }
    }
}
