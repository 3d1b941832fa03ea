//! How the examples take their options: flags by `clap`, some of them also
//! from a `DYN_…` variable.
//!
//! A flag beats the environment, and an empty variable is an unset one. What
//! cannot be used ends the process with code 2, and the first line on stderr
//! names the option or the variable, its value, and what is allowed.

use clap::{Parser, error::ErrorKind};
use http::Uri;
use std::{
    ffi::OsString,
    fmt::{self, Display},
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    num::NonZeroU64,
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};
use tower_overload::{
    admission::EnvError,
    nats::{InvalidServers, Servers},
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// The exit code for an option or a variable that cannot be used.
pub const USAGE: i32 = 2;

/// An option or a variable that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// `value` of `name` cannot be used; `expected` says what can.
    pub fn new(name: impl Display, value: impl Display, expected: impl Display) -> Self {
        Self(format!("invalid value '{value}' for {name}: {expected}"))
    }

    /// Prints the error as the first line on stderr and ends the process.
    pub fn exit(&self) -> ! {
        let _ = writeln!(io::stderr(), "error: {self}");
        std::process::exit(USAGE)
    }
}

impl Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// It says all that is needed.
impl From<EnvError> for UsageError {
    fn from(error: EnvError) -> Self {
        Self(error.to_string())
    }
}

/// Where variables are looked up: [`environment`], or a closure of a test.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of the process.
pub fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// No variable is set: for what is embedded in another process.
pub fn no_environment(_: &str) -> Option<OsString> {
    None
}

/// The command line of the process.
///
/// Ends the process if it is only asked for help or its version (code 0) or
/// if the command line cannot be used (code 2).
pub fn parse<T: Parser>() -> T {
    match try_parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            _ => {
                let _ = writeln!(io::stderr(), "{}", one_line_first(&error.to_string()));
                std::process::exit(USAGE)
            }
        },
    }
}

/// `args` (the first is the program's name) as `T`.
///
/// # Errors
///
/// What clap says of a command line that cannot be used.
pub fn try_parse<T: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, clap::Error> {
    // Otherwise `-1` is taken for an unknown option, and the error does not
    // name the option that it was meant for.
    let mut command = T::command().mut_args(|arg| {
        let takes_value = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_value)
    });
    let matches = command.try_get_matches_from_mut(args)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What an empty command line asks for.
pub fn defaults<T: Parser>() -> T {
    T::parse_from([""])
}

/// Clap lists missing options and possible values below its first line; this
/// brings them into it.
pub fn one_line_first(error: &str) -> String {
    let (first, rest) = error.split_once("\n\n").unwrap_or((error, ""));
    let first: Vec<_> = first.split_whitespace().collect();
    format!("{}\n\n{}", first.join(" "), rest.trim_end())
}

/// What `flag` says; without it, what the variable `name` says. An empty
/// variable says nothing, and white space around a value does not matter. The variable is not read when there is a flag.
///
/// # Errors
///
/// If the variable is read and `parse` refuses it.
pub fn flag_or_env<T>(
    flag: Option<T>,
    name: &str,
    environment: Lookup<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, UsageError> {
    if flag.is_some() {
        return Ok(flag);
    }
    let Some(value) = environment(name) else {
        return Ok(None);
    };
    // What is not UTF-8 is no value of any option: `parse` refuses it.
    let value = value.to_string_lossy();
    match value.trim() {
        "" => Ok(None),
        trimmed => parse(trimmed)
            .map(Some)
            .map_err(|expected| UsageError::new(name, &value, expected)),
    }
}

/// A parser of whole numbers within `allowed`.
pub fn whole<T>(allowed: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |value| match value.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => Err(format!(
            "expected a whole number from {} to {}",
            allowed.start(),
            allowed.end()
        )),
    }
}

/// The largest count that is exact in every JSON parser.
pub const MOST: NonZeroU64 = NonZeroU64::new((1 << 53) - 1).unwrap();

/// The longest time that an option can ask for.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A parser of times in milliseconds, within `allowed`.
pub fn millis(
    allowed: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    let whole = whole(allowed);
    move |value| whole(value).map(Duration::from_millis)
}

/// A time after which something ends or is given up, if there is one.
pub type Limit = Option<Duration>;

/// A parser of times in milliseconds, where 0 switches something off.
///
/// # Errors
///
/// If `value` is no whole number, or more than a day.
pub fn unless_off(value: &str) -> Result<Limit, String> {
    let limit = millis(0..=DAY_MS)(value)?;
    Ok(Some(limit).filter(|limit| !limit.is_zero()))
}

