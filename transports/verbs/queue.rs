//! Queue pair of a link: its address in the network, its [receive buffers](crate::recv_buffers), and its [`Work`].
//! Headers and short messages are sent from memory of its own, to which no peer has any right.

mod qp_connect;

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use udeck_via::ServiceLevel;

use crate::cm::objects::Id;
use crate::completions::{Share, name_of};
use crate::connection::{CHAIN, MESSAGES, RECEIVES, RequestOptions, Span, Work};
use crate::domain::{Domain, Sges, Use, cannot_register};
use crate::ffi::codes::{access, attr_mask, opcode, qp_state, qp_type, send_flags};
use crate::ffi::{self, Remote, SendWr, Sge};
use crate::hca::Hca;
use crate::hca::objects::{Mr, Qp};
use crate::memory::Segment;
use crate::qp_address::QpAddress;
use crate::recv_buffers::{Buffers, Own, RecvBuffers};
use crate::settings::Settings;
use crate::windows::Windows;
use crate::wire::{BLOCK, RemoteKey, RemotePiece};

/// Kind of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything of a reliable VI; the control frames and the reads of an unreliable one (RC).
    Reliable,
    /// Messages and RDMA writes of an unreliable VI (UC).
    Unreliable,
}

impl Kind {
    fn qp_type(self) -> u32 {
        match self {
            Kind::Reliable => qp_type::RC,
            Kind::Unreliable => qp_type::UC,
        }
    }

    /// Number of receive buffers, so that each frame of a correct peer finds one.
    fn receives(self) -> u32 {
        match self {
            Kind::Reliable => RECEIVES,
            Kind::Unreliable => MESSAGES + CHAIN,
        }
    }
}

/// Upper bound of the outstanding requests on the send side.
pub const SENDS: u32 = 128;
/// Upper bound of the elements of a request, if the device takes so many: a header, four segments, and the bounds
/// between chunks that these cross.
const ELEMENTS: u32 = 12;
/// Upper bound of the bytes of one request, which a length can say.
const LONGEST: usize = 1 << 30;
/// Bytes of the ring for headers and short messages in flight.
pub const LEADS: usize = 8 * BLOCK;
/// Upper bound of the reads in flight.
const READS: i32 = 16;
/// Time for which a sender waits that found no receive buffer: 0.64 ms. (The code for it is 14.)
const MIN_RNR_TIMER: u8 = 14;

/// A queue pair of a link. Once it is dropped, the device accesses none of its memory.
pub struct Queue {
    /// The queue pair itself, dropped before everything that it accesses.
    qp: Qp,
    kind: Kind,
    /// The unreliable queue pair beside this one.
    unreliable: Option<Box<Queue>>,
    /// Identifier of the connection at rdma_cm, if that made it. It is dropped after the queue pair.
    id: Option<Id>,
    /// Address of the peer's queue pair, where rdma_cm joins the two.
    peer: Option<QpAddress>,
    recv_buffers: RecvBuffers,
    /// Ring from which headers and short messages are sent.
    lead: Buffers,
    domain: Arc<Domain>,
    share: Share,
    windows: Arc<Windows>,
    tags: Tags,
    /// Number of the link in the names of completions.
    link: u32,
    psn: u32,
    elements: usize,
    /// Upper bound of a read's elements, and below, the device's use of a read's target.
    read_elements: usize,
    sink: Use,
    /// Upper bound of the bytes of one request.
    longest: usize,
    inline: usize,
    /// Numbers of the requests that the device has. There are at most [`SENDS`], so the numbers may wrap. (A work
    /// request's name has 32 bits for them.)
    in_flight: std::ops::Range<u32>,
    /// Part of the lead ring that is in use, as offsets that go on for ever. `leads` has the requests that use it,
    /// each with the offset behind its lead.
    used: std::ops::Range<u64>,
    leads: VecDeque<(u32, u64)>,
    /// Service level of the VI, if it has one.
    sl: Option<u8>,
}

/// Protection tags of the windows that the peer may write and read.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub writable: Option<udeck_via::Ptag>,
    pub readable: Option<udeck_via::Ptag>,
}

