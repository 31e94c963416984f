//! Loads the library by its path, as a program does, and calls it through its own interface.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use udeck_mock_verbs::StandinCounters;
use udeck_mock_verbs::abi::*;

/// Longest time of any operation here; only a hang takes so long.
pub const LIMIT: Duration = Duration::from_secs(30);

macro_rules! functions {
    ($($name:ident($($kind:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Library { $(pub $name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)* }

        impl Library {
            fn fill(handle: *mut c_void) -> Self {
                // SAFETY: The functions have the types of the header.
                unsafe { Library { $($name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(
                    symbol(handle, stringify!($name))),)* } }
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    _ibv_query_gid_ex(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, u32);
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_query_srq(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
    ibv_wc_status_str(u32) -> *const c_char;
    ibv_event_type_str(u32) -> *const c_char;
    ibv_node_type_str(c_int) -> *const c_char;
    ibv_fork_init() -> c_int;
    rdma_create_event_channel() -> *mut rdma_event_channel;
    rdma_destroy_event_channel(*mut rdma_event_channel);
    rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
    rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    rdma_get_src_port(*mut rdma_cm_id) -> u16;
    rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_establish(*mut rdma_cm_id) -> c_int;
    rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    standin_counters(*mut StandinCounters);
    standin_inject(u32, u32) -> c_int;
    standin_lose(u32, u64) -> u64;
}

fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name");
    // SAFETY: An open library, and a name that ends.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not exported");
    found
}

/// Path of the library: cargo puts it beside this test's program.
fn path() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let name = "libudeck_mock_verbs.so";
    let beside = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside.into_iter().find(|path| path.exists()).expect("the library lies beside its tests")
}

pub fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = CString::new(path().into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: The library runs no code of its own when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} can be loaded");
        Library::fill(handle)
    })
}

/// Opens the device of this name.
pub fn open(name: &str) -> *mut ibv_context {
    let library = library();
    let mut count = 0;
    // SAFETY: As the header says.
    unsafe {
        let list = (library.ibv_get_device_list)(&mut count);
        assert!(!list.is_null());
        let devices = std::slice::from_raw_parts(list, count as usize);
        let named = |device: &&*mut ibv_device| {
            CStr::from_ptr((library.ibv_get_device_name)(**device)).to_bytes() == name.as_bytes()
        };
        let device = devices.iter().find(named).expect("the device is there");
        let context = (library.ibv_open_device)(*device);
        assert!(!context.is_null());
        (library.ibv_free_device_list)(list);
        context
    }
}

/// One side: a context with a domain, a completion queue for both directions, and a queue pair.
pub struct Side {
    pub context: *mut ibv_context,
    pub domain: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub queue: *mut ibv_cq,
    pub shared: *mut ibv_srq,
    pub pair: *mut ibv_qp,
    pub regions: Vec<*mut ibv_mr>,
}

#[derive(Clone, Copy)]
pub struct Wish {
    pub kind: u32,
    pub all_signalled: bool,
    pub entries: c_int,
    pub cap: ibv_qp_cap,
    pub shared: bool,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub access: u32,
}

impl Wish {
    pub const USUAL: Self = Wish {
        kind: IBV_QPT_RC,
        all_signalled: true,
        entries: 64,
        cap: ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        },
        shared: false,
        // The time-out is 4.096 µs times 2^12: 17 ms, twice.
        timeout: 12,
        retries: 1,
        rnr_retries: 7,
        access: IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    };
}

impl Default for Wish {
    fn default() -> Self {
        Wish::USUAL
    }
}

/// Index of the RoCE v2 address of loopback.
pub const V2: u8 = 3;

impl Side {
    pub fn new(wish: Wish) -> Self {
        Side::on("standin0", wish)
    }

    pub fn on(device: &str, wish: Wish) -> Self {
        let library = library();
        let context = open(device);
        // SAFETY: As the header says.
        unsafe {
            let domain = (library.ibv_alloc_pd)(context);
            let channel = (library.ibv_create_comp_channel)(context);
            let null = std::ptr::null_mut();
            let queue = (library.ibv_create_cq)(context, wish.entries, null, channel, 0);
            assert!(!domain.is_null() && !channel.is_null() && !queue.is_null());
            let mut shared = std::ptr::null_mut();
            if wish.shared {
                let attr = ibv_srq_attr { max_wr: 16, max_sge: 4, srq_limit: 0 };
                let mut init = ibv_srq_init_attr { srq_context: null, attr };
                shared = (library.ibv_create_srq)(domain, &mut init);
                assert!(!shared.is_null());
            }
            let mut init = ibv_qp_init_attr {
                qp_context: null,
                send_cq: queue,
                recv_cq: queue,
                srq: shared,
                cap: wish.cap,
                qp_type: wish.kind,
                sq_sig_all: c_int::from(wish.all_signalled),
            };
            let pair = (library.ibv_create_qp)(domain, &mut init);
            assert!(!pair.is_null());
            Side { context, domain, channel, queue, shared, pair, regions: Vec::new() }
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: The pair is there.
        unsafe { (*self.pair).qp_num }
    }

    /// Address at this index of the table.
    pub fn gid(&self, index: u8) -> ibv_gid {
        let mut gid = ibv_gid::default();
        // SAFETY: As the header says.
        assert_eq!(unsafe { (library().ibv_query_gid)(self.context, 1, c_int::from(index), &mut gid) }, 0);
        gid
    }

    pub fn modify(&self, mut attributes: ibv_qp_attr, mask: c_int) -> c_int {
        // SAFETY: As the header says.
        unsafe { (library().ibv_modify_qp)(self.pair, &mut attributes, mask) }
    }

    pub fn init(&self, wish: &Wish) {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: wish.access,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(self.modify(attributes, mask), 0, "to INIT");
    }

    pub fn ready_to_receive(&self, wish: &Wish, peer: u32, dgid: ibv_gid) {
        let (attributes, mask) = self.to_rtr(wish, peer, dgid);
        assert_eq!(self.modify(attributes, mask), 0, "to RTR");
    }

    pub fn to_rtr(&self, wish: &Wish, peer: u32, dgid: ibv_gid) -> (ibv_qp_attr, c_int) {
        let grh = ibv_global_route { dgid, sgid_index: V2, hop_limit: 64, ..Default::default() };
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: 3,
            dest_qp_num: peer,
            rq_psn: 7,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() },
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        (attributes, if wish.kind == IBV_QPT_RC { mask | reliable } else { mask })
    }

    pub fn ready_to_send(&self, wish: &Wish) {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: 7,
            timeout: wish.timeout,
            retry_cnt: wish.retries,
            rnr_retry: wish.rnr_retries,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | if wish.kind == IBV_QPT_RC { reliable } else { 0 };
        assert_eq!(self.modify(attributes, mask), 0, "to RTS");
    }

    pub fn fail(&self) {
        let attributes = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        assert_eq!(self.modify(attributes, IBV_QP_STATE), 0, "to ERR");
    }

    /// State of the pair, as the device reports it.
    pub fn state(&self) -> u32 {
        let mut attributes = ibv_qp_attr::default();
        // SAFETY: All its members may be zero.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: As the header says.
        let result = unsafe { (library().ibv_query_qp)(self.pair, &mut attributes, IBV_QP_STATE, &mut init) };
        assert_eq!(result, 0);
        attributes.qp_state
    }

    /// Registers memory, and returns its key. (Both keys are the same.)
    pub fn register(&mut self, memory: &mut [u8], access: u32) -> u32 {
        let (address, length) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY: As the header says; the memory outlives the test's pairs.
        let region = unsafe { (library().ibv_reg_mr)(self.domain, address, length, access as c_int) };
        assert!(!region.is_null());
        self.regions.push(region);
        // SAFETY: It is there.
        unsafe { (*region).rkey }
    }

    pub fn post(&self, mut request: ibv_send_wr) -> c_int {
        let mut bad = std::ptr::null_mut();
        // SAFETY: As the header says.
        unsafe {
            let post_send = (*self.context).ops.post_send.expect("post_send");
            let result = post_send(self.pair, &mut request, &mut bad);
            assert_eq!(result != 0, std::ptr::eq(bad, &request));
            result
        }
    }

    pub fn receive(&self, id: u64, pieces: &mut [ibv_sge]) -> c_int {
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as c_int,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: As the header says.
        unsafe {
            let ops = &(*self.context).ops;
            if self.shared.is_null() {
                ops.post_recv.expect("post_recv")(self.pair, &mut request, &mut bad)
            } else {
                ops.post_srq_recv.expect("post_srq_recv")(self.shared, &mut request, &mut bad)
            }
        }
    }

    pub fn poll_once(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        // SAFETY: As the header says.
        match unsafe { (*self.context).ops.poll_cq.expect("poll_cq")(self.queue, 1, &mut wc) } {
            0 => None,
            1 => Some(wc),
            other => panic!("poll_cq returns {other}"),
        }
    }

    pub fn poll(&self) -> ibv_wc {
        let since = Instant::now();
        loop {
            if let Some(wc) = self.poll_once() {
                return wc;
            }
            assert!(since.elapsed() < LIMIT, "a completion comes");
            std::thread::yield_now();
        }
    }

    pub fn notify(&self, solicited_only: bool) {
        // SAFETY: As the header says.
        let result = unsafe {
            (*self.context).ops.req_notify_cq.expect("req_notify_cq")(self.queue, c_int::from(solicited_only))
        };
        assert_eq!(result, 0);
    }

    /// Waits at most `limit` for an asynchronous event, and acknowledges it.
    pub fn event_within(&self, limit: Duration) -> Option<ibv_async_event> {
        // SAFETY: The context is open.
        if !readable(unsafe { (*self.context).async_fd }, limit) {
            return None;
        }
        // SAFETY: All its members may be zero; as the header says.
        unsafe {
            let mut event: ibv_async_event = std::mem::zeroed();
            assert_eq!((library().ibv_get_async_event)(self.context, &mut event), 0);
            (library().ibv_ack_async_event)(&mut event);
            Some(event)
        }
    }

    /// Waits for an asynchronous event.
    pub fn event(&self) -> ibv_async_event {
        self.event_within(LIMIT).expect("an asynchronous event")
    }
}

pub fn readable(fd: c_int, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: One structure.
    unsafe { libc::poll(&mut poll, 1, limit.as_millis() as c_int) == 1 }
}

impl Drop for Side {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let library = library();
        // SAFETY: As the header says, in the order that it wants.
        unsafe {
            assert_eq!((library.ibv_destroy_qp)(self.pair), 0);
            if !self.shared.is_null() {
                assert_eq!((library.ibv_destroy_srq)(self.shared), 0);
            }
            assert_eq!((library.ibv_destroy_cq)(self.queue), 0);
            assert_eq!((library.ibv_destroy_comp_channel)(self.channel), 0);
            self.regions.iter().for_each(|region| assert_eq!((library.ibv_dereg_mr)(*region), 0));
            assert_eq!((library.ibv_dealloc_pd)(self.domain), 0);
            assert_eq!((library.ibv_close_device)(self.context), 0);
        }
    }
}

