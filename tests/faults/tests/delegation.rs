//! Tests of delegation: calls that a wrapper does not mean to change reach the inner device, and its answers
//! reach the caller. Each test makes all calls twice, on the bare device and on a wrapped one, and compares.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::queues;
use super::script::{Script, hello, ready};
use crate::{BrokenPromises, Disguise, Fault, Interpose, PermittedFaults, Trace, Wrapped};
use udeck_sys::Deadline;
use udeck_via::mem::{MemHandle, Ptag, RemoteBuffer, Rights};
use udeck_via::transport::{
    Device, Incoming, PostedBuffer, Queue, Registration, TransferStatus, ViEndpoint, Waiter,
};
use udeck_via::{NetAddress, NicAttributes, RejectKind, Rejection, Reliability};

fn interposers() -> [(&'static str, Box<dyn Interpose>); 4] {
    [
        ("disguise", Box::new(Disguise::named("scripted"))),
        ("trace", Box::new(Trace::new(|_| {}))),
        ("luck", Box::new(Fault::honest(PermittedFaults::default(), 1))),
        ("lies", Box::new(Fault::lying(BrokenPromises::default(), 1))),
    ]
}

// SAFETY: as the one in the box.
unsafe impl Interpose for Box<dyn Interpose> {
    fn endpoint(
        &self,
        endpoint: Box<dyn ViEndpoint>,
        connection: &crate::Connection<'_>,
    ) -> Box<dyn ViEndpoint> {
        (**self).endpoint(endpoint, connection)
    }
    fn waiter(&self, waiter: Box<dyn Waiter>, number: u64) -> Box<dyn Waiter> {
        (**self).waiter(waiter, number)
    }
    fn revokes(&self) -> udeck_via::Result {
        (**self).revokes()
    }
    fn registration(
        &self,
        bytes: usize,
        register: &dyn Fn() -> udeck_via::Result<Box<dyn Registration>>,
    ) -> udeck_via::Result<Box<dyn Registration>> {
        (**self).registration(bytes, register)
    }
    fn attributes(&self, inner: NicAttributes) -> NicAttributes {
        (**self).attributes(inner)
    }
    fn reaches(&self, to: &NetAddress) -> udeck_via::Result {
        (**self).reaches(to)
    }
}

/// Makes the calls of `ask` on a bare device and on wrapped ones; the inner device must see the same calls and give
/// the same answers.
fn same(ask: impl Fn(&dyn Device, &Script, &dyn Fn()) -> Vec<String>) {
    let with = |interpose: Option<Box<dyn Interpose>>| {
        let script = Script::default();
        let inner = script.device();
        let device: Arc<dyn Device> = match interpose {
            Some(interpose) => Wrapped::new(inner.clone(), interpose),
            None => inner.clone(),
        };
        let answers = ask(&*device, &script, &|| inner.request());
        (answers, script.take_calls())
    };
    let bare = with(None);
    assert!(!bare.1.is_empty());
    for (name, interpose) in interposers() {
        assert_eq!(with(Some(interpose)), bare, "{name}");
    }
}

fn address() -> NetAddress {
    NetAddress { host: vec![1], discriminator: vec![2, 3] }
}

fn connected(device: &dyn Device) -> (Box<dyn ViEndpoint>, Box<dyn Waiter>) {
    let waiter = device.waiter().unwrap();
    let notifier = waiter.notifier();
    let queues = queues(&notifier, &notifier, 9);
    let hello = hello(Reliability::Reception);
    (device.connect(&address(), None, &hello, queues, Deadline::now()).unwrap().0, waiter)
}

#[test]
fn a_device() {
    same(|device, _, _| {
        let waiter = device.waiter().unwrap();
        let notifier = waiter.notifier();
        let queues = queues(&notifier, &notifier, 9);
        let connected =
            device.connect(&address(), None, &hello(Reliability::Delivery), queues, Deadline::now());
        let answers = vec![
            format!("{:?}", device.attributes()),
            format!("{:?} {:?}", device.outbox(), device.landing()),
            format!("{:?}", device.expose(1, 2, Ptag(3))),
            format!("{:?}", device.expose_for(1, 2, Ptag(3), Rights::WRITE)),
            format!("{:?}", device.expose_for(1, 2, Ptag(3), Rights::BOTH)),
            format!("{:?}", device.expose_outbox(1, 2, Ptag(3))),
            format!("{:?}", device.revoke(MemHandle(8), Deadline::now())),
            format!("{:?}", device.listen(b"here", Box::new(|_| {}))),
            format!("{:?}", connected.unwrap().1),
            device.bytes_copied().to_string(),
            device.messages_dropped().to_string(),
            format!("{:?}", device.failure()),
        ];
        assert!(device.register(NonNull::from(&mut [0u8; 5])).is_err());
        device.count_copied(77);
        device.revoke_later(MemHandle(8), Box::new(()));
        device.unlisten(b"here");
        device.reclaim();
        device.reclaim_recent();
        answers
    });
}

#[test]
fn a_request() {
    same(|device, _, request| {
        let waiter = device.waiter().unwrap();
        let notifier = waiter.notifier();
        let inbox = Arc::new(Mutex::new(Vec::new()));
        let came = inbox.clone();
        device.listen(b"here", Box::new(move |incoming| came.lock().push(incoming))).unwrap();
        let next = || -> Box<dyn Incoming> {
            request();
            inbox.lock().pop().unwrap()
        };
        let queues = queues(&notifier, &notifier, 5);
        let answer = format!("{:?}", next().hello());
        let mut endpoint = next().accept(&hello(Reliability::Delivery), queues).unwrap();
        endpoint.send(None, b"a", b"b").unwrap();
        next().reject(Rejection::new(RejectKind::Refused, "not today"));
        next().reject(RejectKind::Reliability.into());
        vec![answer]
    });
}

#[test]
fn a_port() {
    same(|device, script, _| {
        let (mut endpoint, _waiter) = connected(device);
        script.arrives_lent(b"lent");
        script.arrives_inline(b"inline");
        script.ended.lock().push_back((3, TransferStatus::Unread));
        let to = RemoteBuffer { handle: MemHandle(1), offset: 2, len: 30 };
        let segments = [(64, 5), (128, 6)];
        let mut answers = vec![
            format!("{:?}", endpoint.send(Some(1), b"head", b"body")),
            format!("{:?}", endpoint.lend(Some(2), b"head", &segments, PostedBuffer::Caller(3))),
            format!("{:?}", endpoint.rdma_write(&segments, to, None, PostedBuffer::Caller(4))),
            format!("{:?}", endpoint.rdma_write(&segments, to, Some(5), PostedBuffer::Caller(6))),
            format!("{:?}", endpoint.rdma_read(&segments, to, PostedBuffer::Caller(9))),
        ];
        for _ in 0..2 {
            answers.push(format!("{:?}", endpoint.receive()));
            answers.push(format!("{:?}", endpoint.receipt()));
        }
        answers.push(format!("{:?}", endpoint.receive().map(|none| none.is_none())));
        answers.extend((0..2).map(|_| format!("{:?}", endpoint.poll_completion())));
        answers.push(format!("{:?}", endpoint.keep(7, Box::new(8)).unwrap_err().downcast::<i32>()));
        endpoint.request_send_notify();
        endpoint.fence();
        answers.push(format!("{:?}", endpoint.unread()));
        endpoint.close(Some("broken"));
        endpoint.leave();
        answers
    });
}

#[test]
fn a_waiter() {
    same(|device, script, _| {
        let mut waiter = device.waiter().unwrap();
        script.news.lock().extend([ready(Queue::Send), ready(Queue::Receive)]);
        let answers = (0..3).map(|_| format!("{:?}", waiter.poll())).collect();
        waiter.park(Duration::from_millis(5));
        answers
    });
}
