//! The kinds of sickness.

use clap::ValueEnum;

/// How a worker is sick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// It takes connections and requests, and nothing more comes from it
    Hangs,
    /// It answers with the head of an event stream, and nothing follows
    Heads,
    /// Its streams stop after their second frame
    Stalls,
    /// It answers 500 at once
    Fails,
    /// It answers 529 at once, and names a second in Retry-After
    Refuses,
    /// Its process is gone: connections are cut, and refused
    Dead,
    /// New connections are not made, since nothing answers
    Connects,
    /// It is dead for a second, and well for the next, in turns
    Flaps,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Hangs => "hangs",
            Self::Heads => "heads",
            Self::Stalls => "stalls",
            Self::Fails => "fails",
            Self::Refuses => "refuses",
            Self::Dead => "dead",
            Self::Connects => "connects",
            Self::Flaps => "flaps",
        }
    }

    /// After how many more frames a stream stops.
    pub fn frames_left(self) -> Option<u32> {
        match self {
            Self::Hangs | Self::Connects => Some(0),
            Self::Stalls => Some(2),
            _ => None,
        }
    }

    /// Whether requests still come to its server.
    pub fn is_reached(self) -> bool {
        !matches!(self, Self::Dead | Self::Connects | Self::Flaps)
    }
}

/// Some kinds, or all.
#[derive(Clone, Debug)]
pub struct Kinds(pub Vec<Kind>);

/// Reads kinds that are separated by commas.
pub fn kinds(value: &str) -> Result<Kinds, String> {
    let all = Kind::value_variants();
    if value == "all" {
        return Ok(Kinds(all.to_vec()));
    }
    let kinds = value.split(',').map(|name| {
        let named = all.iter().find(|kind| kind.name() == name);
        named.copied().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|kind| kind.name()).collect();
            format!("expected all, or some of {}", names.join(","))
        })
    });
    kinds.collect::<Result<_, _>>().map(Kinds)
}
