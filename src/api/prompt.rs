//! The texts of a prompt that is JSON, counted as they are parsed: no tree.

use super::{
    EstimateTokens,
    scalar::{Name, Scalar},
};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::fmt;

/// What the texts of a prompt add up to.
#[derive(Debug)]
pub(super) struct Counter<'a, E> {
    pub(super) estimator: &'a E,
    /// What an image counts as, and another medium of which there is only the
    /// address.
    pub(super) media_tokens: u64,
    pub(super) tokens: u64,
}

impl<E: EstimateTokens> Counter<'_, E> {
    pub(super) fn add(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.add(self.estimator.tokens(text));
    }

    /// A file, or a recording, of so many bytes.
    pub(super) fn file(&mut self, bytes: usize) {
        self.add(bytes as u64 / BYTES_OF_FILE_PER_TOKEN);
    }

    fn url_or_file(&mut self, text: &str) {
        let is_url = ["http://", "https://"].iter().any(|scheme| {
            let start = text.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        if is_url {
            self.add(self.media_tokens);
        } else {
            self.file(text.len());
        }
    }

    fn image(&mut self) {
        self.add(self.media_tokens);
    }
}

/// Speech of 16 bits at 16 kHz in base64 has 43 KB a second, and models make
/// 10 to 50 tokens of it. Compressed, and in PDF, it is within the same
/// magnitude.
const BYTES_OF_FILE_PER_TOKEN: u64 = 1000;

/// What a chat template puts around a message.
const TOKENS_PER_MESSAGE: u64 = 4;

/// The first text of a member of a request: that is where prompts of one
/// conversation, or of one application, are the same.
#[derive(Debug, Default)]
pub(super) struct Head(Vec<u8>);

impl Head {
    const LONGEST: usize = 1024;

    pub(super) fn add(&mut self, text: &[u8]) {
        let room = Self::LONGEST.saturating_sub(self.0.len());
        self.0.extend_from_slice(&text[..text.len().min(room)]);
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.0
    }
}

/// How a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// An array of messages, or a text.
    Messages,
    /// One of them.
    Message,
    /// All texts in it, and a token for each whole number: that is how tokens
    /// are given.
    Text,
    /// A text, or several, but no object.
    PlainText,
    /// Is not shown to the model, unless it is longer than that would be.
    Label,
    /// Names count as well: JSON that the model sees as it is.
    Schema,
    Image,
    File,
    /// Where Anthropic's API has images, files and texts.
    Source,
    Skipped,
}

impl Part {
    /// The value of a member of an object that is text.
    fn of_member(name: &str) -> Self {
        match name {
            "type" | "id" | "status" | "media_type" | "format" | "detail" => Self::Label,
            "signature" | "encrypted_content" | "cache_control" => Self::Skipped,
            "image_url" | "image" | "images" | "input_image" | "image_embeds" => Self::Image,
            "audio_url" | "video_url" | "audio" | "video" | "input_audio" | "file"
            | "file_data" | "file_url" | "input_file" => Self::File,
            "source" => Self::Source,
            "input" | "arguments" | "parameters" | "input_schema" | "schema" => Self::Schema,
            name if name.ends_with("_id") => Self::Label,
            _ => Self::Text,
        }
    }

    /// The same of an object that is a file.
    fn of_file(name: &str) -> Self {
        match name {
            "type" | "format" | "filename" | "detail" | "transcript" | "id" => Self::Label,
            _ => Self::File,
        }
    }
}

/// The longest label.
const LABEL: usize = 64;

/// Reads a value as a part of a prompt. Returns how many prompts it is, if it
/// is one: an array of texts is several, and one of tokens is not.
#[derive(Debug)]
pub(super) struct Walk<'w, 'a, E> {
    pub(super) counter: &'w mut Counter<'a, E>,
    pub(super) head: Option<&'w mut Head>,
    pub(super) part: Part,
}

impl<'a, E> Walk<'_, 'a, E> {
    const fn of(&mut self, part: Part) -> Walk<'_, 'a, E> {
        Walk {
            counter: self.counter,
            head: match &mut self.head {
                Some(head) => Some(head),
                None => None,
            },
            part,
        }
    }
}