impl Queue {
    /// Makes a queue pair that is ready to receive, and connected to none. `link` is its number in the names of
    /// completions.
    ///
    /// # Errors
    /// The device's error; the text says what was tried.
    #[allow(clippy::too_many_arguments, reason = "all of them different, and called in one place")]
    pub fn new(
        hca: &Hca,
        settings: &Settings,
        domain: Arc<Domain>,
        share: Share,
        windows: Arc<Windows>,
        link: u32,
        tags: Tags,
        kind: Kind,
    ) -> io::Result<Self> {
        let lead = Buffers::new(&domain.pd, LEADS, &domain.pinned)?;
        let recv_buffers = match share.pool() {
            Some(pool) => RecvBuffers::Pool(pool),
            None => RecvBuffers::Own(Own::new(&domain.pd, link, kind.receives(), &domain.pinned)?),
        };
        let srq = recv_buffers.srq();
        let cap = ffi::QpCap {
            max_send_wr: SENDS,
            max_recv_wr: if srq.is_some() { 0 } else { kind.receives() },
            max_send_sge: elements(&hca.attributes),
            max_recv_sge: u32::from(srq.is_none()),
            max_inline_data: settings.inline,
        };
        let make = |cap| Qp::new(&domain.pd, &share.cq, srq, kind.qp_type(), cap);
        let (qp, inline) = match make(cap) {
            Ok(qp) => (qp, settings.inline),
            // Some devices do not support inline data, and report that.
            Err(_) if settings.inline > 0 => (make(ffi::QpCap { max_inline_data: 0, ..cap })?, 0),
            Err(error) => return Err(error),
        };
        let mut queue = Queue {
            qp,
            kind,
            unreliable: None,
            id: None,
            peer: None,
            recv_buffers,
            lead,
            domain,
            share,
            windows,
            tags,
            link,
            psn: getrandom::u32().map_err(|error| io::Error::other(error.to_string()))? & 0xff_ffff,
            elements: cap.max_send_sge as usize,
            read_elements: read_elements(&hca.attributes) as usize,
            sink: if hca.iwarp { Use::Sink } else { Use::Usual },
            longest: (hca.port_attributes.max_msg_sz as usize).clamp(BLOCK, LONGEST),
            inline: inline as usize,
            in_flight: 0..0,
            used: 0..0,
            leads: VecDeque::new(),
            sl: None,
        };
        if queue.recv_buffers.srq().is_some() {
            queue.share.add_pair(queue.qp.number());
        }
        queue.initialise(hca, settings)?;
        queue.repost()?;
        Ok(queue)
    }

