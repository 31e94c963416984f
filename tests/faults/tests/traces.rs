//! Tests of the contents of a trace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::queues;
use super::script::{Script, hello, ready};
use crate::{Call, Event, Outcome, Trace, Who, Wrapped};
use udeck_sys::Deadline;
use udeck_via::mem::{MemHandle, RemoteBuffer};
use udeck_via::transport::{Device, Incoming, PostedBuffer, Queue, TransferStatus, ViEndpoint, Waiter};
use udeck_via::{NetAddress, Reliability};

fn connected(script: &Script, trace: Trace) -> (Box<dyn ViEndpoint>, Box<dyn Waiter>) {
    let device = Wrapped::new(script.device(), trace);
    let waiter = device.waiter().unwrap();
    let notifier = waiter.notifier();
    let queues = queues(&notifier, &notifier, 9);
    let to = NetAddress { host: vec![1], discriminator: vec![2] };
    (device.connect(&to, None, &hello(Reliability::Delivery), queues, Deadline::now()).unwrap().0, waiter)
}

#[test]
fn each_operation_is_a_line() {
    let script = Script::default();
    let (trace, log) = Trace::recording(100);
    let (mut endpoint, mut waiter) = connected(&script, trace);
    let to = RemoteBuffer { handle: MemHandle(0xab), offset: 2, len: 30 };
    endpoint.send(Some(5), b"head", b"body!").unwrap();
    endpoint.lend(None, b"", &[(64, 5), (128, 6)], PostedBuffer::Caller(3)).unwrap();
    endpoint.rdma_write(&[(64, 5)], to, None, PostedBuffer::Caller(4)).unwrap_err();
    endpoint.rdma_write(&[(64, 5)], to, Some(1), PostedBuffer::Caller(4)).unwrap();
    endpoint.rdma_read(&[(64, 5)], to, PostedBuffer::Caller(5)).unwrap();
    endpoint.fence();
    script.arrives_lent(b"lent");
    script.ended.lock().push_back((3, TransferStatus::Arrived));
    script.news.lock().push_back(ready(Queue::Receive));
    waiter.poll();
    endpoint.receive().unwrap();
    endpoint.poll_completion();
    // These calls find nothing.
    waiter.poll();
    endpoint.receive().unwrap();
    endpoint.poll_completion();
    waiter.park(Duration::from_millis(5));
    endpoint.unread().unwrap();
    endpoint.close(Some("broken"));
    endpoint.leave();
    let lines: Vec<_> = log.events().iter().map(|event| event.to_string()).collect();
    let said: Vec<_> = lines.iter().map(|line| line.trim_start().split_once(' ').unwrap().1).collect();
    assert_eq!(
        said,
        [
            "connection 0: connect Delivery, context 9 -> done",
            "connection 0: send 4 + 5 bytes, immediate 0x5 -> done",
            "connection 0: lend 11 bytes in 2, no. 3 -> done",
            "connection 0: write 5 bytes in 1 to 0x000000ab+2, no. 4 -> refused, protection",
            "connection 0: write 5 bytes in 1 to 0x000000ab+2, immediate 0x1, no. 4 -> over, Unread",
            "connection 0: read 5 bytes in 1 from 0x000000ab+2, no. 5 -> done",
            "connection 0: fence -> done",
            "waiter 0: poll -> receive queue of context 9",
            "connection 0: receive -> lent 4 + 4 bytes, immediate 0x7",
            "connection 0: ended -> no. 3 Arrived",
            "waiter 0: park 5ms -> done",
            "connection 0: unread -> 12 messages",
            "connection 0: break -> done",
            "connection 0: leave -> done",
        ]
    );
    assert!(log.events().is_sorted_by_key(|event| event.at));
}

#[test]
fn a_log_keeps_the_last_events() {
    let script = Script::default();
    let (trace, log) = Trace::recording(3);
    let (mut endpoint, _waiter) = connected(&script, trace);
    (0..5).for_each(|number| endpoint.send(Some(number), b"", b"").unwrap());
    let kept: Vec<_> = log.events().into_iter().map(|event| event.call).collect();
    assert_eq!(kept, [2, 3, 4].map(|number| Call::Send { immediate: Some(number), head: 0, body: 0 }));
    assert_eq!(log.forgotten(), 3, "the connection and two posts");
    let text = log.to_string();
    assert!(text.starts_with("(3 older events are forgotten)\n") && text.lines().count() == 4, "{text}");
}

#[test]
fn connections_and_waiters_are_told_apart() {
    let script = Script::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let device = Wrapped::new(script.device(), Trace::new(move |event: Event| sink.lock().push(event)));
    let mut waiters = [device.waiter().unwrap(), device.waiter().unwrap()];
    let notifier = waiters[0].notifier();
    let queues = queues(&notifier, &notifier, 9);
    let to = NetAddress { host: vec![1], discriminator: vec![2] };
    let mut endpoints = [0, 1].map(|_| {
        device.connect(&to, None, &hello(Reliability::Delivery), queues, Deadline::now()).unwrap().0
    });
    seen.lock().clear();
    endpoints[1].request_send_notify();
    endpoints[0].request_send_notify();
    waiters[1].park(Duration::ZERO);
    let who: Vec<_> = seen.lock().iter().map(|event| event.who).collect();
    assert_eq!(who, [Who::Connection(1), Who::Connection(0), Who::Waiter(1)]);
    assert!(seen.lock().iter().all(|event| event.outcome == Outcome::Done));
}

#[test]
fn accepted_connections_are_wrapped_like_requested_ones() {
    let script = Script::default();
    let inner = script.device();
    let (trace, log) = Trace::recording(10);
    let device = Wrapped::new(inner.clone(), trace);
    let notifier = device.waiter().unwrap().notifier();
    let accepted = Arc::new(Mutex::new(None));
    let place = accepted.clone();
    let accept = move |incoming: Box<dyn Incoming>| {
        let queues = queues(&notifier, &notifier, 4);
        *place.lock() = Some(incoming.accept(&hello(Reliability::Reception), queues).unwrap());
    };
    device.listen(b"here", Box::new(accept)).unwrap();
    inner.request();
    accepted.lock().as_mut().unwrap().request_send_notify();
    let calls: Vec<_> = log.events().into_iter().map(|event| event.call).collect();
    assert_eq!(calls, [Call::Connect { reliability: Reliability::Reception, context: 4 }, Call::WantRoom]);
}

#[test]
fn printed_events_are_lines_and_a_full_disk_stops_nothing() {
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock();
            if written.len() > 200 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            written.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (script, paper) = (Script::default(), Paper::default());
    let (mut endpoint, _waiter) = connected(&script, Trace::printing(paper.clone()));
    endpoint.request_send_notify();
    let text = String::from_utf8(paper.0.lock().clone()).unwrap();
    assert!(text.ends_with(" connection 0: want room -> done\n") && text.lines().count() == 2, "{text}");
    (0..100).for_each(|_| endpoint.request_send_notify());
    assert_eq!(script.take_calls().iter().filter(|call| *call == "request_send_notify").count(), 101);
}