/// A parser of numbers that are finite and not negative.
///
/// # Errors
///
/// If `value` is anything else.
pub fn at_least_0(value: &str) -> Result<f64, String> {
    match value.parse() {
        Ok(number) if f64::is_finite(number) && number >= 0.0 => Ok(number),
        _ => Err("expected a number of at least 0".into()),
    }
}

/// A parser of rates: finite, and 0 is infinitely fast.
///
/// # Errors
///
/// If `value` is anything else.
pub fn rate(value: &str) -> Result<f64, String> {
    at_least_0(value).map_err(|expected| format!("{expected}, where 0 is infinitely fast"))
}

/// A parser of numbers that are finite and above 0.
///
/// # Errors
///
/// If `value` is anything else.
pub fn positive(value: &str) -> Result<f64, String> {
    let positive = at_least_0(value).ok().filter(|number| *number > 0.0);
    positive.ok_or_else(|| "expected a number above 0".into())
}

/// A parser of addresses to listen on.
///
/// # Errors
///
/// If `value` is no IP address with a port.
pub fn address(value: &str) -> Result<SocketAddr, String> {
    value.parse().map_err(|_| {
        "expected an IP address and a port, such as 127.0.0.1:8100, where port 0 is any free one"
            .into()
    })
}

/// A parser of the URL that something is reached at.
///
/// # Errors
///
/// If `value` is no `http://` URL with a host, has a query, or is longer than
/// [`MAX_URL`].
pub fn base_url(value: &str) -> Result<Uri, String> {
    match value.parse::<Uri>() {
        Ok(url)
            if value.len() <= MAX_URL
                && url.scheme_str() == Some("http")
                && url.host().is_some_and(|host| !host.is_empty())
                && url.query().is_none()
                && has_usable_port(&url) =>
        {
            Ok(url)
        }
        _ => Err(format!(
            "expected a URL of the form http://HOST:PORT with at most {MAX_URL} bytes"
        )),
    }
}

/// A parser of the servers of a NATS cluster.
///
/// # Errors
///
/// If `value` is no list of their URLs.
pub fn nats_servers(value: &str) -> Result<Servers, String> {
    value
        .parse()
        .map_err(|error: InvalidServers| error.to_string())
}

/// The most bytes of a URL that something is reached at.
pub const MAX_URL: usize = 2048;

/// The most bytes of the name of a worker or a model. A gateway keeps no
/// longer ones, and a worker that has one could never register.
pub const MAX_NAME: usize = 256;

/// The parser of URLs takes any digits after the colon.
fn has_usable_port(url: &Uri) -> bool {
    url.authority().is_some_and(|authority| {
        let port = authority.as_str().rsplit_once(':');
        let named = port.is_some_and(|(_, port)| !port.ends_with(']'));
        !named || authority.port_u16().is_some()
    })
}

/// A parser of names.
///
/// # Errors
///
/// If `value` is empty, or longer than [`MAX_NAME`].
pub fn name(value: &str) -> Result<String, String> {
    if value.is_empty() || value.len() > MAX_NAME {
        return Err(format!(
            "expected at least one character and at most {MAX_NAME} bytes"
        ));
    }
    Ok(value.into())
}

/// Sends the logs to stderr: `info` and above, or what `RUST_LOG` says.
///
/// The NATS client tells of every attempt to connect; sources and publishers
/// say what came of them, so it is heard only if `RUST_LOG` is set.
pub fn init_logging() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let filter = match std::env::var_os("RUST_LOG") {
        Some(set) if !set.is_empty() => filter.from_env_lossy(),
        _ => filter.parse_lossy("info,async_nats=off"),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// Says on stdout that `what` (such as `admin `, or nothing) is listening.
///
/// The line is flushed, since whoever started the process reads it from a pipe
/// to learn the port. That nobody reads is no reason to stop.
pub fn announce(what: &str, address: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{what}listening on http://{address}");
    let _ = stdout.flush();
}

/// Hears that the process is asked to stop: by ctrl-c, or by SIGTERM.
///
/// Make it before the process says that it listens: until then a signal ends
/// the process at once.
#[derive(Debug)]
pub struct Shutdown {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Shutdown {
    /// Signals are heard from now on, whether or not anybody waits for them.
    ///
    /// # Errors
    ///
    /// If the signals cannot be listened for.
    pub fn install() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Completes when a signal has come that was not told of yet.
    pub async fn requested(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