    /// Sets the service level of the sent packets. Level 0, and VIs without a level, use the level of the settings.
    pub fn set_level(&mut self, level: ServiceLevel) {
        self.sl = Some(level.get()).filter(|level| *level > 0);
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.sl = self.sl;
        }
    }

    /// Service level with which its packets are marked.
    pub fn sl(&self, settings: &Settings) -> u8 {
        self.sl.unwrap_or(settings.sl)
    }

    /// Sets the unreliable queue pair beside this one.
    pub fn set_unreliable(&mut self, unreliable: Option<Queue>) {
        self.unreliable = unreliable.map(Box::new);
    }

    /// The unreliable queue pair beside this one.
    pub fn unreliable_queue(&self) -> Option<&Queue> {
        self.unreliable.as_deref()
    }

    /// The unreliable queue pair beside this one, mutably.
    pub fn unreliable_queue_mut(&mut self) -> Option<&mut Queue> {
        self.unreliable.as_deref_mut()
    }

    /// Number of the link in the names of completions.
    pub fn link(&self) -> u32 {
        self.link
    }

    /// Address for the peer.
    pub fn qp_address(&self, hca: &Hca, settings: &Settings, cm: bool) -> QpAddress {
        QpAddress {
            qpn: self.qp.number(),
            psn: self.psn,
            gid: hca.gid,
            lid: hca.port_attributes.lid,
            mtu: mtu(hca, settings),
            ethernet: hca.ethernet,
            iwarp: hca.iwarp,
            cm,
            reads: hca.attributes.max_qp_rd_atom.clamp(1, READS) as u8,
            pkey: hca.pkey,
            unreliable: self.unreliable.is_some(),
        }
    }

    /// Access rights of the peer. It reads offers; whether it may read windows is decided by its tag and the
    /// window's region.
    fn rights(&self) -> u32 {
        let write = if self.tags.writable.is_some() { access::REMOTE_WRITE } else { 0 };
        let read = if self.kind == Kind::Reliable { access::REMOTE_READ } else { 0 };
        (read | write) as u32
    }

    fn initialise(&self, hca: &Hca, settings: &Settings) -> io::Result<()> {
        let mut attr = ffi::QpAttr {
            qp_state: qp_state::INIT,
            pkey_index: settings.pkey,
            port_num: hca.port,
            qp_access_flags: self.rights(),
            ..ffi::QpAttr::default()
        };
        // iWARP has no partitions.
        let pkey = if hca.iwarp { 0 } else { attr_mask::PKEY_INDEX };
        let mask = attr_mask::STATE | pkey | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
        self.qp.modify(&mut attr, mask)
    }

    /// Joins the queue pair to the peer's.
    ///
    /// # Errors
    /// The device's error: it cannot reach the address.
    pub fn join(&self, hca: &Hca, settings: &Settings, peer: &QpAddress) -> io::Result<()> {
        let grh = ffi::GlobalRoute {
            dgid: peer.gid,
            flow_label: 0,
            sgid_index: hca.gid_index,
            hop_limit: 64,
            traffic_class: settings.traffic_class,
        };
        let global = hca.ethernet || settings.gid.is_some();
        let reads = hca.attributes.max_qp_init_rd_atom.clamp(1, READS) as u8;
        let mut attr = ffi::QpAttr {
            qp_state: qp_state::RTR,
            path_mtu: peer.mtu.min(mtu(hca, settings)).into(),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: hca.attributes.max_qp_rd_atom.clamp(1, READS) as u8,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: ffi::AhAttr {
                grh: if global { grh } else { ffi::GlobalRoute::default() },
                dlid: peer.lid,
                sl: self.sl(settings),
                is_global: global.into(),
                port_num: hca.port,
                ..ffi::AhAttr::default()
            },
            ..ffi::QpAttr::default()
        };
        let path = attr_mask::AV | attr_mask::PATH_MTU | attr_mask::DEST_QPN | attr_mask::RQ_PSN;
        // UC has no reads, no waits and no retransmission, and rejects these attributes.
        let of_reliable = |mask: i32| if self.kind == Kind::Reliable { mask } else { 0 };
        let answers = of_reliable(attr_mask::MAX_DEST_RD_ATOMIC | attr_mask::MIN_RNR_TIMER);
        self.qp.modify(&mut attr, attr_mask::STATE | path | answers)?;
        attr.qp_state = qp_state::RTS;
        attr.sq_psn = self.psn;
        attr.timeout = settings.timeout;
        attr.retry_cnt = settings.retry;
        attr.rnr_retry = settings.rnr_retry;
        attr.max_rd_atomic = reads.min(peer.reads).max(1);
        let tries = attr_mask::TIMEOUT | attr_mask::RETRY_CNT | attr_mask::RNR_RETRY;
        let tries = of_reliable(attr_mask::MAX_QP_RD_ATOMIC | tries);
        self.qp.modify(&mut attr, attr_mask::STATE | attr_mask::SQ_PSN | tries)
    }

    /// Number by which the device names the queue pair.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    // ---- receives ----

    /// Returns the bytes that came to a buffer. They are valid until it is [recycled](Queue::recycle).
    pub fn received(&self, slot: u32, len: u32) -> &[u8] {
        self.recv_buffers.received(slot, len)
    }

    /// Gives a buffer back to the device: no slice of it exists any more.
    #[inline]
    pub fn recycle(&mut self, slot: u32) {
        self.recv_buffers.recycle(slot);
    }

    /// Notes that the device has failed to fill a buffer.
    pub fn mark_failed(&mut self, slot: u32) {
        self.recv_buffers.mark_failed(slot);
    }

    /// Posts the recycled buffers, if they are enough for a chain.
    ///
    /// # Errors
    /// The device's error.
    #[inline]
    pub fn repost(&mut self) -> io::Result<()> {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.repost()?;
        }
        self.recv_buffers.post(&self.qp)
    }

    // ---- sends ----

    /// Completes the request `token` and all before it. It is a request that the device has, or the one before. Its
    /// distance from any number here is at most [`SENDS`], so half the range of numbers tells which is earlier.
    pub fn retire(&mut self, token: u32) {
        if token.wrapping_sub(self.in_flight.start) <= u32::MAX / 2 {
            self.in_flight.start = token.wrapping_add(1);
        }
        while self.leads.front().is_some_and(|(first, _)| token.wrapping_sub(*first) <= u32::MAX / 2) {
            if let Some((_, end)) = self.leads.pop_front() {
                self.used.start = end;
            }
        }
    }

    /// Finds `len` free bytes in one piece of the ring. Returns their offset in the ring, and the running offset
    /// behind them.
    fn room_in_ring(&self, len: usize) -> Option<(usize, u64)> {
        let ring = LEADS as u64;
        let (len, mut start) = (len.next_multiple_of(64) as u64, self.used.end);
        if start % ring + len > ring {
            start = start.next_multiple_of(ring);
        }
        let end = start + len;
        (end - self.used.start <= ring).then_some(((start % ring) as usize, end))
    }

    /// Copies the beginning of request `token`'s frame to the ring. Returns its address.
    fn keep_lead(&mut self, lead: &[u8], token: u32) -> Result<u64, String> {
        let (at, end) = self.room_in_ring(lead.len()).ok_or("no room for a header")?;
        self.used.end = end;
        self.leads.push_back((token, end));
        let to = self.lead.at(at);
        // SAFETY: inside of our memory, as far as the ring has room, and in no request in flight.
        unsafe { std::ptr::copy_nonoverlapping(lead.as_ptr(), to, lead.len()) };
        Ok(to.addr() as u64)
    }

    /// Number of requests that the device has.
    fn under_way(&self) -> u32 {
        self.in_flight.end.wrapping_sub(self.in_flight.start)
    }

    #[inline]
    fn post(&mut self, mut wr: SendWr, sges: &mut [Sge], options: RequestOptions) -> Result<(), String> {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        wr.wr_id = name_of(self.link, options.token, false);
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
        wr.send_flags |=
            flag(options.fence, send_flags::FENCE) | flag(options.signalled, send_flags::SIGNALED);
        // SAFETY: the elements name the outbox, by posts of the VI layer which the connection keeps until this
        // request has completed or the queue pair is gone; a store that the connection keeps as long; or a lead in
        // our ring, kept likewise. (Inline bytes are copied now.)
        unsafe { self.qp.post_send(&mut wr) }.map_err(|error| refused(&error))?;
        self.in_flight.end = options.token.wrapping_add(1);
        Ok(())
    }

    fn span(&self, span: Span<'_>, what_for: Use) -> Result<Sges, String> {
        let (sges, covered) =
            self.domain.sges(span.segments, span.from, span.len, self.elements, what_for)?;
        if covered < span.len {
            return Err(format!("{} bytes in more pieces than the device takes", span.len));
        }
        Ok(sges)
    }
}

