//! Reports of errors that no call of the program returns (VIA: `VipErrorCallback`): for example, a connection breaks while
//! its program does something else.
//!
//! The finder of such an error gives it to the connection's [`Reporter`]: a transport on its own thread, or the VI in the
//! call in which it found it. The program's callback runs on a thread of its own, `on-via-error`, which sleeps until there is
//! an event. So a report may be made under any lock and never waits, and the callback may block, panic or call the library
//! without holding up a transport. Without a callback there is no such thread, and a report is dropped.
//!
//! Bound: at most one event per connection waits for the callback.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_sys::thread::{self, Callback};

use crate::connection_quota::ConnectionShare;
use crate::error::{Error, Result};
use crate::withdrawal::Withdrawal;

/// An error, as [`crate::Nic::on_error`] reports it (VIA: `VIP_ERROR_DESCRIPTOR`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ErrorEvent {
    /// [`crate::ViAttributes::context`] of the VI, as it was when the connection was made.
    pub context: u64,
    /// Kind of object with the error.
    pub resource: Resource,
    /// Code of the error.
    pub code: ErrorCode,
    /// The error in words.
    pub why: String,
}

/// Kind of object with an error (VIA: `VIP_RESOURCE_CODE`). Only [`Resource::Vi`] is reported today; see [`ErrorCode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// The NIC.
    Nic,
    /// A VI, by its context.
    Vi,
    /// A completion queue.
    Cq,
    /// A descriptor.
    Descriptor,
}

/// Code of an error (VIA: `VIP_ERROR_CODE`).
///
/// | code | raised when |
/// |---|---|
/// | [`ConnectionLost`](Self::ConnectionLost) | the peer died, broke the protocol, or ended the connection by an error; a reliable connection missed a message; a send was refused at the other end |
/// | [`ReceiveQueueEmpty`](Self::ReceiveQueueEmpty) | on a reliable VI, a message or immediate data found no receive descriptor, or one too short; when the program takes its arrivals, which is when a missing descriptor is judged |
/// | [`PostDescriptor`](Self::PostDescriptor) | never: `post_send` and `post_receive` refuse such a descriptor and give it back |
/// | [`ViOverrun`](Self::ViOverrun) | never: a post to a full queue is refused with [`Error::Full`] |
/// | [`RdmaWriteProtection`](Self::RdmaWriteProtection), [`RdmaReadProtection`](Self::RdmaReadProtection) | never: the side that asks is refused ([`Error::RdmaProtection`], or the send's status) before the target's memory is touched, so the target has nothing to tell |
/// | [`RdmaWriteData`](Self::RdmaWriteData) | never: bytes are copied inside one machine, there is nothing that could corrupt them unseen |
/// | [`RdmaWriteAbort`](Self::RdmaWriteAbort) | never: a peer that dies in the middle of a write is a lost connection |
/// | [`RdmaTransport`](Self::RdmaTransport) | never: a read that broke off reports that by its status |
/// | [`CompletionProtection`](Self::CompletionProtection) | never: completions are returned by value, not written to memory that may be protected |
/// | [`Catastrophic`](Self::Catastrophic) | never: there is no hardware that could fail apart from its program |
///
/// An orderly end, from either side, is no error, and an unreliable VI drops a message without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// A descriptor could not be posted.
    PostDescriptor,
    /// The connection broke.
    ConnectionLost,
    /// A message found no receive descriptor, or one too short, and broke its connection.
    ReceiveQueueEmpty,
    /// More descriptors were posted to a VI than it holds.
    ViOverrun,
    /// A peer's RDMA write was not allowed.
    RdmaWriteProtection,
    /// The data of a peer's RDMA write were corrupted.
    RdmaWriteData,
    /// A peer's RDMA write broke off.
    RdmaWriteAbort,
    /// A peer's RDMA read was not allowed.
    RdmaReadProtection,
    /// A completion could not be written.
    CompletionProtection,
    /// An RDMA read broke off.
    RdmaTransport,
    /// The NIC failed.
    Catastrophic,
}

