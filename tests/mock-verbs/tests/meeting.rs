//! The connection manager, and iWARP, whose queue pairs are connected only by it.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use libc::{c_int, sockaddr_in};
use std::sync::Once;
use std::time::{Duration, Instant};
use udeck_mock_verbs::abi::*;

/// Sets the devices before the library reads them.
fn devices() {
    static ONCE: Once = Once::new();
    // SAFETY: Every test calls this first, and nothing else in this process reads or writes variables meanwhile.
    ONCE.call_once(|| unsafe { std::env::set_var("STANDIN_DEVICES", "roce,iwarp:transport=iwarp") });
}

const ROCE: u8 = 1;
const IWARP: u8 = 2;

/// Address of the device with this number, from 1.
fn address(device: u8, port: u16) -> sockaddr_in {
    // SAFETY: Numbers only.
    let mut address: sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port;
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, device]);
    address
}

fn at(address: &mut sockaddr_in) -> *mut libc::sockaddr {
    (address as *mut sockaddr_in).cast()
}

/// An event channel, and identifiers on it.
struct Manager(*mut rdma_event_channel);

impl Manager {
    fn new() -> Self {
        devices();
        // SAFETY: As the header says, all through.
        let channel = unsafe { (library().rdma_create_event_channel)() };
        assert!(!channel.is_null());
        // SAFETY: Its descriptor.
        unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        Manager(channel)
    }

    fn id(&self) -> *mut rdma_cm_id {
        let mut id = std::ptr::null_mut();
        // SAFETY: As the header says.
        let made = unsafe { (library().rdma_create_id)(self.0, &mut id, std::ptr::null_mut(), RDMA_PS_TCP) };
        assert_eq!(made, 0);
        id
    }

    /// Waits for the next event, which must be of this kind. It is not acknowledged.
    fn event(&self, kind: u32) -> *mut rdma_cm_event {
        let (until, mut event) = (Instant::now() + LIMIT, std::ptr::null_mut());
        // SAFETY: As the header says.
        unsafe {
            while (library().rdma_get_cm_event)(self.0, &mut event) != 0 {
                assert!(Instant::now() < until, "event {kind} does not come");
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!((*event).event, kind, "status {}", (*event).status);
        }
        event
    }

    /// Waits for an event, acknowledges it, and returns its status.
    fn told(&self, kind: u32) -> c_int {
        let event = self.event(kind);
        // SAFETY: As the header says.
        unsafe {
            let status = (*event).status;
            (library().rdma_ack_cm_event)(event);
            status
        }
    }

    fn listener(&self, device: u8) -> (*mut rdma_cm_id, u16) {
        let id = self.id();
        // SAFETY: As the header says.
        unsafe {
            assert_eq!((library().rdma_bind_addr)(id, at(&mut address(device, 0))), 0);
            assert_eq!((library().rdma_listen)(id, 8), 0);
            (id, (library().rdma_get_src_port)(id))
        }
    }

    /// Connects to the port, with a queue pair.
    fn asks(&self, device: u8, port: u16, pair: u32, private: &[u8]) -> *mut rdma_cm_id {
        let id = self.id();
        let mut from = address(device, 0);
        // SAFETY: As the header says.
        unsafe {
            let library = library();
            assert_eq!(
                (library.rdma_resolve_addr)(id, at(&mut from), at(&mut address(device, port)), 1000),
                0
            );
            assert_eq!(self.told(RDMA_CM_EVENT_ADDR_RESOLVED), 0);
            assert_eq!((library.rdma_resolve_route)(id, 1000), 0);
            assert_eq!(self.told(RDMA_CM_EVENT_ROUTE_RESOLVED), 0);
            assert_eq!((library.rdma_connect)(id, &mut param(pair, private)), 0);
        }
        id
    }
}

fn param(qp_num: u32, private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num,
    }
}

fn go(side: &Side, id: *mut rdma_cm_id, states: &[u32]) {
    for &state in states {
        let (mut attributes, mut mask) = (ibv_qp_attr { qp_state: state, ..Default::default() }, 0);
        // SAFETY: As the header says.
        assert_eq!(unsafe { (library().rdma_init_qp_attr)(id, &mut attributes, &mut mask) }, 0);
        assert_eq!(side.modify(attributes, mask), 0, "to state {state}");
    }
}

