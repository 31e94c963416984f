//! What is wrapped does what the inner device does; and what the wrappers add.

mod delegation;
mod faults;
#[path = "../../crates/via/tests/script/mod.rs"]
mod script;
mod traces;

use std::sync::{Arc, LazyLock};

use udeck_via::ServiceLevel;
use udeck_via::transport::{Notifier, Queues, Reporter};

/// A connection's queues at these waiters; nobody is told of its end.
fn queues<'a>(send: &'a Arc<dyn Notifier>, receive: &'a Arc<dyn Notifier>, context: u64) -> Queues<'a> {
    static NOBODY: LazyLock<Arc<Reporter>> = LazyLock::new(Reporter::nobody);
    Queues { send, receive, context, level: ServiceLevel::default(), reporter: &NOBODY }
}
