//! Connections that wait: for memory, for a message that is nearly here, or to be polled again.
//!
//! Of each memory, who asked first is served first: a large message is not overtaken for ever by small ones. A connection that
//! was served queues up again with its next announcement, so a postbox that announces much does not delay the others.

use std::collections::VecDeque;

use super::exit_checks::ExitChecks;

/// Connections that wait, by context.
#[derive(Debug, Default)]
pub(super) struct WaitLists {
    /// By [`super::memory_quota::Memory`], in the order in which they asked. Each is in one of them at most.
    pub for_memory: [VecDeque<usize>; 2],
    /// Whose message is nearly here.
    pub unfinished: VecDeque<usize>,
    /// Whose connection broke: the launcher has been asked whether their ranks have finished.
    pub exit_checks: ExitChecks,
    /// That the completion queue reported while they were blocked, and that are not blocked any more.
    pub notified: VecDeque<usize>,
}

impl WaitLists {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.for_memory.iter().all(VecDeque::is_empty)
            && self.unfinished.is_empty()
            && self.notified.is_empty()
            && self.exit_checks.is_empty()
    }

    /// A connection has ended.
    pub fn forget(&mut self, connection: usize) {
        let lists = self.for_memory.iter_mut().chain([&mut self.unfinished, &mut self.notified]);
        lists.for_each(|list| list.retain(|other| *other != connection));
    }

    /// Who is given memory next.
    pub fn first(&self) -> Option<usize> {
        self.for_memory.iter().find_map(|list| list.front()).copied()
    }
}
