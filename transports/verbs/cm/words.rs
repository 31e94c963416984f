//! Texts for the events of rdma_cm.

use std::io;

use super::objects::EventNotice;
use crate::ffi::cm::cm_event;

/// Describes an event that reports a failure; `None` for other events.
pub fn failure(event: &EventNotice) -> Option<String> {
    let why = detail(event.kind, event.status);
    Some(match event.kind {
        cm_event::ADDR_ERROR => format!("no RDMA device leads to that address{why}"),
        cm_event::ROUTE_ERROR => format!("there is no route to it{why}"),
        cm_event::CONNECT_ERROR => format!("the connection could not be made{why}"),
        cm_event::UNREACHABLE => {
            format!("it does not answer: its host is down, or the network in between{why}")
        }
        cm_event::REJECTED => format!("it refused{why}"),
        cm_event::DISCONNECTED => "it hung up".to_owned(),
        cm_event::DEVICE_REMOVAL => "the device was removed".to_owned(),
        cm_event::TIMEWAIT_EXIT => "the connection is over".to_owned(),
        _ if event.status != 0 => format!("it failed{why}"),
        _ => return None,
    })
}

/// Describes the usual reasons of rejections on InfiniBand (InfiniBand Architecture 1, 12.6.7.2), and errors of the
/// kernel.
fn detail(kind: u32, status: i32) -> String {
    match (kind, status) {
        (_, 0) => String::new(),
        (cm_event::REJECTED, 8) => ": nobody listens there (any more)".to_owned(),
        (cm_event::REJECTED, 28) => ": its process does not know this connection (any more)".to_owned(),
        (cm_event::REJECTED, 1..) => format!(": reason {status}"),
        (_, ..0) => format!(": {}", io::Error::from_raw_os_error(status.saturating_neg())),
        _ => format!(": status {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_event_has_words_and_no_good_one() {
        let event = |kind, status| failure(&EventNotice { name: 1, kind, status, request: None });
        for (kind, status, words) in [
            (cm_event::ADDR_ERROR, -libc::ENODEV, "No such device"),
            (cm_event::ROUTE_ERROR, -libc::ETIMEDOUT, "timed out"),
            (cm_event::CONNECT_ERROR, -libc::EINVAL, "Invalid argument"),
            (cm_event::UNREACHABLE, -libc::ETIMEDOUT, "does not answer"),
            (cm_event::REJECTED, 8, "nobody listens"),
            (cm_event::REJECTED, 28, "does not know this connection"),
            (cm_event::REJECTED, 5, "reason 5"),
            (cm_event::REJECTED, -libc::ECONNREFUSED, "refused"),
            (cm_event::DISCONNECTED, 0, "hung up"),
            (cm_event::DEVICE_REMOVAL, 0, "removed"),
            (cm_event::TIMEWAIT_EXIT, 0, "over"),
            (cm_event::ESTABLISHED, -libc::EIO, "failed"),
        ] {
            let said = event(kind, status).expect("words");
            assert!(said.contains(words), "{kind}: {said}");
        }
        for kind in [cm_event::ADDR_RESOLVED, cm_event::ROUTE_RESOLVED, cm_event::CONNECT_RESPONSE] {
            assert_eq!(event(kind, 0), None);
        }
    }
}