impl Work for Queue {
    fn has_room(&self) -> bool {
        self.under_way() < SENDS && self.room_in_ring(BLOCK).is_some()
    }

    fn fitting(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        // One element is kept for a header.
        let most = (self.elements - 1).max(1);
        Ok(self.domain.sges(segments, from, self.longest, most, Use::Usual)?.1)
    }

    fn fitting_read(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        Ok(self.domain.sges(segments, from, self.longest, self.read_elements, self.sink)?.1)
    }

    fn send(&mut self, lead: &[u8], body: &[Segment], options: RequestOptions) -> Result<(), String> {
        let len: usize = body.iter().map(|segment| segment.len()).sum();
        let mut wr = request(opcode::SEND);
        let mut first = Sge { addr: lead.as_ptr().addr() as u64, length: lead.len() as u32, lkey: 0 };
        if lead.len() + len <= self.inline {
            wr.send_flags = send_flags::INLINE;
        } else {
            (first.addr, first.lkey) = (self.keep_lead(lead, options.token)?, self.lead.lkey());
        }
        if len == 0 {
            return self.post(wr, &mut [first], options);
        }
        let mut sges = Sges::new();
        sges.push(first);
        sges.extend(self.span(Span { segments: body, from: 0, len }, Use::Usual)?);
        self.post(wr, &mut sges, options)
    }