const ALL: [u32; 3] = [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS];

#[test]
fn two_roce_pairs_meet_and_part() {
    let manager = Manager::new();
    let (left, right) = (Side::on("roce", Wish::default()), Side::on("roce", Wish::default()));
    let (listener, port) = manager.listener(ROCE);
    let asking = manager.asks(ROCE, port, left.number(), b"words");
    // SAFETY: As the header says, all through.
    unsafe {
        let library = library();
        let event = manager.event(RDMA_CM_EVENT_CONNECT_REQUEST);
        let (accepting, conn) = ((*event).id, (*event).param.conn);
        assert!(std::ptr::eq((*event).listen_id, listener) && !(*accepting).verbs.is_null());
        // InfiniBand carries the data in a fixed length, padded with zeros.
        let private = std::slice::from_raw_parts(conn.private_data.cast::<u8>(), 56);
        assert_eq!((conn.private_data_len, &private[..6]), (56, &b"words\0"[..]));
        assert_eq!((conn.responder_resources, conn.initiator_depth), (2, 4), "as the other side sees it");
        (library.rdma_ack_cm_event)(event);
        go(&right, accepting, &ALL);
        assert_eq!((library.rdma_accept)(accepting, &mut param(right.number(), b"")), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_CONNECT_RESPONSE), 0);
        go(&left, asking, &ALL);
        assert_eq!((library.rdma_establish)(asking), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_ESTABLISHED), 0);
        assert_eq!((left.state(), right.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
        assert_eq!((library.rdma_destroy_id)(asking), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_DISCONNECTED), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_TIMEWAIT_EXIT), 0);
        assert_eq!(((library.rdma_destroy_id)(accepting), (library.rdma_destroy_id)(listener)), (0, 0));
        (library.rdma_destroy_event_channel)(manager.0);
    }
}

#[test]
fn who_is_not_wanted_and_who_finds_nobody_are_told_apart() {
    let manager = Manager::new();
    // SAFETY: As the header says, all through.
    unsafe {
        let library = library();
        let (listener, port) = manager.listener(ROCE);
        let asking = manager.asks(ROCE, port, 99, b"");
        let event = manager.event(RDMA_CM_EVENT_CONNECT_REQUEST);
        let request = (*event).id;
        (library.rdma_ack_cm_event)(event);
        assert_eq!((library.rdma_reject)(request, std::ptr::null(), 0), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_REJECTED), 28);
        // A listener that leaves refuses its open requests.
        let other = manager.asks(ROCE, port, 99, b"");
        assert_eq!((library.rdma_destroy_id)(listener), 0);
        assert_eq!(manager.told(RDMA_CM_EVENT_REJECTED), 28);
        let late = manager.asks(ROCE, port, 99, b"");
        assert_eq!(manager.told(RDMA_CM_EVENT_REJECTED), 8);
        for id in [asking, request, other, late] {
            assert_eq!((library.rdma_destroy_id)(id), 0);
        }
        (library.rdma_destroy_event_channel)(manager.0);
    }
}

#[test]
fn an_identifier_waits_for_its_events_to_be_acknowledged() {
    let manager = Manager::new();
    let id = manager.id();
    // SAFETY: As the header says, all through.
    unsafe {
        let library = library();
        let (mut from, mut to) = (address(ROCE, 0), address(ROCE, 9));
        assert_eq!((library.rdma_resolve_addr)(id, at(&mut from), at(&mut to), 1000), 0);
        let event = manager.event(RDMA_CM_EVENT_ADDR_RESOLVED);
        let (id, event) = (id as usize, event as usize);
        let destroying = std::thread::spawn(move || (library.rdma_destroy_id)(id as *mut rdma_cm_id));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!destroying.is_finished(), "the event is out");
        (library.rdma_ack_cm_event)(event as *mut rdma_cm_event);
        assert_eq!(destroying.join().unwrap(), 0);
        (library.rdma_destroy_event_channel)(manager.0);
    }
}

