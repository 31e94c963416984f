//! Tests: a wrapped device does what the inner one does, and each wrapper adds its effects.

mod delegation;
mod faults;
#[path = "../../crates/via/tests/script/mod.rs"]
mod script;
mod traces;

use std::sync::{Arc, LazyLock};

use udeck_via::ServiceLevel;
use udeck_via::transport::{Notifier, Queues, Reporter};

/// Queues of a connection at these waiters; nobody is told of its end.
fn queues<'a>(send: &'a Arc<dyn Notifier>, receive: &'a Arc<dyn Notifier>, context: u64) -> Queues<'a> {
    static NOBODY: LazyLock<Arc<Reporter>> = LazyLock::new(Reporter::nobody);
    Queues { send, receive, context, level: ServiceLevel::default(), reporter: &NOBODY }
}
