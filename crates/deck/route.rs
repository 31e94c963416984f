//! The transport of a postbox, and why no better one is used, as text for users.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;
use udeck_via::ServiceLevel;

use crate::incast::IncastControl;

/// The transport that a postbox uses, and why it uses no better one ([`crate::Postbox::route`]).
///
/// `Display` writes for example `tcp: shm not possible: it runs on another host`, or `shm` if no transport was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The transport.
    pub transport: String,
    /// Whether the transport encrypts and authenticates all data on the whole path.
    pub encrypted: bool,
    /// The service level of the messages, and whether it counts.
    pub level: RouteLevel,
    /// Incast control of the mailbox, where it has an effect.
    pub incast: IncastControl,
    /// The transports that this rank prefers and that are not possible, the most preferred first.
    pub skipped: Vec<SkippedTransport>,
}

/// A postbox's service level, and whether it has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RouteLevel {
    /// The level.
    pub level: ServiceLevel,
    /// Whether the transport, or the network, sends by levels.
    pub ordered: bool,
    /// Whether the ranks share memory: then nothing waits to be sent, and no level can count.
    pub shared: bool,
}

impl fmt::Display for RouteLevel {
    /// Writes nothing for level 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.level.get(), self.ordered, self.shared) {
            (0, _, _) => Ok(()),
            (level, true, _) => write!(f, ", level {level}"),
            (level, false, true) => {
                write!(f, ", where level {level} has no effect (in shared memory nothing waits to be sent)")
            }
            (level, false, false) => write!(f, ", where level {level} has no effect (see DECK_LEVELS)"),
        }
    }
}

/// Formats incast control; writes nothing if it is off.
struct InForce(IncastControl);

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IncastControl::Auto | IncastControl::Off => Ok(()),
            control => write!(f, ", incast control {control}"),
        }
    }
}

/// A transport through which a mailbox cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedTransport {
    /// The transport.
    pub transport: String,
    /// Why it is not possible.
    pub why: String,
}

/// A transport that is not available on this host, and the number of the world's NICs that rank before it.
pub type UnavailableTransport = (usize, SkippedTransport);

impl SkippedTransport {
    /// `why` is the reason, as text for users.
    pub fn new(transport: impl Into<String>, why: impl Into<String>) -> Self {
        SkippedTransport { transport: transport.into(), why: why.into() }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.transport, self.level, InForce(self.incast))?;
        for (nth, SkippedTransport { transport, why }) in self.skipped.iter().enumerate() {
            write!(f, "{}{transport} not possible: {why}", if nth == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}

impl Route {
    /// Formats in brackets what [`Route`]'s text says after a colon.
    fn brief(&self) -> String {
        let encrypted = if self.encrypted { ", encrypted" } else { "" };
        match self.skipped.len() {
            0 => format!("{}{encrypted}{}{}", self.transport, self.level, InForce(self.incast)),
            _ => format!(
                "{}{encrypted}{}{} ({})",
                self.transport,
                self.level,
                InForce(self.incast),
                reasons(&self.skipped)
            ),
        }
    }
}

/// The reasons why transports were skipped, one after another.
pub(crate) fn reasons(skipped: &[SkippedTransport]) -> String {
    skipped
        .iter()
        .map(|SkippedTransport { transport, why }| format!("{transport}: {why}"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// A route as `DECK_EXPLAIN` reports it.
pub(crate) fn explanation(rank: usize, owner: u32, route: &Route) -> String {
    format!("deck: rank {rank} -> rank {owner}: {}", route.brief())
}

/// Ranks and levels whose route was reported to the user.
#[derive(Debug)]
pub(crate) struct Explained {
    own: u32,
    reported: Mutex<BTreeSet<(u32, ServiceLevel)>>,
}

impl Explained {
    /// `own` is this rank: the way to oneself is never reported.
    pub fn new(own: u32) -> Self {
        Explained { own, reported: Mutex::default() }
    }

    /// Whether the route to that rank at that level was not reported yet. Counts it as reported.
    pub fn is_news(&self, rank: u32, level: ServiceLevel) -> bool {
        rank != self.own && self.reported.lock().insert((rank, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(transport: &str, why: &str) -> SkippedTransport {
        SkippedTransport { transport: transport.into(), why: why.into() }
    }

    #[test]
    fn a_route_says_why_it_is_no_better_one() {
        let mut route = Route {
            transport: "far".into(),
            encrypted: false,
            level: RouteLevel::default(),
            incast: IncastControl::Off,
            skipped: vec![skipped("near", "it runs on another host")],
        };
        assert_eq!(route.to_string(), "far: near not possible: it runs on another host");
        let line = "deck: rank 2 -> rank 0: far (near: it runs on another host)";
        assert_eq!(explanation(2, 0, &route), line);
        route.skipped.push(skipped("card", "none is there"));
        assert_eq!(
            route.to_string(),
            "far: near not possible: it runs on another host; card not possible: none is there"
        );
        route.encrypted = true;
        let line =
            "deck: rank 2 -> rank 0: far, encrypted (near: it runs on another host; card: none is there)";
        assert_eq!(explanation(2, 0, &route), line);
        let level = RouteLevel::default();
        let incast = IncastControl::Off;
        let mut direct = Route { transport: "near".into(), encrypted: false, level, incast, skipped: vec![] };
        assert_eq!(direct.to_string(), "near");
        assert_eq!(explanation(1, 3, &direct), "deck: rank 1 -> rank 3: near");
        direct.level.level = ServiceLevel::new(5).unwrap();
        let words = "deck: rank 1 -> rank 3: near, where level 5 has no effect (see DECK_LEVELS)";
        assert_eq!(explanation(1, 3, &direct), words);
        direct.level.shared = true;
        assert!(explanation(1, 3, &direct).ends_with("(in shared memory nothing waits to be sent)"));
        direct.level.ordered = true;
        assert_eq!(explanation(1, 3, &direct), "deck: rank 1 -> rank 3: near, level 5");
        direct.incast = IncastControl::Smsrp;
        assert_eq!(direct.to_string(), "near, level 5, incast control smsrp");
    }

    #[test]
    fn a_rank_is_explained_once_and_oneself_never() {
        let explained = Explained::new(2);
        assert_eq!(
            [2, 0, 1, 0, 1, 2].map(|rank| explained.is_news(rank, ServiceLevel::default())),
            [false, true, true, false, false, false]
        );
        let other = ServiceLevel::new(3).unwrap();
        assert_eq!([0, 0, 2].map(|rank| explained.is_news(rank, other)), [true, false, false]);
    }
}
