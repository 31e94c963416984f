//! The same message by bare calls, as any program of verbs makes them: without checks, credits or ownership.

use crate::counted::{self, SMALL};
use counts::Result;
use libc::{c_int, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use udeck_mock_verbs::abi::*;

/// Declares the needed functions, and looks them up.
macro_rules! functions {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        struct Library { $($name: unsafe extern "C" fn($($kind),*) -> $result,)* }

        impl Library {
            fn open(path: &Path) -> Result<Self> {
                let path = CString::new(path.as_os_str().as_bytes())?;
                // SAFETY: The stand-in runs nothing when it is loaded.
                let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err(format!("{path:?} cannot be loaded").into());
                }
                Ok(Library { $($name: {
                    let found = symbol(handle, stringify!($name))?;
                    // SAFETY: The function has the type of the header.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(found) }
                },)* })
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
}

fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void> {
    let text = CString::new(name)?;
    // SAFETY: An open library, and a name that ends.
    let found = unsafe { libc::dlsym(handle, text.as_ptr()) };
    if found.is_null() { Err(format!("no {name}").into()) } else { Ok(found) }
}

/// Index in the stand-in's table of GIDs: RoCE v2 of loopback.
const GID: u8 = 3;

/// Sends one message at a time, and polls the empty queue after each.
pub fn run(library: &Path, rounds: usize) -> Result {
    let library = Library::open(library)?;
    // The device writes this memory, so no Rust variable refers to it.
    let memory: *mut [u8; 2 * SMALL] = Box::into_raw(Box::new([0; 2 * SMALL]));
    // SAFETY: the contract of the header; everything lives until the process ends.
    unsafe {
        let list = (library.ibv_get_device_list)(null_mut());
        let context = (library.ibv_open_device)(*list);
        let domain = (library.ibv_alloc_pd)(context);
        let queue = (library.ibv_create_cq)(context, 64, null_mut(), null_mut(), 0);
        let (address, access) = (memory.cast::<c_void>(), IBV_ACCESS_LOCAL_WRITE as c_int);
        let region = (library.ibv_reg_mr)(domain, address, 2 * SMALL, access);
        if queue.is_null() || region.is_null() {
            return Err("the stand-in gives no objects".into());
        }
        let (from, to) = pairs(&library, context, domain, queue)?;
        let key = (*region).lkey;
        let mut source = ibv_sge { addr: address as u64, length: SMALL as u32, lkey: key };
        let mut target = ibv_sge { addr: address as u64 + SMALL as u64, ..source };
        let mut send: ibv_send_wr = std::mem::zeroed();
        (send.sg_list, send.num_sge, send.opcode) = (&mut source, 1, IBV_WR_SEND);
        send.send_flags = IBV_SEND_SIGNALED;
        let mut receive = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &mut target, num_sge: 1 };
        let mut found = [ibv_wc::default(); 2];
        let mut bad = null_mut();
        let first = (*context).ops.post_recv.ok_or("no post_recv")?(to, &mut receive, &mut bad);
        assert_eq!(first, 0, "posting the first receive");
        for _ in 0..rounds {
            counted::verbs_post_send_bare(from, &mut send);
            counted::verbs_retrieve_bare(queue, &mut found, to, &mut receive);
            assert_eq!((found[0].status, found[1].status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
            assert!(counted::verbs_cq_empty_bare(queue, &mut found));
        }
    }
    Ok(())
}

/// Makes two queue pairs, connected to each other.
unsafe fn pairs(
    library: &Library,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq,
) -> Result<(*mut ibv_qp, *mut ibv_qp)> {
    let mut dgid = ibv_gid::default();
    // SAFETY: the contract of the header.
    let make = || unsafe {
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue,
            recv_cq: queue,
            srq: null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        (library.ibv_create_qp)(domain, &mut init)
    };
    let (one, other) = (make(), make());
    // SAFETY: the contract of the header.
    let found = unsafe { (library.ibv_query_gid)(context, 1, c_int::from(GID), &mut dgid) };
    if one.is_null() || other.is_null() || found != 0 {
        return Err("no queue pairs".into());
    }
    for (pair, peer) in [(one, other), (other, one)] {
        // SAFETY: the contract of the header.
        unsafe { connect(library, pair, (*peer).qp_num, dgid)? };
    }
    Ok((one, other))
}

unsafe fn connect(library: &Library, pair: *mut ibv_qp, dest_qp_num: u32, dgid: ibv_gid) -> Result {
    let grh = ibv_global_route { dgid, sgid_index: GID, hop_limit: 64, ..Default::default() };
    let mut attributes = ibv_qp_attr {
        port_num: 1,
        path_mtu: 3,
        dest_qp_num,
        ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() },
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    };
    let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let receive = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let send = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    for (state, mask) in [(IBV_QPS_INIT, init), (IBV_QPS_RTR, receive), (IBV_QPS_RTS, send)] {
        attributes.qp_state = state;
        // SAFETY: the contract of the header.
        let error = unsafe { (library.ibv_modify_qp)(pair, &mut attributes, mask | IBV_QP_STATE) };
        if error != 0 {
            return Err(format!("to state {state}: error {error}").into());
        }
    }
    Ok(())
}
