//! Tests that need a process of their own: for other devices, another engine, and a count of leftovers.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use std::process::Command;
use udeck_mock_verbs::StandinCounters;
use udeck_mock_verbs::abi::*;

/// Runs the ignored test of this name in a process of its own, with these variables.
fn run(test: &str, variables: &[(&str, &str)]) {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--ignored", "--test-threads=1"]);
    let output = command.envs(variables.iter().copied()).output().expect("a process");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{words}");
}

fn counters() -> StandinCounters {
    let mut counters = StandinCounters::default();
    // SAFETY: A structure of ours.
    unsafe { (library().standin_counters)(&mut counters) };
    counters
}

fn inject(event: u32, number: u32) {
    // SAFETY: Numbers only.
    assert_eq!(unsafe { (library().standin_inject)(event, number) }, 0);
}

#[test]
fn with_other_devices() {
    run("child_other_devices", &[("STANDIN_DEVICES", "one,down:port=down,ib:link=infiniband:mtu=4096")]);
}

#[test]
#[ignore = "run by the test above"]
fn child_other_devices() {
    let port = |name| {
        let mut port = ibv_port_attr::default();
        let context = open(name);
        // SAFETY: As the header says.
        unsafe {
            assert_eq!((library().ibv_query_port)(context, 1, &mut port), 0);
            assert_eq!((library().ibv_close_device)(context), 0);
        }
        (port.state, port.link_layer, port.lid, port.active_mtu)
    };
    assert_eq!(port("one"), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET, 0, 3));
    assert_eq!(port("down"), (IBV_PORT_DOWN, IBV_LINK_LAYER_ETHERNET, 0, 3));
    assert_eq!(port("ib"), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 3, 5));
    // Over InfiniBand a path is a LID.
    let wish = Wish::default();
    let (a, b) = (Side::on("ib", wish), Side::on("ib", wish));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.init(&wish);
        let (mut attributes, mask) = side.to_rtr(&wish, peer.number(), ibv_gid::default());
        attributes.ah_attr = ibv_ah_attr { dlid: 3, port_num: 1, ..Default::default() };
        assert_eq!(side.modify(attributes, mask), 0);
        side.ready_to_send(&wish);
    }
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
    assert_eq!((a.poll().status, b.poll().status), (0, 0));
}

#[test]
fn without_devices() {
    run("child_without_devices", &[("STANDIN_DEVICES", "none")]);
    run("child_without_kernel", &[("STANDIN_DEVICES", "enosys")]);
}

#[test]
#[ignore = "run by the test above"]
fn child_without_devices() {
    let mut count = 7;
    // SAFETY: As the header says.
    unsafe {
        let list = (library().ibv_get_device_list)(&mut count);
        assert!(!list.is_null() && (*list).is_null());
        (library().ibv_free_device_list)(list);
    }
    assert_eq!(count, 0);
}

#[test]
#[ignore = "run by the test above"]
fn child_without_kernel() {
    // SAFETY: As the header says.
    assert!(unsafe { (library().ibv_get_device_list)(std::ptr::null_mut()) }.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS));
}

#[test]
fn with_an_inline_engine() {
    run("child_inline_engine", &[("STANDIN_ENGINE", "inline")]);
}

#[test]
#[ignore = "run by the test above"]
fn child_inline_engine() {
    let (a, b) = connected(Wish { rnr_retries: 1, ..Wish::default() });
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
    let at_once = (a.poll_once().map(|wc| wc.status), b.poll_once().map(|wc| wc.status));
    assert_eq!(at_once, (Some(IBV_WC_SUCCESS), Some(IBV_WC_SUCCESS)));
    assert_eq!(a.post(request(2, IBV_WR_SEND, &mut [])), 0);
    assert_eq!(a.poll().status, IBV_WC_RNR_RETRY_EXC_ERR, "time passes nevertheless");
}

#[test]
fn with_silent_channels() {
    run("child_silent_channels", &[("STANDIN_ENGINE", "inline"), ("STANDIN_CHANNELS", "silent")]);
}

#[test]
#[ignore = "run by the test above"]
fn child_silent_channels() {
    let (a, b) = connected(Wish::default());
    b.notify(false);
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
    assert_eq!((a.poll().status, b.poll().status), (0, 0));
    // SAFETY: The channel is there.
    assert!(!readable(unsafe { (*b.channel).fd }, std::time::Duration::ZERO));
}

#[test]
fn with_little_memory() {
    run("child_little_memory", &[("STANDIN_MEMLOCK", "100")]);
}

#[test]
#[ignore = "run by the test above"]
fn child_little_memory() {
    let mut side = Side::new(Wish::default());
    let mut memory = [0u8; 101];
    // SAFETY: As the header says.
    let region = unsafe { (library().ibv_reg_mr)(side.domain, memory.as_mut_ptr().cast(), 101, 0) };
    assert!(region.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
    side.register(&mut memory[..100], 0);
    assert_eq!(counters().registered, 100);
}

#[test]
fn strokes_of_fate_and_what_is_left() {
    run("child_fate", &[]);
}

#[test]
#[ignore = "run by the test above"]
fn child_fate() {
    let wish = Wish { timeout: 0, ..Wish::default() };
    let (mut a, b) = connected(wish);
    let now = counters();
    assert_eq!((now.contexts, now.domains, now.queues, now.pairs), (2, 2, 2, 2));
    a.register(&mut [0; 8], 0);
    inject(IBV_EVENT_PORT_ERR, 0);
    assert_eq!((a.event().event_type, b.event().event_type), (IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ERR));
    assert_eq!(b.receive(1, &mut []), 0);
    assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [])), 0);
    std::thread::sleep(std::time::Duration::from_millis(10));
    assert!(a.poll_once().is_none(), "nothing gets through");
    inject(IBV_EVENT_PORT_ACTIVE, 0);
    assert_eq!((a.poll().status, b.poll().status), (0, 0));
    assert_eq!((a.event().event_type, b.event().event_type), (IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE));
    inject(IBV_EVENT_QP_FATAL, a.number());
    assert_eq!((a.event().event_type, a.state()), (IBV_EVENT_QP_FATAL, IBV_QPS_ERR));
    inject(IBV_EVENT_DEVICE_FATAL, 0);
    assert_eq!(b.event().event_type, IBV_EVENT_DEVICE_FATAL);
    assert_eq!(b.post(request(2, IBV_WR_SEND, &mut [])), libc::EIO);
    assert_eq!(counters().regions, 1);
    drop((a, b));
    let left = counters();
    let nothing = StandinCounters { requests: left.requests, bytes: left.bytes, ..Default::default() };
    assert_eq!(left, nothing);
}
