//! A link's queue pair: where it lies in the network, its receive buffers, and its [`Work`].
//!
//! Each queue pair has receive buffers of its own, not a queue shared with others: the credits of a connection promise buffers
//! of its own, so that a message never finds none, and a peer that floods us takes none from others. They lie, with what is
//! sent from here, in memory of their own, which no peer is given any right to.

use std::collections::VecDeque;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::completions::{Share, name_of};
use crate::connection::{How, RECEIVES, Span, Work};
use crate::domain::{Domain, Sges, cannot_register};
use crate::endpoint::Endpoint;
use crate::ffi::codes::{access, attr_mask, opcode, qp_state, qp_type, send_flags};
use crate::ffi::{self, Remote, SendWr, Sge};
use crate::hca::Hca;
use crate::hca::objects::{Mr, Qp};
use crate::memory::Segment;
use crate::settings::Settings;
use crate::windows::Windows;
use crate::wire::{BLOCK, Far, Part};

/// Requests that may be outstanding on the send side.
pub const SENDS: u32 = 128;
/// Elements that a request has at most, if the device takes so many: a header, four segments, and the bounds between chunks
/// that these cross.
const ELEMENTS: u32 = 12;
/// Bytes of one request, at most: what a length can say.
const LONGEST: usize = 1 << 30;
/// Bytes of headers and short messages that are under way.
const LEADS: usize = 8 * BLOCK;
/// Reads that are under way at a time, at most.
const READS: i32 = 16;
/// 0.64 ms: how long a sender waits that found no receive buffer. (It is coded: 14.)
const MIN_RNR_TIMER: u8 = 14;

/// See the module. Dropped, the device accesses nothing of it any more.
pub struct Queue {
    /// Before everything that it accesses.
    qp: Qp,
    lead: Mr,
    pages: Pages,
    domain: Arc<Domain>,
    _share: Share,
    windows: Arc<Windows>,
    tags: Tags,
    link: u32,
    psn: u32,
    elements: usize,
    /// Bytes of one request.
    longest: usize,
    inline: usize,
    /// Requests that the device has: number, and where the ring of leads is free from when it is over.
    flying: VecDeque<(u32, u64)>,
    /// The ring of leads: what is in use, as offsets that go on for ever.
    used: std::ops::Range<u64>,
}

/// Those of the windows that the peer may write and read.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub writable: Option<udeck_via::Ptag>,
    pub readable: Option<udeck_via::Ptag>,
}

/// Pages of our own, which the kernel gives as zeros.
struct Pages {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping of our own, of plain bytes.
unsafe impl Send for Pages {}

const RECEIVE_BYTES: usize = RECEIVES as usize * BLOCK;

impl Queue {
    /// A queue pair that is ready to receive, and connected to nobody.
    ///
    /// # Errors
    /// The device's; in words, what was tried.
    pub fn new(
        hca: &Hca,
        settings: &Settings,
        domain: Arc<Domain>,
        share: Share,
        windows: Arc<Windows>,
        link: u32,
        tags: Tags,
    ) -> io::Result<Self> {
        let pages = Pages::new(RECEIVE_BYTES + LEADS)?;
        // SAFETY: the memory is ours, and goes after the region. No peer is told its key, and none would help.
        let lead = unsafe { Mr::new(&domain.pd, pages.all(), access::LOCAL_WRITE, false) };
        let lead = lead.map_err(|error| io::Error::new(error.kind(), cannot_register(pages.len, &error)))?;
        let cap = ffi::QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: elements(&hca.attributes),
            max_recv_sge: 1,
            max_inline_data: settings.inline,
        };
        let (qp, inline) = match Qp::new(&domain.pd, &share.cq, qp_type::RC, cap) {
            Ok(qp) => (qp, settings.inline),
            // Some devices have no such thing, and say so.
            Err(_) if settings.inline > 0 => {
                (Qp::new(&domain.pd, &share.cq, qp_type::RC, ffi::QpCap { max_inline_data: 0, ..cap })?, 0)
            }
            Err(error) => return Err(error),
        };
        let queue = Queue {
            qp,
            lead,
            pages,
            domain,
            _share: share,
            windows,
            tags,
            link,
            psn: getrandom::u32().map_err(|error| io::Error::other(error.to_string()))? & 0xff_ffff,
            elements: cap.max_send_sge as usize,
            longest: (hca.port_attributes.max_msg_sz as usize).clamp(BLOCK, LONGEST),
            inline: inline as usize,
            flying: VecDeque::with_capacity(SENDS as usize),
            used: 0..0,
        };
        queue.initialise(hca, settings)?;
        (0..RECEIVES).try_for_each(|slot| queue.post_receive(slot))?;
        Ok(queue)
    }

