//! Queue pairs that are connected through rdma_cm. We move a queue pair through its states ourselves, with the path
//! that rdma_cm reports, and with our own settings where they are ours to choose. librdmacm does the same with queue
//! pairs of its own (`ucma_modify_qp_rtr`, `ucma_modify_qp_rts`), on every kind of network.

use std::io;

use super::{MIN_RNR_TIMER, Queue, READS, mtu};
use crate::cm::objects::{Depths, Id, PRIVATE, Request, Terms};
use crate::ffi::codes::{attr_mask, qp_state};
use crate::hca::Hca;
use crate::qp_address::QpAddress;
use crate::settings::Settings;

/// Bits of the mask that older kernels set for RoCE, and that no library knows (librdmacm leaves them out likewise).
const KERNEL_ONLY: i32 = 0xe0_0000;

/// Parameters that one side tells the other through rdma_cm, with the number of reads that both sides support.
fn terms(queue: &Queue, hca: &Hca, settings: &Settings, peer: &QpAddress) -> Terms {
    let ours = |limit: i32| limit.clamp(1, READS) as u8;
    let depths = Depths {
        served: ours(hca.attributes.max_qp_rd_atom),
        asked: ours(hca.attributes.max_qp_init_rd_atom).min(peer.reads).max(1),
    };
    let Settings { retry, rnr_retry, .. } = *settings;
    Terms { qp_num: queue.number(), depths, retry, rnr_retry, shares: queue.recv_buffers.srq().is_some() }
}

impl Queue {
    /// Stores the address of the peer's queue pair.
    pub fn note_peer(&mut self, peer: QpAddress) {
        self.peer = Some(peer);
    }

    /// Requests the connection, once the route is known.
    ///
    /// # Errors
    /// The error of the device or of the kernel.
    pub fn ask(&self, id: &Id, hca: &Hca, settings: &Settings, private: &[u8; PRIVATE]) -> io::Result<()> {
        self.go(id, qp_state::INIT, hca, settings, None)?;
        id.connect(terms(self, hca, settings, &self.peer()?), private)
    }

    /// Confirms the connection: the peer has accepted, and waits for that.
    ///
    /// # Errors
    /// The errors of [`Queue::ask`].
    pub fn confirm(&self, id: &Id, hca: &Hca, settings: &Settings) -> io::Result<()> {
        self.go(id, qp_state::RTR, hca, settings, None)?;
        self.go(id, qp_state::RTS, hca, settings, None)?;
        id.establish()
    }

    /// Keeps the identifier of the established connection. It is dropped after the queue pair.
    pub fn keep_id(&mut self, id: Id) {
        self.id = Some(id);
    }

    /// Accepts the peer's request.
    ///
    /// # Errors
    /// The errors of [`Queue::ask`]; the request is rejected then.
    pub fn admit(&mut self, request: Request, hca: &Hca, settings: &Settings) -> io::Result<()> {
        let Request { id, depths, .. } = request;
        let mut terms = terms(self, hca, settings, &self.peer()?);
        terms.depths.served = terms.depths.served.min(depths.served);
        terms.depths.asked = terms.depths.asked.min(depths.asked);
        let ready = [qp_state::INIT, qp_state::RTR, qp_state::RTS];
        ready.into_iter().try_for_each(|state| self.go(&id, state, hca, settings, Some(terms.depths)))?;
        id.accept(terms)?;
        self.id = Some(id);
        Ok(())
    }

    fn peer(&self) -> io::Result<QpAddress> {
        self.peer.ok_or_else(|| io::Error::other("nothing is known of the peer's queue pair"))
    }

    fn go(
        &self,
        id: &Id,
        state: u32,
        hca: &Hca,
        settings: &Settings,
        depths: Option<Depths>,
    ) -> io::Result<()> {
        let (mut attr, mut mask) = id.attributes(state)?;
        if !hca.ethernet {
            mask &= !KERNEL_ONLY;
        }
        attr.qp_access_flags = self.rights();
        // Both sides compute the same MTU from the path and both addresses.
        let most = self.peer.map_or(u8::MAX, |peer| peer.mtu).min(mtu(hca, settings));
        attr.path_mtu = attr.path_mtu.min(most.into());
        if attr.ah_attr.is_global != 0 && settings.traffic_class != 0 {
            attr.ah_attr.grh.traffic_class = settings.traffic_class;
        }
        let sl = self.sl(settings);
        if sl != 0 {
            attr.ah_attr.sl = sl;
        }
        attr.min_rnr_timer = MIN_RNR_TIMER;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) =
            (settings.timeout, settings.retry, settings.rnr_retry);
        if let Some(Depths { served, asked }) = depths {
            (attr.max_dest_rd_atomic, attr.max_rd_atomic) = (served, asked);
        }
        debug_assert!(state != qp_state::RTS || hca.iwarp || mask & attr_mask::SQ_PSN != 0);
        self.qp.modify(&mut attr, mask)
    }
}
