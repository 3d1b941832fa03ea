use std::sync::Arc;

/// Says of how many tokens a text is.
///
/// Implemented for closures, so that a tokenizer of the application's can take
/// the place of the [`ScriptEstimator`]:
///
/// ```
/// use tower_overload::api::RequestReader;
///
/// # let tokenizer = |text: &str| vec![0_u32; text.len()];
/// let reader = RequestReader::new().estimator(move |text: &str| tokenizer(text).len() as u64);
/// ```
///
/// It is called on the path of every request, once for each text of it.
pub trait EstimateTokens {
    /// Returns the number of tokens of `text`, exact or not.
    fn tokens(&self, text: &str) -> u64;
}

impl<F: Fn(&str) -> u64> EstimateTokens for F {
    fn tokens(&self, text: &str) -> u64 {
        self(text)
    }
}

impl<T: EstimateTokens + ?Sized> EstimateTokens for Arc<T> {
    fn tokens(&self, text: &str) -> u64 {
        (**self).tokens(text)
    }
}

/// Estimates tokens by the scripts of a text, without a vocabulary.
///
/// The byte-pair vocabularies of today's models are alike in what they have a
/// token for: short words, a few digits, a run of spaces, one or two signs of
/// Chinese. So the estimate goes over a text once and adds what each character
/// costs where it stands, in 64ths of a token. The costs were fitted to
/// OpenAI's two public vocabularies, on texts that are in the repository
/// (`tests/data/prompts`), and leave a reserve: too high is better than too
/// low where load is judged. On none of these texts, and on no piece of 80
/// characters of them, is it below half:
#[doc = include_str!("estimate.md")]
///
/// Random text has no words, and is estimated at about a quarter of its tokens
/// at worst if it is made of letters of one script. Vocabularies from before
/// 2022, such as GPT-2's, take several times as many tokens for scripts other
/// than Latin; they need an estimator of their own.
///
/// Takes time that is linear in the text, and no memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptEstimator(());

impl ScriptEstimator {
    /// Returns the estimator.
    pub const fn new() -> Self {
        Self(())
    }
}

impl EstimateTokens for ScriptEstimator {
    fn tokens(&self, text: &str) -> u64 {
        let mut run = Run::None;
        let cost = text.chars().fold(0_u64, |sum, character| {
            sum.saturating_add(run.cost_of(character))
        });
        cost.div_ceil(WHOLE)
    }
}

/// All costs are in parts of a token, of which so many are one.
const WHOLE: u64 = 64;

/// What the character before this one belongs to, and its length so far.
#[derive(Clone, Copy, Debug)]
enum Run {
    None,
    /// Letters, of which the first may be a capital.
    Word(u32),
    Capitals(u32),
    Digits(u32),
    Spaces(u32),
    Newlines,
    Punctuation,
}

impl Run {
    /// What `character` adds to the cost of a text that so far ends with this
    /// run, which becomes the one with it.
    fn cost_of(&mut self, character: char) -> u64 {
        match character {
            'a'..='z' => self.letter(0),
            'A'..='Z' => self.capital(),
            ' ' | '\t' => self.space(),
            '0'..='9' => self.digit(),
            '\n' | '\r' => match std::mem::replace(self, Self::Newlines) {
                Self::Newlines => 3,
                _ => 50,
            },
            '!'..='~' => match std::mem::replace(self, Self::Punctuation) {
                Self::Punctuation => 32,
                _ => 48,
            },
            _ => match Letter::of(character) {
                Letter::Latin(more) => self.letter(more),
                Letter::Other(cost) => {
                    *self = Self::None;
                    cost
                }
            },
        }
    }

    /// A word of up to five letters is one token.
    fn letter(&mut self, more: u64) -> u64 {
        let (length, cost) = match *self {
            Self::Word(before) => match before {
                0..5 => (before + 1, 0),
                5..12 => (before + 1, 11),
                // Long enough to be no word.
                _ => (before, 24),
            },
            // The last capital is the first letter of this word.
            Self::Capitals(1) => (2, 12),
            Self::Capitals(_) => (2, 38),
            _ => (1, 62),
        };
        *self = Self::Word(length);
        cost + more
    }

    fn capital(&mut self) -> u64 {
        match self {
            Self::Capitals(length) => {
                *length = 2;
                24
            }
            _ => {
                *self = Self::Capitals(1);
                50
            }
        }
    }

    fn digit(&mut self) -> u64 {
        match self {
            Self::Digits(length) => {
                *length ^= 1;
                u64::from(*length & 1) * 48
            }
            _ => {
                *self = Self::Digits(1);
                48
            }
        }
    }

    /// One belongs to the word behind it; more are a token of their own.
    fn space(&mut self) -> u64 {
        match self {
            Self::Spaces(length @ 1) => {
                *length = 2;
                34
            }
            Self::Spaces(length @ ..8) => {
                *length += 1;
                0
            }
            Self::Spaces(_) => 1,
            _ => {
                *self = Self::Spaces(1);
                6
            }
        }
    }
}

/// What is outside of ASCII, and its control characters.
enum Letter {
    /// Belongs to a word, which costs more for it.
    Latin(u64),
    Other(u64),
}

impl Letter {
    const fn of(character: char) -> Self {
        match character as u32 {
            0xc0..=0xff => Self::Latin(28),
            0x100..=0x17f => Self::Latin(44),
            0x180..=0x24f => Self::Latin(100),
            // Mostly Vietnamese.
            0x1e00..=0x1eff => Self::Latin(36),
            0x00..=0x7f => Self::Other(40),
            0x80..=0xbf => Self::Other(64),
            // Greek, Cyrillic, Armenian, Hebrew, Arabic.
            0x370..=0x3ff => Self::Other(46),
            0x400..=0x45f => Self::Other(30),
            0x530..=0x58f => Self::Other(90),
            0x590..=0x5ff => Self::Other(50),
            0x600..=0x6ff => Self::Other(40),
            // Devanagari, the other scripts of India, of which Odia and Sinhala
            // are rare; Thai; Lao and Tibetan, Burmese and Georgian, Khmer.
            0x900..=0x97f => Self::Other(48),
            0xb00..=0xb7f | 0xd80..=0xdff => Self::Other(108),
            0x980..=0xd7f => Self::Other(76),
            0xe00..=0xe7f => Self::Other(46),
            0xe80..=0xfff => Self::Other(96),
            0x1000..=0x10ff | 0x1780..=0x17ff => Self::Other(100),
            // Combining marks.
            0x300..=0x36f => Self::Other(96),
            // Punctuation and signs; arrows and all after them are rarer.
            0x2000..=0x218f => Self::Other(64),
            0x2190..=0x27ff => Self::Other(96),
            // Chinese, Japanese, Korean: signs and kana, ideographs, the rare
            // ones, Hangul, full-width forms.
            0x3000..=0x30ff => Self::Other(56),
            0x3400..=0x4dbf => Self::Other(128),
            0x4e00..=0x9fff => Self::Other(64),
            0xac00..=0xd7a3 => Self::Other(84),
            0xff00..=0xffef => Self::Other(80),
            // Emoji and all else above.
            0x1_0000.. => Self::Other(130),
            // Rare: a token for each of up to three bytes.
            _ => Self::Other(128),
        }
    }
}