/// A NIC's callback, at the other end of a channel.
#[derive(Debug, Default)]
pub(crate) struct ErrorSink(Mutex<Option<Sender<ErrorEvent>>>);

impl ErrorSink {
    /// A reporter for a connection that is being made, of a VI with this context.
    pub(crate) fn reporter(self: &Arc<Self>, context: u64) -> Arc<Reporter> {
        self.reporter_of(context, None)
    }

    /// The same as [`ErrorSink::reporter`], for a connection that a peer has asked for.
    pub(crate) fn reporter_of(
        self: &Arc<Self>,
        context: u64,
        share: Option<ConnectionShare>,
    ) -> Arc<Reporter> {
        self.make(context, share, None)
    }

    /// The same as [`ErrorSink::reporter`], for a connection that this side asks for, unless that is withdrawn.
    pub(crate) fn reporter_unless(self: &Arc<Self>, context: u64, withdrawal: &Withdrawal) -> Arc<Reporter> {
        self.make(context, None, Some(withdrawal.clone()))
    }

    fn make(
        self: &Arc<Self>,
        context: u64,
        share: Option<ConnectionShare>,
        withdrawal: Option<Withdrawal>,
    ) -> Arc<Reporter> {
        let stage = Mutex::new(ConnectionStage::Making);
        Arc::new(Reporter { error_sink: Arc::downgrade(self), context, stage, withdrawal, _share: share })
    }

    pub(crate) fn set(&self, mut callback: impl FnMut(&ErrorEvent) + Send + 'static) -> Result {
        let (sender, events) = mpsc::channel::<ErrorEvent>();
        // The loop ends when the sender is dropped: with the NIC's last object, or with the next callback.
        let serve = move || {
            let guard = Callback::new("the error callback");
            for event in events {
                guard.call(|| callback(&event));
            }
        };
        // A panic needs no action: further events then find no receiver.
        thread::spawn_handlers("via-error", serve, |_| {})
            .map_err(|error| Error::os("starting the thread of an error callback", error))?;
        *self.0.lock() = Some(sender);
        Ok(())
    }

    /// Removes the callback.
    pub(crate) fn clear(&self) {
        self.0.lock().take();
    }

    fn raise(&self, event: ErrorEvent) {
        if let Some(events) = &*self.0.lock() {
            // The thread lives as long as the sender, unless dropping the callback has panicked.
            let _ = events.send(event);
        }
    }
}

/// Reports once to the program how one connection ended, if it ended by an error. It is made with the connection, and held by
/// its VI and by the transport ([`crate::transport::Queues::reporter`]).
#[derive(Debug)]
pub struct Reporter {
    /// The NIC's callback. It is gone with the NIC's last object: there is no receiver then.
    error_sink: Weak<ErrorSink>,
    context: u64,
    stage: Mutex<ConnectionStage>,
    /// Withdrawal by the program that asks for the connection.
    withdrawal: Option<Withdrawal>,
    /// The connection's share of its peer's quota, until the reporter is dropped.
    _share: Option<ConnectionShare>,
}

#[derive(Debug)]
enum ConnectionStage {
    /// The program does not know of the connection yet.
    Making,
    /// Lost before the program knew of it.
    LostEarly(String),
    /// The VI is connected.
    Standing,
    /// The connection ended, and the error was reported if there was one.
    Over,
}

impl Reporter {
    /// A reporter without a receiver, for programs that drive an endpoint without a VI.
    pub fn nobody() -> Arc<Self> {
        let stage = Mutex::new(ConnectionStage::Making);
        Arc::new(Reporter { error_sink: Weak::new(), context: 0, stage, withdrawal: None, _share: None })
    }

    pub(crate) fn withdrawal(&self) -> Option<Withdrawal> {
        self.withdrawal.clone()
    }

