//! Tests of objects, limits, states and events.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use std::ffi::CStr;
use std::time::Duration;
use udeck_mock_verbs::abi::*;

#[test]
fn the_device_and_its_port_say_what_they_are() {
    let library = library();
    let context = open("standin0");
    // SAFETY: As the header says, all through.
    unsafe {
        let mut device: ibv_device_attr = std::mem::zeroed();
        assert_eq!((library.ibv_query_device)(context, &mut device), 0);
        assert_eq!((device.phys_port_cnt, device.max_sge, device.max_pkeys), (1, 16, 1));
        // The program knows the structure as it was before it grew.
        let mut port = ibv_port_attr { port_cap_flags2: 0xabcd, ..Default::default() };
        assert_eq!((library.ibv_query_port)(context, 1, &mut port), 0);
        assert_eq!((port.state, port.link_layer, port.active_mtu), (IBV_PORT_ACTIVE, 2, 3));
        assert_eq!(port.port_cap_flags2, 0xabcd);
        assert_eq!((library.ibv_query_port)(context, 2, &mut port), libc::EINVAL);
        let mut key = 0;
        assert_eq!(((library.ibv_query_pkey)(context, 1, 0, &mut key), key), (0, 0xffff));
        let mut entry = ibv_gid_entry::default();
        let size = size_of::<ibv_gid_entry>();
        assert_eq!((library._ibv_query_gid_ex)(context, 1, 3, &mut entry, 0, size), 0);
        assert_eq!((entry.gid_type, &entry.gid.raw[10..]), (2, &[255, 255, 127, 0, 0, 1][..]));
        assert_eq!((library._ibv_query_gid_ex)(context, 1, 2, &mut entry, 0, size), 0);
        assert_eq!((entry.gid_type, &entry.gid.raw[10..]), (1, &[255, 255, 127, 0, 0, 1][..]));
        assert_eq!((library._ibv_query_gid_ex)(context, 1, 4, &mut entry, 0, size), libc::ENODATA);
        let words = CStr::from_ptr((library.ibv_wc_status_str)(IBV_WC_RETRY_EXC_ERR));
        assert_eq!(words.to_str(), Ok("transport retry counter exceeded"));
        let words = CStr::from_ptr((library.ibv_event_type_str)(IBV_EVENT_PORT_ERR));
        assert_eq!(words.to_str(), Ok("port error"));
        assert_eq!(((library.ibv_fork_init)(), (library.ibv_close_device)(context)), (0, 0));
    }
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let mut side = Side::new(Wish { shared: true, ..Wish::default() });
    side.register(&mut [0; 8], 0);
    let library = library();
    // SAFETY: As the header says.
    unsafe {
        assert_eq!((library.ibv_dealloc_pd)(side.domain), libc::EBUSY);
        assert_eq!((library.ibv_destroy_cq)(side.queue), libc::EBUSY);
        assert_eq!((library.ibv_destroy_srq)(side.shared), libc::EBUSY);
        assert_eq!((library.ibv_destroy_comp_channel)(side.channel), libc::EBUSY);
    }
}