impl<'de, E: EstimateTokens> DeserializeSeed<'de> for Walk<'_, '_, E> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        match self.part {
            Part::Skipped => IgnoredAny::deserialize(deserializer).map(|_| 1),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de, E: EstimateTokens> Visitor<'de> for Walk<'_, '_, E> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<X>(self, text: &str) -> Result<u64, X> {
        match self.part {
            Part::Image => self.counter.image(),
            Part::File => self.counter.url_or_file(text),
            Part::Label if text.len() <= LABEL => {}
            _ => {
                if let Some(head) = self.head {
                    head.add(text.as_bytes());
                }
                self.counter.text(text);
            }
        }
        Ok(1)
    }

    fn visit_u64<X>(self, token: u64) -> Result<u64, X> {
        match self.part {
            Part::Label | Part::Image | Part::File | Part::Source | Part::Skipped => {}
            _ => {
                if let Some(head) = self.head {
                    head.add(&token.to_le_bytes());
                }
                self.counter.add(1);
            }
        }
        Ok(0)
    }

    fn visit_i64<X>(self, _: i64) -> Result<u64, X> {
        Ok(self.value())
    }

    fn visit_f64<X>(self, _: f64) -> Result<u64, X> {
        Ok(self.value())
    }

    fn visit_bool<X>(self, _: bool) -> Result<u64, X> {
        Ok(self.value())
    }

    fn visit_unit<X>(self) -> Result<u64, X> {
        Ok(self.value())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<u64, A::Error> {
        let part = match self.part {
            Part::Messages => Part::Message,
            part => part,
        };
        let mut prompts = 0_u64;
        while let Some(more) = seq.next_element_seed(self.of(part))? {
            // A list in a list is one prompt, whatever it has.
            prompts = prompts.saturating_add(more.min(1));
            if part == Part::Schema {
                self.counter.add(1);
            }
        }
        Ok(prompts.max(1))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<u64, A::Error> {
        match self.part {
            Part::Source => return self.source(map),
            Part::Image | Part::PlainText | Part::Skipped => {
                if self.part == Part::Image {
                    self.counter.image();
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(1);
            }
            Part::Message => self.counter.add(TOKENS_PER_MESSAGE),
            _ => {}
        }
        while let Some(Name(name)) = map.next_key()? {
            let part = match self.part {
                Part::Schema => {
                    self.counter.text(&name);
                    self.counter.add(2);
                    Part::Schema
                }
                Part::File => {
                    if name.ends_with("_id") {
                        self.counter.image();
                    }
                    Part::of_file(&name)
                }
                _ => Part::of_member(&name),
            };
            map.next_value_seed(self.of(part))?;
        }
        Ok(1)
    }
}

impl<E: EstimateTokens> Walk<'_, '_, E> {
    /// A number, `true`, `null`: the model sees them in JSON alone.
    fn value(self) -> u64 {
        if self.part == Part::Schema {
            self.counter.add(1);
        }
        0
    }

    /// Which member says what the data is may come after it.
    fn source<'de, A: MapAccess<'de>>(mut self, mut map: A) -> Result<u64, A::Error> {
        let (mut kind, mut media_type, mut data) = (Scalar::Null, Scalar::Null, Scalar::Null);
        let mut is_elsewhere = false;
        while let Some(Name(name)) = map.next_key()? {
            match &*name {
                "type" => kind = map.next_value()?,
                "media_type" => media_type = map.next_value()?,
                "data" => data = map.next_value()?,
                "content" => {
                    map.next_value_seed(self.of(Part::Text))?;
                }
                _ => {
                    is_elsewhere = true;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let is_image = media_type.text().is_some_and(|it| it.starts_with("image/"));
        match (kind.text(), data.text()) {
            (Some("text"), Some(text)) => {
                self.of(Part::Text).visit_str::<A::Error>(text)?;
            }
            _ if is_image || is_elsewhere => self.counter.image(),
            (_, Some(data)) => self.counter.file(data.len()),
            _ => {}
        }
        Ok(1)
    }
}
