//! The limit on descriptors, raised for a large job.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use udeck_sys::unauthenticated::Bounds;

use crate::{LaunchError, hosts::Share, ranks::Pipes};

/// Bounds of the connections that are proving themselves; further ones wait in the kernel.
pub(crate) const STRANGERS: Bounds =
    Bounds { most: 256, grace: Duration::from_secs(1), limit: Duration::from_secs(5) };

/// Descriptors besides those of ranks and nodes: standard streams, the service's, a spawn in progress, and
/// those that a host program holds.
const OTHERS: u64 = 64;

/// Descriptors for each node: its connection, and its agent's input and output.
const PER_NODE: u64 = 3;

/// The soft limit, raised as far as the job needs, until dropped.
pub(crate) struct Descriptors {
    before: Rlimit,
}

impl Descriptors {
    /// Raises the limit for a root, and chooses the pipes to which the ranks of its host write. If there cannot
    /// be enough descriptors, untagged output does without pipes, and the returned text says what that means.
    pub(crate) fn with_pipes(
        tagged: bool,
        shares: &[Share],
    ) -> Result<(Pipes, Descriptors, Option<String>), LaunchError> {
        let of = |here| shares.iter().filter(move |share| share.here == here);
        let (ranks, others) = (of(true).map(|share| share.count).sum(), of(false).count());
        let pipes = Pipes::of_root(tagged, shares.iter().map(|share| share.count).sum());
        match Descriptors::raise(ranks, pipes.each(), others) {
            Err(error @ LaunchError::TooFewDescriptors { .. }) if !tagged && pipes.each() > 0 => {
                let pipes = pipes.inherited();
                let descriptors = Descriptors::raise(ranks, pipes.each(), others)?;
                Ok((
                    pipes,
                    descriptors,
                    Some(format!("output of different ranks may mix within a line: {error}")),
                ))
            }
            raised => Ok((pipes, raised?, None)),
        }
    }

    /// Raises the limit for `nodes` and for `ranks` on this host, each with this number of output pipes.
    pub(crate) fn raise(ranks: u32, pipes: u32, nodes: usize) -> Result<Descriptors, LaunchError> {
        let each = u64::from(pipes) + 1;
        let strangers = if nodes > 0 { STRANGERS.most as u64 } else { 0 };
        let needed = u64::from(ranks) * each + nodes as u64 * PER_NODE + strangers + OTHERS;
        let before = getrlimit(Resource::Nofile);
        // `None` means no limit.
        if before.current.is_some_and(|soft| soft < needed) {
            if let Some(limit) = before.maximum.filter(|hard| *hard < needed) {
                return Err(LaunchError::TooFewDescriptors { ranks, needed, limit });
            }
            let raised = Rlimit { current: Some(needed), ..before };
            setrlimit(Resource::Nofile, raised)
                .map_err(LaunchError::system("raising the limit on descriptors"))?;
        }
        Ok(Descriptors { before })
    }

    /// Returns the limit for the ranks, as it was before: theirs must not grow with the size of the job.
    pub(crate) fn before(&self) -> Rlimit {
        self.before
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // Lowering a soft limit to what it was needs no permission.
        let _ = setrlimit(Resource::Nofile, self.before);
    }
}
