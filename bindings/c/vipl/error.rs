//! Errors: the codes of calls, and errors that no call returns.

use std::ffi::c_void;

use udeck::via::{Error, Reliability};

use super::handle::Handle;
use super::types::{self, Descriptor, ErrorCode, ErrorDescriptor, ErrorHandler, ResourceCode, VipReturn};

/// Returns the code of a call for an error of the library's.
#[cold]
pub(super) fn code(error: &Error) -> VipReturn {
    match error {
        Error::InvalidState { .. } => VipReturn::INVALID_STATE,
        Error::InvalidPtag => VipReturn::INVALID_PTAG,
        Error::InvalidReliability => VipReturn::INVALID_RELIABILITY_LEVEL,
        Error::Timeout { .. } => VipReturn::TIMEOUT,
        Error::NoMatch(_) => VipReturn::NO_MATCH,
        Error::Rejected(_) => VipReturn::REJECT,
        Error::NameService(_) => VipReturn::ERROR_NAMESERVICE,
        Error::InvalidParameter(_) => VipReturn::INVALID_PARAMETER,
        _ => VipReturn::ERROR_RESOURCE,
    }
}

/// Writes the text of an error, which C gets as a number only.
pub(super) fn tell(call: &str, error: &dyn std::fmt::Display) {
    udeck::via::say!("{call}: {error}");
}

pub(super) fn level(reliability: u16) -> Option<Reliability> {
    match reliability {
        types::UNRELIABLE => Some(Reliability::Unreliable),
        types::RELIABLE_DELIVERY => Some(Reliability::Delivery),
        types::RELIABLE_RECEPTION => Some(Reliability::Reception),
        _ => None,
    }
}

/// The handler of `VipErrorCallback`.
#[derive(Clone, Copy)]
pub(super) struct Callback {
    pub handler: ErrorHandler,
    pub context: *mut c_void,
}

// SAFETY: the program's function is to be called on a thread of the library, and its context handed to it: VIPL says so.
unsafe impl Send for Callback {}

/// An error that no call returns.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub nic: Handle,
    pub vi: Handle,
    pub op_code: u32,
    pub resource: ResourceCode,
    pub error: ErrorCode,
    pub why: String,
}

impl Event {
    /// Calls the handler; without one, writes the error to standard error.
    pub fn deliver(self, callback: Option<Callback>) {
        let Some(Callback { handler, context }) = callback else {
            let name = name(self.error);
            udeck::via::say!("{name}: {} (VipErrorCallback takes this in place of standard error)", self.why);
            return;
        };
        let mut descriptor = ErrorDescriptor {
            nic: self.nic,
            vi: self.vi,
            cq: Handle::NULL,
            descriptor: std::ptr::null_mut::<Descriptor>(),
            op_code: self.op_code.into(),
            resource: self.resource,
            error: self.error,
        };
        handler(context, &mut descriptor);
    }
}

fn name(error: ErrorCode) -> &'static str {
    match error {
        ErrorCode::POST_DESC => "VIP_ERROR_POST_DESC",
        ErrorCode::CONN_LOST => "VIP_ERROR_CONN_LOST",
        ErrorCode::RECVQ_EMPTY => "VIP_ERROR_RECVQ_EMPTY",
        ErrorCode::RDMAW_PROT => "VIP_ERROR_RDMAW_PROT",
        ErrorCode::RDMAR_PROT => "VIP_ERROR_RDMAR_PROT",
        ErrorCode::COMP_PROT => "VIP_ERROR_COMP_PROT",
        ErrorCode::RDMA_TRANSPORT => "VIP_ERROR_RDMA_TRANSPORT",
        _ => "VIP_ERROR_CATASTROPHIC",
    }
}