#[test]
fn memory_is_registered_by_rules() {
    let side = Side::new(Wish::default());
    let register = |address: usize, length, access: u32| {
        // SAFETY: As the header says.
        let region = unsafe { (library().ibv_reg_mr)(side.domain, address as *mut _, length, access as i32) };
        let error = std::io::Error::last_os_error().raw_os_error();
        if region.is_null() {
            return error;
        }
        // SAFETY: As the header says.
        unsafe { assert_eq!((library().ibv_dereg_mr)(region), 0) };
        None
    };
    let memory = [0u8; 64];
    let here = memory.as_ptr() as usize;
    assert_eq!(register(here, 64, WRITABLE), None);
    assert_eq!(register(here, 0, WRITABLE), Some(libc::EINVAL));
    assert_eq!(register(here, 64, IBV_ACCESS_REMOTE_WRITE), Some(libc::EINVAL), "nor local write");
    assert_eq!(register(here, 64, IBV_ACCESS_RELAXED_ORDERING), Some(libc::EINVAL), "not by this function");
    assert_eq!(register(0x1000, 64, 0), Some(libc::EFAULT), "no memory is there");
    // SAFETY: As the header says.
    unsafe {
        let (address, access) = (here as *mut _, IBV_ACCESS_RELAXED_ORDERING);
        let region = (library().ibv_reg_mr_iova2)(side.domain, address, 64, here as u64, access);
        assert!(!region.is_null());
        assert_eq!((library().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn queues_have_as_many_places_as_were_asked_for_and_a_poll_frees_them() {
    let cap = ibv_qp_cap { max_send_wr: 2, max_recv_wr: 2, ..Wish::default().cap };
    let (a, b) = connected(Wish { cap, all_signalled: false, ..Wish::default() });
    let mut send = request(1, IBV_WR_SEND, &mut []);
    (0..2).for_each(|id| assert_eq!(b.receive(id, &mut []), 0));
    assert_eq!(b.receive(2, &mut []), libc::ENOMEM);
    assert_eq!(a.post(send), 0);
    send.send_flags = IBV_SEND_SIGNALED;
    assert_eq!(a.post(send), 0);
    assert_eq!(b.poll().wr_id, 0);
    assert_eq!(b.receive(2, &mut []), 0);
    while a.poll_once().is_none() {
        // A request that was carried out and completed was not yet polled.
        std::thread::yield_now();
    }
    assert_eq!((a.post(send), a.post(send)), (0, 0), "both places, the unsignalled one's too");
    assert_eq!(a.post(send), libc::ENOMEM);
}

#[test]
fn requests_beyond_the_pairs_limits_are_refused_at_once() {
    let (a, b) = connected(Wish::default());
    let memory = [0u8; 65];
    let mut pieces = [piece(&memory[..1], 0); 5];
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut pieces)), libc::EINVAL);
    assert_eq!(b.receive(1, &mut pieces), libc::EINVAL);
    let mut long = [piece(&memory, 0)];
    let mut inline = request(1, IBV_WR_SEND, &mut long);
    inline.send_flags = IBV_SEND_INLINE;
    assert_eq!(a.post(inline), libc::EINVAL);
    assert_eq!(a.post(request(1, 5, &mut [])), libc::EINVAL, "no atomics");
    let library = library();
    let cap = ibv_qp_cap { max_inline_data: 257, ..Wish::default().cap };
    let null = std::ptr::null_mut();
    let mut init = ibv_qp_init_attr {
        qp_context: null,
        send_cq: a.queue,
        recv_cq: a.queue,
        srq: std::ptr::null_mut(),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: As the header says.
    unsafe {
        assert!((library.ibv_create_qp)(a.domain, &mut init).is_null());
        init.cap.max_inline_data = 0;
        init.send_cq = b.queue;
        assert!((library.ibv_create_qp)(a.domain, &mut init).is_null(), "a queue of another context");
    }
}

#[test]
fn a_pair_goes_through_its_states_in_order_and_posts_where_it_may() {
    let wish = Wish::default();
    let side = Side::new(wish);
    let post = || side.post(request(1, IBV_WR_SEND, &mut []));
    assert_eq!((side.state(), side.receive(1, &mut []), post()), (IBV_QPS_RESET, 22, 22));
    let (attributes, mask) = side.to_rtr(&wish, 99, side.gid(V2));
    assert_eq!(side.modify(attributes, mask), libc::EINVAL, "INIT comes first");
    side.init(&wish);
    assert_eq!((side.receive(1, &mut []), post()), (0, libc::EINVAL));
    assert_eq!(side.modify(attributes, mask & !IBV_QP_MIN_RNR_TIMER), libc::EINVAL);
    let mut local = attributes;
    local.ah_attr.is_global = 0;
    assert_eq!(side.modify(local, mask), libc::EINVAL, "RoCE is global");
    let mut large = attributes;
    large.path_mtu = 4;
    assert_eq!(side.modify(large, mask), libc::EINVAL, "the port has 1024");
    let mut deep = attributes;
    deep.max_dest_rd_atomic = 17;
    assert_eq!(side.modify(deep, mask), libc::EINVAL);
    assert_eq!((side.modify(attributes, mask), post()), (0, libc::EINVAL));
    side.ready_to_send(&wish);
    side.fail();
    assert_eq!((side.poll().status, side.state()), (IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR));
    let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    assert_eq!((side.modify(reset, IBV_QP_STATE), side.state()), (0, IBV_QPS_RESET));
}

#[test]
fn a_queue_that_overruns_takes_its_pairs_with_it() {
    let (a, b) = connected(Wish { entries: 1, ..Wish::default() });
    (0..3).for_each(|id| assert_eq!(b.receive(id, &mut []), 0));
    (0..2).for_each(|id| assert_eq!(a.post(request(id, IBV_WR_SEND, &mut [])), 0));
    assert_eq!(b.event().event_type, IBV_EVENT_CQ_ERR);
    let failed = b.event();
    // SAFETY: An event of a queue pair.
    let pair = unsafe { failed.element.qp };
    assert_eq!((failed.event_type, pair), (IBV_EVENT_QP_FATAL, b.pair));
    assert_eq!((b.poll().wr_id, b.poll_once().is_none()), (0, true), "what was there is not lost");
}

fn events(side: &Side) -> Option<*mut ibv_cq> {
    let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: As the header says.
    unsafe {
        if !readable((*side.channel).fd, Duration::ZERO) {
            return None;
        }
        assert_eq!((library().ibv_get_cq_event)(side.channel, &mut queue, &mut context), 0);
        (library().ibv_ack_cq_events)(queue, 1);
    }
    Some(queue)
}

#[test]
fn a_channel_tells_once_of_what_comes_after_it_was_armed() {
    let (a, b) = connected(Wish::default());
    let send = || {
        assert_eq!(b.receive(1, &mut []), 0);
        assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
        assert_eq!((a.poll().status, b.poll().status), (0, 0));
    };
    send();
    assert_eq!(events(&b), None, "not armed");
    b.notify(false);
    assert_eq!(events(&b), None, "of what is over it does not tell");
    send();
    send();
    assert_eq!((events(&b), events(&b)), (Some(b.queue), None));
}

#[test]
fn a_channel_may_tell_of_solicited_completions_and_failures_only() {
    let (a, b) = connected(Wish::default());
    b.notify(true);
    for (flags, expected) in [(0, None), (IBV_SEND_SOLICITED, Some(b.queue))] {
        assert_eq!(b.receive(1, &mut []), 0);
        let mut send = request(1, IBV_WR_SEND, &mut []);
        send.send_flags = flags;
        assert_eq!(a.post(send), 0);
        assert_eq!((a.poll().status, b.poll().status), (0, 0));
        assert_eq!(events(&b), expected);
    }
    b.notify(true);
    assert_eq!(b.receive(2, &mut []), 0);
    b.fail();
    assert_eq!((b.poll().status, events(&b)), (IBV_WC_WR_FLUSH_ERR, Some(b.queue)));
}

#[test]
fn a_channel_that_does_not_block_says_so() {
    let side = Side::new(Wish::default());
    let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: As the header says.
    unsafe {
        assert_eq!(libc::fcntl((*side.channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        assert_eq!((library().ibv_get_cq_event)(side.channel, &mut queue, &mut context), -1);
    }
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn a_destroyed_queue_waits_for_acknowledgements_and_takes_its_other_events_along() {
    let (a, b) = connected(Wish::default());
    b.notify(false);
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
    assert_eq!(b.poll().status, 0);
    // SAFETY: As the header says; the pointers are used while their objects live.
    unsafe {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!((library().ibv_get_cq_event)(b.channel, &mut queue, &mut context), 0);
        b.notify(false);
        assert_eq!(b.receive(2, &mut []), 0);
        assert_eq!(a.post(request(2, IBV_WR_SEND, &mut [])), 0);
        assert_eq!(b.poll().wr_id, 2);
        assert!(readable((*b.channel).fd, LIMIT), "a second event, which nobody gets");
        let late = queue as usize;
        let acknowledge = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            (library().ibv_ack_cq_events)(late as *mut ibv_cq, 1);
        });
        assert_eq!((library().ibv_destroy_qp)(b.pair), 0);
        assert_eq!((library().ibv_destroy_cq)(b.queue), 0);
        acknowledge.join().expect("it acknowledges");
        assert!(!readable((*b.channel).fd, Duration::ZERO), "of a queue that is gone it does not tell");
        assert_eq!((library().ibv_destroy_comp_channel)(b.channel), 0);
        assert_eq!((library().ibv_dealloc_pd)(b.domain), 0);
        assert_eq!((library().ibv_close_device)(b.context), 0);
        std::mem::forget(b);
    }
}
