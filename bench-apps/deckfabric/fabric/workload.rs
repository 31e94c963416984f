//! Workloads: what runs over a network posts messages, sets timers, and is told of both.

/// A message to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving host.
    pub to: u32,
    /// Length in flits; at least 1.
    pub flits: u32,
    /// Service level.
    pub level: u8,
    /// Class under which it is counted; below the number of classes.
    pub class: u8,
    /// Number that the workload gives the message.
    pub token: u32,
}

/// Messages and timers that a workload wants next.
#[derive(Debug, Default)]
pub struct Actions {
    pub(crate) posts: Vec<Post>,
    pub(crate) timers: Vec<(u64, u32)>,
}

impl Actions {
    /// Posts a message now.
    pub fn post(&mut self, post: Post) {
        self.posts.push(post);
    }

    /// Calls [`Workload::timer`] at the cycle `time`, which is after now.
    pub fn at(&mut self, time: u64, token: u32) {
        self.timers.push((time, token));
    }
}

/// A source of messages.
pub trait Workload {
    /// Names of the classes by which messages are counted, in their order.
    fn classes(&self) -> Vec<String>;

    /// Begins at cycle 0.
    fn begin(&mut self, actions: &mut Actions);

    /// Handles a timer.
    fn timer(&mut self, now: u64, token: u32, actions: &mut Actions);

    /// Handles a message whose last packet begins to leave its host. `left`: the cycle, after now, at which its last flit will
    /// have left.
    fn sent(&mut self, _left: u64, _token: u32, _actions: &mut Actions) {}

    /// Handles a message of which all flits have arrived.
    fn delivered(&mut self, _now: u64, _token: u32, _actions: &mut Actions) {}
}
