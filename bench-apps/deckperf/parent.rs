//! The bond of a process that deckperf has started to the deckperf that has started it.

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes the kernel end this process with its parent, however that ends.
pub fn end_with_the_parent() {
    // If this fails, the process runs on for as long as it was asked to.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_the_bond() {
        end_with_the_parent();
        assert_eq!(rustix::process::parent_process_death_signal().expect("a signal"), Some(Signal::TERM));
    }
}