    /// What the peer is told.
    pub fn endpoint(&self, hca: &Hca, settings: &Settings) -> Endpoint {
        Endpoint {
            qpn: self.qp.number(),
            psn: self.psn,
            gid: hca.gid,
            lid: hca.port_attributes.lid,
            mtu: mtu(hca, settings),
            ethernet: hca.ethernet,
            reads: hca.attributes.max_qp_rd_atom.clamp(1, READS) as u8,
            pkey: hca.pkey,
        }
    }

    fn initialise(&self, hca: &Hca, settings: &Settings) -> io::Result<()> {
        // The peer reads what is offered to it. Whether it may read windows is its tag's and the window's business.
        let write = if self.tags.writable.is_some() { access::REMOTE_WRITE } else { 0 };
        let mut attr = ffi::QpAttr {
            qp_state: qp_state::INIT,
            pkey_index: settings.pkey,
            port_num: hca.port,
            qp_access_flags: (access::REMOTE_READ | write) as u32,
            ..ffi::QpAttr::default()
        };
        let mask = attr_mask::STATE | attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
        self.qp.modify(&mut attr, mask)
    }

    /// Joins it to the peer's.
    ///
    /// # Errors
    /// The device's: it cannot get there.
    pub fn join(&self, hca: &Hca, settings: &Settings, peer: &Endpoint) -> io::Result<()> {
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
                sl: settings.sl,
                is_global: global.into(),
                port_num: hca.port,
                ..ffi::AhAttr::default()
            },
            ..ffi::QpAttr::default()
        };
        let path = attr_mask::AV | attr_mask::PATH_MTU | attr_mask::DEST_QPN | attr_mask::RQ_PSN;
        let mask = attr_mask::STATE | path | attr_mask::MAX_DEST_RD_ATOMIC | attr_mask::MIN_RNR_TIMER;
        self.qp.modify(&mut attr, mask)?;
        attr.qp_state = qp_state::RTS;
        attr.sq_psn = self.psn;
        attr.timeout = settings.timeout;
        attr.retry_cnt = settings.retry;
        attr.rnr_retry = settings.rnr_retry;
        attr.max_rd_atomic = reads.min(peer.reads).max(1);
        let tries = attr_mask::TIMEOUT | attr_mask::RETRY_CNT | attr_mask::RNR_RETRY;
        self.qp.modify(&mut attr, attr_mask::STATE | attr_mask::SQ_PSN | attr_mask::MAX_QP_RD_ATOMIC | tries)
    }

    /// Its number, as the device tells of it.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    // ---- receives ----

    /// What has come to a buffer. Until it is posted again.
    pub fn received(&self, slot: u32, len: u32) -> &[u8] {
        let (slot, len) = (slot.min(RECEIVES - 1) as usize, (len as usize).min(BLOCK));
        // SAFETY: inside of our memory; the device has filled the buffer and does not have it.
        unsafe { std::slice::from_raw_parts(self.pages.at.as_ptr().add(slot * BLOCK), len) }
    }

    /// Gives a buffer to the device.
    ///
    /// # Errors
    /// The device's.
    pub fn post_receive(&self, slot: u32) -> io::Result<()> {
        let slot = slot.min(RECEIVES - 1);
        let addr = self.pages.at.addr().get() as u64 + u64::from(slot) * BLOCK as u64;
        let mut sge = Sge { addr, length: BLOCK as u32, lkey: self.lead.lkey() };
        let name = name_of(self.link, slot, true);
        let mut wr = ffi::RecvWr { wr_id: name, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        // SAFETY: the buffer is in memory that goes after the queue pair, and nobody has a slice of it: those of `received`
        // end before it is posted again, which takes the link's lock.
        unsafe { self.qp.post_recv(&mut wr) }
    }

    // ---- sends ----

    /// The request of this number, and all before it, are over.
    pub fn retire(&mut self, token: u32) {
        while self.flying.front().is_some_and(|(first, _)| token.wrapping_sub(*first) <= u32::MAX / 2) {
            if let Some((_, end)) = self.flying.pop_front() {
                self.used.start = end;
            }
        }
    }

    /// Where `len` bytes are free in one piece; the offset behind them.
    fn room_in_ring(&self, len: usize) -> Option<(usize, u64)> {
        let ring = LEADS as u64;
        let (len, mut start) = (len.next_multiple_of(64) as u64, self.used.end);
        if start % ring + len > ring {
            start = start.next_multiple_of(ring);
        }
        let end = start + len;
        (end - self.used.start <= ring).then_some(((start % ring) as usize, end))
    }

    fn post(&mut self, wr: SendWr, mut sges: Sges, how: How) -> Result<(), String> {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(how.fence, send_flags::FENCE) | flag(how.signalled, send_flags::SIGNALED);
        let mut wr = SendWr {
            wr_id: name_of(self.link, how.token, false),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
            send_flags: wr.send_flags | flags,
            ..wr
        };
        // SAFETY: what the elements name is the outbox, by what the VI layer posted and the connection keeps until this has
        // completed or the queue pair is gone; a store that the connection keeps as long; or a lead in our ring, kept
        // likewise. (What is inline is copied now.)
        unsafe { self.qp.post_send(&mut wr) }
            .map_err(|error| format!("the device takes no request: {error}"))?;
        self.flying.push_back((how.token, self.used.end));
        Ok(())
    }

    fn span(&self, span: Span<'_>) -> Result<Sges, String> {
        let (sges, covered) = self.domain.sges(span.segments, span.from, span.len, self.elements)?;
        if covered < span.len {
            return Err(format!("{} bytes in more pieces than the device takes", span.len));
        }
        Ok(sges)
    }
}