    fn write(
        &mut self,
        from: Span<'_>,
        to: RemoteKey,
        immediate: Option<u32>,
        options: RequestOptions,
    ) -> Result<(), String> {
        let mut sges = self.span(from, Use::Usual)?;
        let mut wr =
            request(if immediate.is_some() { opcode::RDMA_WRITE_WITH_IMM } else { opcode::RDMA_WRITE });
        wr.imm_data = immediate.unwrap_or(0).to_be();
        wr.wr = Remote { rdma: ffi::Rdma { remote_addr: to.address, rkey: to.rkey } };
        self.post(wr, &mut sges, options)
    }

    fn read(&mut self, to: Span<'_>, from: RemoteKey, options: RequestOptions) -> Result<(), String> {
        let mut sges = self.span(to, self.sink)?;
        let mut wr = request(opcode::RDMA_READ);
        wr.wr = Remote { rdma: ffi::Rdma { remote_addr: from.address, rkey: from.rkey } };
        self.post(wr, &mut sges, options)
    }

    fn offer(&mut self, segments: &[Segment], parts: &mut Vec<RemotePiece>) -> Result<(), String> {
        self.domain.parts(segments, parts)
    }

    fn register(&mut self, memory: NonNull<[u8]>) -> Result<Mr, String> {
        let peers = if self.sink == Use::Sink { access::REMOTE_WRITE } else { 0 };
        // SAFETY: a store's memory, which is dropped after the region; no peer is told its key. (On iWARP the peer's
        // device is told, for the reads that it answers.)
        let mr = unsafe { Mr::new(&self.domain.pd, memory, access::LOCAL_WRITE | peers, false) };
        mr.map_err(|error| cannot_register(memory.len(), &error))
    }

    fn find(&mut self, handle: u32, write: bool) -> Option<RemoteKey> {
        let tag = if write { self.tags.writable } else { self.tags.readable };
        self.windows.find(handle, tag, write, &self.domain)
    }

    fn unreliable(&mut self) -> Option<&mut dyn Work> {
        self.unreliable.as_deref_mut().map(|unreliable| unreliable as &mut dyn Work)
    }
}

/// Upper bound of the elements of one request.
pub fn elements(limits: &ffi::DeviceAttr) -> u32 {
    u32::try_from(limits.max_sge).unwrap_or(1).clamp(1, ELEMENTS)
}

/// Upper bound of the elements of a read; one on iWARP.
fn read_elements(limits: &ffi::DeviceAttr) -> u32 {
    let of_reads = if limits.max_sge_rd > 0 { limits.max_sge_rd } else { limits.max_sge };
    u32::try_from(of_reads).unwrap_or(1).clamp(1, elements(limits))
}

#[cold]
fn refused(error: &io::Error) -> String {
    format!("the device takes no request: {error}")
}

/// Makes a request of this kind without any other field.
#[inline]
fn request(opcode: u32) -> SendWr {
    // SAFETY: a structure of numbers and pointers, for which zeros are valid.
    SendWr { opcode, ..unsafe { std::mem::zeroed() } }
}

/// Upper bound of a packet's payload, as `enum ibv_mtu`.
pub fn mtu(hca: &Hca, settings: &Settings) -> u8 {
    let port = hca.port_attributes.active_mtu.clamp(1, 5) as u8;
    settings.mtu.map_or(port, |bytes| port.min((bytes.ilog2() as u8).clamp(8, 12) - 7))
}

impl Drop for Queue {
    /// Saves completions of a pool's other queue pairs, and the filled buffers of this one, which would vanish with
    /// this queue pair.
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        if let RecvBuffers::Pool(pool) = &self.recv_buffers {
            let mut attr = ffi::QpAttr { qp_state: qp_state::ERR, ..ffi::QpAttr::default() };
            // (The call fails only for devices that are gone, which fill no more buffers.)
            let _ = self.qp.modify(&mut attr, attr_mask::STATE);
            self.share.set_aside(self.qp.number(), pool);
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({}, {} under way)", self.qp.number(), self.under_way())?;
        self.unreliable.as_ref().map_or(Ok(()), |unreliable| write!(f, " beside {unreliable:?}"))
    }
}
