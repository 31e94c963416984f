//! Quota of the connections that peers have made to a NIC, for each peer and for all.
//!
//! A connection costs memory, a mapping or a descriptor, and places in queues. It is counted from the request until nothing
//! of it is left here: until the request was refused, or until the connection's [`crate::transport::Queues::reporter`] is
//! dropped. A transport keeps the reporter for as long as a peer may use something of a closed connection.

use std::sync::Arc;

use udeck_sys::quota::{Exceeded, Quota, Share};

use crate::attributes::NicAttributes;

/// Connections of peers to one NIC. The bounds are the NIC's ([`NicAttributes::max_connections`]).
#[derive(Debug)]
pub(crate) struct ConnectionQuota {
    quota: Arc<Quota<Option<u32>>>,
    /// Our own rank.
    identity: Option<u32>,
    of_all: usize,
    of_a_rank: usize,
    of_others: usize,
}

/// The counted share of one connection or request of a peer.
pub(crate) type ConnectionShare = Share<Option<u32>>;

impl ConnectionQuota {
    pub(crate) fn new(nic: &NicAttributes) -> Self {
        ConnectionQuota {
            quota: Quota::new(nic.max_connections as u64),
            identity: nic.identity,
            of_all: nic.max_connections,
            of_a_rank: nic.max_connections_of_a_rank(),
            of_others: nic.max_connections_of_others(),
        }
    }

    /// Counts one more connection of `peer`: the rank that it has proved to be.
    ///
    /// # Errors
    /// Why the peer may have no more, in words for the peer.
    pub(crate) fn admit(&self, peer: Option<u32>) -> Result<ConnectionShare, String> {
        let own = match peer {
            None => self.of_others,
            _ if peer == self.identity => self.of_all,
            Some(_) => self.of_a_rank,
        };
        self.quota.take(peer, 1, own as u64).map_err(|exceeded| match (exceeded, peer) {
            (Exceeded::Own(has), Some(rank)) => format!(
                "rank {rank} has {has} connections with this NIC, the most that one rank may have, those included that have \
                 ended and that the mailboxes' owner has not looked at since; share postboxes"
            ),
            (Exceeded::Own(has), None) => {
                format!("processes that are no rank have {has} connections with this NIC, the most that they may have")
            }
            (Exceeded::All(has), _) => {
                format!("others have {has} connections with this NIC, the most that it takes from all together")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the quota of a NIC with these bounds, of all and of one rank.
    fn quota(identity: Option<u32>, all: usize, of_a_rank: usize) -> ConnectionQuota {
        let mut nic = NicAttributes::new("some");
        (nic.identity, nic.max_connections) = (identity, all);
        assert_eq!(nic.max_connections_of_a_rank(), of_a_rank);
        ConnectionQuota::new(&nic)
    }

    fn many(quota: &ConnectionQuota, peer: Option<u32>, count: usize) -> Vec<ConnectionShare> {
        (0..count).map(|_| quota.admit(peer).unwrap()).collect()
    }

    #[test]
    fn a_rank_that_has_all_it_may_have_keeps_no_other_out() {
        for (all, of_a_rank) in [(10, 5), (10_000, 5000), (30_000, 8192), (80_000, 20_000)] {
            let quota = quota(Some(0), all, of_a_rank);
            let mut greedy = many(&quota, Some(3), of_a_rank);
            let why = quota.admit(Some(3)).unwrap_err();
            let has = format!("rank 3 has {of_a_rank} connections");
            assert!(why.contains(&has) && why.contains("share postboxes"), "{why}");
            let _others = [quota.admit(Some(4)).unwrap(), quota.admit(None).unwrap()];
            greedy.pop();
            greedy.push(quota.admit(Some(3)).unwrap());
            assert!(quota.admit(Some(3)).is_err());
        }
    }

    #[test]
    fn our_own_rank_has_what_all_have() {
        let quota = quota(Some(3), 100, 50);
        let _own = many(&quota, Some(3), 100);
        assert!(quota.admit(Some(3)).is_err());
    }

    #[test]
    fn those_that_prove_no_rank_leave_half_to_ranks() {
        let quota = quota(Some(3), 100, 50);
        let _strangers = many(&quota, None, 50);
        assert!(quota.admit(None).unwrap_err().contains("no rank have 50"));
        assert!(quota.admit(Some(1)).is_ok());
    }

    #[test]
    fn a_nic_without_ranks_serves_as_many_as_it_can() {
        let quota = quota(None, 100, 50);
        let all = many(&quota, None, 100);
        assert!(quota.admit(None).unwrap_err().contains("100"));
        drop(all);
        assert!(quota.admit(None).is_ok());
    }

    #[test]
    fn all_together_have_a_bound() {
        let quota = quota(Some(0), 100, 50);
        let all = [many(&quota, Some(1), 50), many(&quota, Some(2), 50)];
        assert!(quota.admit(Some(3)).unwrap_err().contains("others have 100"));
        drop(all);
        assert!(quota.admit(Some(3)).is_ok());
    }
}
