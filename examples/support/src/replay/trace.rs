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

#[cfg(test)]
mod tests {
    use super::*;

    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

    fn arrivals(trace: &str) -> Vec<(u128, u32, u32)> {
        let trace = parse_trace(trace).unwrap();
        assert_eq!(trace.left_out, None);
        let arrivals = trace.arrivals.iter();
        arrivals
            .map(|it| (it.at.as_micros(), it.prompt_tokens, it.generated_tokens))
            .collect()
    }

    fn error(trace: &str) -> String {
        parse_trace(trace).unwrap_err().to_string()
    }

    #[test]
    fn azures_trace_counts_from_its_first_request() {
        let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                     2023-11-16 18:17:03.9799600,4808,10\r\n\
                     2023-11-16 18:17:04.0319600,3180,8\r\n";
        assert_eq!(arrivals(trace), [(0, 4808, 10), (52_000, 3180, 8)]);
    }

    #[test]
    fn azures_trace_of_2024_has_offsets() {
        let first = "2024-05-10 00:00:00.009930+00:00";
        for (second, micros) in [
            ("2024-05-10 00:00:00.100000+00:00", 90_070),
            ("2024-05-10 00:00:01+00:00", 990_070),
            ("2024-05-10T00:00:01Z", 990_070),
            ("2024-05-10T02:00:01.5+02:00", 1_490_070),
            ("2024-05-09 20:00:00.123456789-04:00", 113_526),
            ("2024-05-10 00:00:00.009930", 0),
        ] {
            let trace = format!("{AZURE}\n{first},2162,5\n{second},2399,6\n");
            let expected = [(0, 2162, 5), (micros, 2399, 6)];
            assert_eq!(arrivals(&trace), expected, "{second}");
        }
    }

    #[test]
    fn time_goes_on_over_midnight_leap_days_and_new_year() {
        for (from, to) in [
            ("2024-02-28 23:59:59.5", "2024-02-29 00:00:00.5"),
            ("2024-02-29 23:59:59.5", "2024-03-01 00:00:00.5"),
            ("2023-02-28 23:59:59.5", "2023-03-01 00:00:00.5"),
            ("2023-12-31 23:59:59.5", "2024-01-01 00:00:00.5"),
        ] {
            let trace = format!("{AZURE}\n{from},1,1\n{to},1,1");
            assert_eq!(arrivals(&trace), [(0, 1, 1), (1_000_000, 1, 1)], "{from}");
        }
    }

    #[test]
    fn mooncakes_traces_are_in_milliseconds_and_put_in_order() {
        let csv = "timestamp_ms,input_length,output_length\n3000,1,2\n1000,3,4\n";
        let json = "{\"timestamp\": 3000, \"input_length\": 1, \"output_length\": 2, \"hash_ids\": [0, 1]}\n\
                    {\"timestamp\": 1000, \"input_length\": 3, \"output_length\": 4, \"hash_ids\": []}\n";
        for trace in [csv, json] {
            assert_eq!(arrivals(trace), [(0, 3, 4), (2_000_000, 1, 2)]);
        }
    }

    #[test]
    fn burstgpts_and_bailians_traces_are_in_seconds() {
        let first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     5,ChatGPT,472,18,490,Conversation log\n\
                     45,GPT-4,300,0,300,API log\n";
        assert_eq!(arrivals(first), [(0, 472, 18), (40_000_000, 300, 0)]);
        let third = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     5.0,,1.5,ChatGPT,472,18,490,Conversation log\n\
                     5.25,7,,ChatGPT,1,2,3,API log\n";
        assert_eq!(arrivals(third), [(0, 472, 18), (250_000, 1, 2)]);
        let bailian = "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, \"input_length\": 521, \"output_length\": 132}\n\
                       {\"chat_id\": 160, \"parent_chat_id\": 159, \"timestamp\": 62.5, \"input_length\": 400, \"output_length\": 80}\n";
        assert_eq!(arrivals(bailian), [(0, 521, 132), (1_386_000, 400, 80)]);
    }

    #[test]
    fn lines_that_are_no_requests_are_left_out_and_counted() {
        let good = "2023-11-16 18:17:03.9,1,2";
        for bad in [
            "2023-11-16 18:17:03.9,1",
            "2023-13-16 18:17:03.9,1,2",
            "2023-11-16 18:17:03.x,1,2",
            "2023-11-16 18:17:03.9,-1,2",
            "2023-11-16 18:17:03.9,1,99999999999",
            "NaN,1,2",
            ",,",
        ] {
            let trace = parse_trace(&format!("{AZURE}\n{good}\n\n{bad}\n{good}\n")).unwrap();
            assert_eq!(trace.arrivals.len(), 2, "{bad}");
            let left_out = trace.left_out.unwrap();
            assert_eq!((left_out.lines, left_out.of), (1, 3), "{bad}");
            let message = left_out.to_string();
            assert!(message.contains("1 of 3 lines") && message.contains("line 4: "));
            assert!(message.contains(bad), "{message}");
        }
        let cut = "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n{\"timesta";
        assert_eq!(parse_trace(cut).unwrap().left_out.unwrap().lines, 1);
    }

    #[test]
    fn times_that_no_clock_has_are_no_panic() {
        for (form, times) in [
            (
                "timestamp_ms,input_length,output_length",
                ["-1e300", "1e300"],
            ),
            (AZURE, ["-009999-01-03T00:00:00Z", "9999-12-30T00:00:00Z"]),
        ] {
            let [from, to] = times;
            let trace = format!("{form}\n{from},1,1\n{to},1,1\n");
            assert_eq!(arrivals(&trace).len(), 2, "{form}");
        }
    }

    #[test]
    fn what_is_no_trace_is_an_error_that_names_the_line_and_what_is_expected() {
        assert!(error("a,b,c\n").starts_with("line 1: \"a,b,c\": expected the header"));
        assert!(error("").contains("expected the header"));
        assert!(error(&format!("{AZURE}\n")).contains("expected a request"));
        let bad = "nothing of this is a request";
        let most = error(&format!(
            "{AZURE}\n{bad}\n2023-11-16 18:17:03.9,1,2\n{bad}\n"
        ));
        assert!(most.starts_with(&format!("line 2: {bad:?}")), "{most}");
        let long = error(&"x".repeat(10_000_000));
        assert!(long.len() < 1000, "{} bytes", long.len());
    }
}