    /// Reports the loss of the connection, with the cause in words. Transports call it. Does not block, may be called under
    /// any lock and more than once; the first call counts. Not for an orderly end.
    pub fn lost(&self, why: &str) {
        self.failed(ErrorCode::ConnectionLost, why);
    }

    /// Notes that the VI has this connection: its end is the program's concern from now on.
    pub(crate) fn stands(&self) {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, ConnectionStage::Standing) {
            ConnectionStage::LostEarly(why) => {
                *stage = ConnectionStage::Over;
                self.raise(ErrorCode::ConnectionLost, why);
            }
            ConnectionStage::Making | ConnectionStage::Standing => {}
            ConnectionStage::Over => *stage = ConnectionStage::Over,
        }
    }

    /// Reports that the connection ended by an error.
    pub(crate) fn failed(&self, code: ErrorCode, why: &str) {
        let mut stage = self.stage.lock();
        match *stage {
            ConnectionStage::Making => *stage = ConnectionStage::LostEarly(why.to_owned()),
            ConnectionStage::Standing => {
                *stage = ConnectionStage::Over;
                self.raise(code, why.to_owned());
            }
            ConnectionStage::LostEarly(_) | ConnectionStage::Over => {}
        }
    }

    /// Notes that the connection ended in order, from either side: later errors are not reported.
    pub(crate) fn ended(&self) {
        *self.stage.lock() = ConnectionStage::Over;
    }

    fn raise(&self, code: ErrorCode, why: String) {
        if let Some(error_sink) = self.error_sink.upgrade() {
            error_sink.raise(ErrorEvent { context: self.context, resource: Resource::Vi, code, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;

    fn error_sink() -> (Arc<ErrorSink>, Receiver<ErrorEvent>) {
        let (error_sink, (tell, events)) = (Arc::<ErrorSink>::default(), mpsc::channel());
        error_sink.set(move |event| drop(tell.send(event.clone()))).unwrap();
        (error_sink, events)
    }

    /// Returns all events that were reported, after which there can be no more.
    fn told(error_sink: Arc<ErrorSink>, events: Receiver<ErrorEvent>) -> Vec<(u64, ErrorCode, String)> {
        drop(error_sink);
        events.into_iter().map(|event| (event.context, event.code, event.why)).collect()
    }

    #[test]
    fn the_first_error_is_told_and_no_other() {
        let (error_sink, events) = error_sink();
        for (context, code) in [(1, ErrorCode::ReceiveQueueEmpty), (2, ErrorCode::ConnectionLost)] {
            let reporter = error_sink.reporter(context);
            reporter.stands();
            reporter.failed(code, "first");
            reporter.lost("second");
            reporter.failed(ErrorCode::Catastrophic, "third");
        }
        let expected = [(1, ErrorCode::ReceiveQueueEmpty, "first"), (2, ErrorCode::ConnectionLost, "first")];
        assert_eq!(
            told(error_sink, events),
            expected.map(|(context, code, why)| (context, code, why.to_owned()))
        );
    }

    #[test]
    fn an_early_loss_is_told_when_the_program_knows_of_the_connection() {
        let (error_sink, events) = error_sink();
        let [known, unknown] = [1, 2].map(|context| error_sink.reporter(context));
        known.lost("early");
        unknown.lost("early");
        known.lost("late");
        known.stands();
        known.lost("later");
        drop((known, unknown));
        assert_eq!(told(error_sink, events), [(1, ErrorCode::ConnectionLost, "early".to_owned())]);
    }

    #[test]
    fn after_an_orderly_end_nothing_is_told() {
        let (error_sink, events) = error_sink();
        let reporter = error_sink.reporter(1);
        reporter.stands();
        reporter.ended();
        reporter.lost("too late");
        drop(reporter);
        assert!(told(error_sink, events).is_empty());
    }
}
