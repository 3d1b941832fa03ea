use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, de::IgnoredAny};
use std::{fmt, time::Duration};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrived, counted from the first one.
    pub at: Duration,
    /// The tokens of its prompt.
    pub prompt_tokens: u32,
    /// The tokens of its answer.
    pub generated_tokens: u32,
}

/// What a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The requests, in the order of their arrival.
    pub arrivals: Vec<Arrival>,
    /// What was no request, if anything was.
    pub left_out: Option<LeftOut>,
}

/// The lines of a trace that are not of its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// How many there are.
    pub lines: usize,
    /// Of how many, without those that are empty.
    pub of: usize,
    /// The first of them.
    pub first: TraceError,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, of, first } = self;
        write!(f, "left out {lines} of {of} lines, the first is {first}")
    }
}

/// A trace that cannot be read, or a line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    line: usize,
    message: String,
}

impl TraceError {
    /// Shows the beginning of the line, which may be of any length.
    fn of(line: usize, text: &str, expected: &str) -> Self {
        const SHOWN: usize = 80;
        let begin: String = text.chars().take(SHOWN).collect();
        let more = if begin.len() < text.len() { "…" } else { "" };
        Self {
            line,
            message: format!("{begin:?}{more}: expected {expected}"),
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for TraceError {}

/// The forms, for a message.
const FORMS: &str = "the header of a trace of Azure's \
    (TIMESTAMP,ContextTokens,GeneratedTokens), of BurstGPT \
    (Timestamp,Request tokens,Response tokens) or of the timing of Mooncake's \
    (timestamp_ms,input_length,output_length), or JSON as in Mooncake's and Bailian's \
    ({\"timestamp\", \"input_length\", \"output_length\"})";

/// Reads a trace, in the form in which it is published:
///
/// - Azure's LLM inference traces of 2023 and 2024: dates, with an offset or
///   without;
/// - BurstGPT's: seconds;
/// - Mooncake's, as JSON lines or as CSV: milliseconds;
/// - Bailian's, as JSON lines with a `chat_id`: seconds.
///
/// A column is known by its name; others may be there. Lines that are not of
/// the form are left out.
///
/// # Errors
///
/// If the form is another, or if more than half of the lines are left out.
pub fn parse_trace(text: &str) -> Result<Trace, TraceError> {
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().map(str::trim).zip(1..);
    let mut lines = lines.filter(|(line, _)| !line.is_empty()).peekable();
    let form = match lines.peek() {
        Some((line, _)) if line.starts_with('{') => Form::JsonLines,
        Some((line, number)) => {
            let form = Columns::of(line).map(Form::Csv);
            let form = form.ok_or_else(|| TraceError::of(*number, line, FORMS))?;
            lines.next();
            form
        }
        None => return Err(TraceError::of(1, "", FORMS)),
    };
    let mut requests = Vec::new();
    let mut left_out: Option<LeftOut> = None;
    for (line, number) in lines {
        if let Some(request) = form.request(line) {
            requests.push(request);
            continue;
        }
        let left_out = left_out.get_or_insert_with(|| LeftOut {
            lines: 0,
            of: 0,
            first: TraceError::of(number, line, form.line()),
        });
        left_out.lines += 1;
    }
    if let Some(left_out) = &mut left_out {
        left_out.of = left_out.lines + requests.len();
        if left_out.lines > requests.len() {
            return Err(left_out.first.clone());
        }
    }
    requests.sort_by_key(|request| request.nanos);
    let Some(start) = requests.first().map(|request| request.nanos) else {
        return Err(TraceError::of(1, "", "a request"));
    };
    let arrival = |request: Request| Arrival {
        at: Duration::from_nanos(u64::try_from(request.nanos - start).unwrap_or(u64::MAX)),
        prompt_tokens: request.prompt_tokens,
        generated_tokens: request.generated_tokens,
    };
    Ok(Trace {
        arrivals: requests.into_iter().map(arrival).collect(),
        left_out,
    })
}

/// A request whose time counts from anything.
struct Request {
    nanos: i128,
    prompt_tokens: u32,
    generated_tokens: u32,
}

enum Form {
    Csv(Columns),
    JsonLines,
}

impl Form {
    fn request(&self, line: &str) -> Option<Request> {
        match self {
            Self::Csv(columns) => columns.request(line),
            Self::JsonLines => json(line),
        }
    }

    /// What a line is expected to have.
    const fn line(&self) -> &'static str {
        match self {
            Self::Csv(_) => "a time, and a number for each count of tokens",
            Self::JsonLines => "an object with timestamp, input_length and output_length",
        }
    }
}

/// Where the columns are that matter.
struct Columns {
    time: usize,
    prompt_tokens: usize,
    generated_tokens: usize,
    nanos: fn(&str) -> Option<i128>,
}

impl Columns {
    fn of(header: &str) -> Option<Self> {
        let names: Vec<_> = header
            .split(',')
            .map(|name| name.trim().trim_matches('"').to_ascii_lowercase())
            .collect();
        let at = |name: &str| names.iter().position(|it| it == name);
        let columns = |time, prompt, generated, nanos| {
            Some(Self {
                time: at(time)?,
                prompt_tokens: at(prompt)?,
                generated_tokens: at(generated)?,
                nanos,
            })
        };
        columns("timestamp", "contexttokens", "generatedtokens", date)
            .or_else(|| columns("timestamp", "request tokens", "response tokens", seconds))
            .or_else(|| columns("timestamp_ms", "input_length", "output_length", millis))
    }

    fn request(&self, line: &str) -> Option<Request> {
        let mut columns = [None; 3];
        for (at, column) in line.split(',').enumerate() {
            for (wanted, value) in [self.time, self.prompt_tokens, self.generated_tokens]
                .into_iter()
                .zip(&mut columns)
            {
                if at == wanted {
                    *value = Some(column.trim().trim_matches('"'));
                }
            }
        }
        let [time, prompt, generated] = columns;
        Some(Request {
            nanos: (self.nanos)(time?)?,
            prompt_tokens: prompt?.parse().ok()?,
            generated_tokens: generated?.parse().ok()?,
        })
    }
}

fn json(line: &str) -> Option<Request> {
    #[derive(Deserialize)]
    struct Line {
        timestamp: f64,
        input_length: u32,
        output_length: u32,
        /// Bailian's traces have it, and count seconds.
        chat_id: Option<IgnoredAny>,
    }
    let line: Line = serde_json::from_str(line).ok()?;
    let unit = if line.chat_id.is_some() { 1e9 } else { 1e6 };
    Some(Request {
        nanos: nanos(line.timestamp, unit)?,
        prompt_tokens: line.input_length,
        generated_tokens: line.output_length,
    })
}

fn seconds(text: &str) -> Option<i128> {
    nanos(text.parse().ok()?, 1e9)
}

fn millis(text: &str) -> Option<i128> {
    nanos(text.parse().ok()?, 1e6)
}

/// As whole microseconds: a double has no more since 1970. Saturates.
fn nanos(count: f64, unit: f64) -> Option<i128> {
    let micros = (count * unit / 1000.0).round();
    micros
        .is_finite()
        .then_some(i128::from(micros as i64) * 1000)
}

/// `2023-11-16 18:17:03.9799600`, and the same with `T` and an offset. Without
/// one it is taken for UTC.
fn date(text: &str) -> Option<i128> {
    let with_offset = text.parse::<Timestamp>();
    let timestamp = with_offset.or_else(|_| {
        let date: DateTime = text.parse()?;
        TimeZone::UTC.to_timestamp(date)
    });
    Some(timestamp.ok()?.as_nanosecond())
}