/// Makes two sides whose pairs are connected.
pub fn connected(wish: Wish) -> (Side, Side) {
    let (a, b) = (Side::new(wish), Side::new(wish));
    connect(&a, &b, &wish);
    (a, b)
}

pub fn connect(a: &Side, b: &Side, wish: &Wish) {
    a.init(wish);
    b.init(wish);
    a.ready_to_receive(wish, b.number(), b.gid(V2));
    b.ready_to_receive(wish, a.number(), a.gid(V2));
    a.ready_to_send(wish);
    b.ready_to_send(wish);
}

pub fn piece(memory: &[u8], key: u32) -> ibv_sge {
    ibv_sge { addr: memory.as_ptr() as u64, length: memory.len() as u32, lkey: key }
}

/// Makes a request without flags; `pieces` must live until it is posted.
pub fn request(id: u64, opcode: u32, pieces: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: All members may be zero.
    let zero: ibv_send_wr = unsafe { std::mem::zeroed() };
    ibv_send_wr { wr_id: id, opcode, sg_list: pieces.as_mut_ptr(), num_sge: pieces.len() as c_int, ..zero }
}

/// Makes a request as [`request`] does, to `[address..]` of region `key` at the peer.
pub fn rdma(id: u64, opcode: u32, pieces: &mut [ibv_sge], address: u64, key: u32) -> ibv_send_wr {
    let mut request = request(id, opcode, pieces);
    request.wr.rdma = ibv_wr_rdma { remote_addr: address, rkey: key };
    request
}

pub const WRITABLE: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
pub const READABLE: u32 = IBV_ACCESS_REMOTE_READ;