impl Work for Queue {
    fn has_room(&self) -> bool {
        self.flying.len() < SENDS as usize && self.room_in_ring(BLOCK).is_some()
    }

    fn fitting(&mut self, segments: &[Segment], from: usize) -> usize {
        // One is kept for a header. What cannot be registered says so when it is posted.
        let most = self.elements - 1;
        self.domain.sges(segments, from, self.longest, most.max(1)).map_or(usize::MAX, |(_, covered)| covered)
    }

    fn send(&mut self, lead: &[u8], body: &[Segment], how: How) -> Result<(), String> {
        let len: usize = body.iter().map(|segment| segment.len()).sum();
        let mut wr = request(opcode::SEND);
        let mut sges = Sges::new();
        if lead.len() + len <= self.inline {
            wr.send_flags = send_flags::INLINE;
            sges.push(Sge { addr: lead.as_ptr().addr() as u64, length: lead.len() as u32, lkey: 0 });
        } else {
            let (at, end) = self.room_in_ring(lead.len()).ok_or("no room for a header")?;
            self.used.end = end;
            // SAFETY: inside of our memory, behind the receive buffers, and in no request that is under way.
            let addr = unsafe {
                let to = self.pages.at.as_ptr().add(RECEIVE_BYTES + at);
                std::ptr::copy_nonoverlapping(lead.as_ptr(), to, lead.len());
                to.addr() as u64
            };
            sges.push(Sge { addr, length: lead.len() as u32, lkey: self.lead.lkey() });
        }
        sges.extend(self.span(Span { segments: body, from: 0, len })?);
        self.post(wr, sges, how)
    }

    fn write(&mut self, from: Span<'_>, to: Far, immediate: Option<u32>, how: How) -> Result<(), String> {
        let sges = self.span(from)?;
        let mut wr =
            request(if immediate.is_some() { opcode::RDMA_WRITE_WITH_IMM } else { opcode::RDMA_WRITE });
        wr.imm_data = immediate.unwrap_or(0).to_be();
        wr.wr = Remote { rdma: ffi::Rdma { remote_addr: to.address, rkey: to.rkey } };
        self.post(wr, sges, how)
    }

    fn read(&mut self, to: Span<'_>, from: Far, how: How) -> Result<(), String> {
        let sges = self.span(to)?;
        let mut wr = request(opcode::RDMA_READ);
        wr.wr = Remote { rdma: ffi::Rdma { remote_addr: from.address, rkey: from.rkey } };
        self.post(wr, sges, how)
    }

    fn offer(&mut self, segments: &[Segment], parts: &mut Vec<Part>) -> Result<(), String> {
        self.domain.parts(segments, parts)
    }

    fn register(&mut self, memory: NonNull<[u8]>) -> Result<Mr, String> {
        // SAFETY: a store's memory, which goes after the region; no peer is told its key.
        let mr = unsafe { Mr::new(&self.domain.pd, memory, access::LOCAL_WRITE, false) };
        mr.map_err(|error| cannot_register(memory.len(), &error))
    }

    fn find(&mut self, handle: u32, write: bool) -> Option<Far> {
        let tag = if write { self.tags.writable } else { self.tags.readable };
        self.windows.find(handle, tag, write, &self.domain)
    }
}

/// Elements of one request.
pub fn elements(limits: &ffi::DeviceAttr) -> u32 {
    let of_reads = if limits.max_sge_rd > 0 { limits.max_sge_rd } else { limits.max_sge };
    u32::try_from(limits.max_sge.min(of_reads)).unwrap_or(1).clamp(1, ELEMENTS)
}

/// A request of this kind, and nothing else.
fn request(opcode: u32) -> SendWr {
    // SAFETY: a structure of numbers and pointers, for which zeros are nothing.
    SendWr { opcode, ..unsafe { std::mem::zeroed() } }
}

/// Most bytes of payload in a packet, as `enum ibv_mtu`.
pub fn mtu(hca: &Hca, settings: &Settings) -> u8 {
    let port = hca.port_attributes.active_mtu.clamp(1, 5) as u8;
    settings.mtu.map_or(port, |bytes| port.min((bytes.ilog2() as u8).clamp(8, 12) - 7))
}

impl Pages {
    fn new(len: usize) -> io::Result<Self> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe { mmap_anonymous(null_mut(), len, rights, flags) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { at, len })
    }

    fn all(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.at, self.len)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the region in it and the queue pair are gone.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({}, {} under way)", self.qp.number(), self.flying.len())
    }
}