/// Properties that iWARP lacks, and the order in which its sides may send.
#[test]
fn iwarps_pairs_are_connected_by_the_manager_only() {
    let manager = Manager::new();
    let wish = Wish::default();
    let (mut left, mut right) = (Side::on("iwarp", wish), Side::on("iwarp", wish));
    let (mut here, mut there) = ([7u8; 8], [0u8; 8]);
    let key = left.register(&mut here, IBV_ACCESS_LOCAL_WRITE);
    let remote = right.register(&mut there, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    let by_hand = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    let (listener, port) = manager.listener(IWARP);
    // SAFETY: As the header says, all through.
    unsafe {
        let library = library();
        let asking = {
            for side in [&left, &right] {
                let init = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: 6, ..by_hand };
                assert_eq!(side.modify(init, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT), 0);
                assert_eq!(side.modify(by_hand, IBV_QP_STATE), libc::EINVAL, "nobody is connected");
            }
            manager.asks(IWARP, port, left.number(), b"")
        };
        let event = manager.event(RDMA_CM_EVENT_CONNECT_REQUEST);
        let accepting = (*event).id;
        (library.rdma_ack_cm_event)(event);
        go(&right, accepting, &ALL);
        assert_eq!((library.rdma_accept)(accepting, &mut param(right.number(), b"")), 0);
        let both = [manager.told(RDMA_CM_EVENT_ESTABLISHED), manager.told(RDMA_CM_EVENT_ESTABLISHED)];
        assert_eq!(both, [0, 0]);
        assert_eq!((left.state(), right.state()), (IBV_QPS_RTS, IBV_QPS_RTS));

        let place =
            |key, memory: &mut [u8]| ibv_sge { addr: memory.as_mut_ptr() as u64, length: 8, lkey: key };
        let mut piece = [place(key, &mut here)];
        let mut from_right = [place(remote, &mut there)];
        let plain = |opcode, pieces: &mut [ibv_sge]| ibv_send_wr {
            opcode,
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as c_int,
            ..std::mem::zeroed()
        };
        assert_eq!(right.post(plain(IBV_WR_SEND, &mut from_right)), libc::EINVAL, "it has heard nothing yet");
        assert_eq!(left.post(plain(IBV_WR_RDMA_WRITE_WITH_IMM, &mut piece)), libc::EINVAL);
        assert_eq!(left.post(plain(IBV_WR_SEND_WITH_IMM, &mut piece)), libc::EINVAL);
        let mut two = [piece[0], piece[0]];
        assert_eq!(left.post(plain(IBV_WR_RDMA_READ, &mut two)), libc::EINVAL);
        assert_eq!(right.receive(1, &mut [place(remote, &mut there)]), 0);
        assert_eq!(left.post(plain(IBV_WR_SEND, &mut piece)), 0);
        assert_eq!((left.poll().status, right.poll().opcode, there), (IBV_WC_SUCCESS, IBV_WC_RECV, [7; 8]));
        assert_eq!(left.receive(2, &mut [place(key, &mut here)]), 0);
        assert_eq!(right.post(plain(IBV_WR_SEND, &mut from_right)), 0, "now it may");
        assert_eq!((right.poll().status, left.poll().opcode), (IBV_WC_SUCCESS, IBV_WC_RECV));

        // A read fills only memory that peers may write.
        let mut read = plain(IBV_WR_RDMA_READ, &mut piece);
        read.wr.rdma.remote_addr = there.as_ptr() as u64;
        read.wr.rdma.rkey = remote;
        assert_eq!((left.post(read), left.poll().status), (0, IBV_WC_LOC_PROT_ERR));

        // The connection ends with the pair.
        drop(left);
        assert_eq!(manager.told(RDMA_CM_EVENT_DISCONNECTED), 0);
        assert_eq!(right.state(), IBV_QPS_ERR);
        for id in [asking, accepting, listener] {
            assert_eq!((library.rdma_destroy_id)(id), 0);
        }
        (library.rdma_destroy_event_channel)(manager.0);
    }
}
