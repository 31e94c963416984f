//! What runs over a network: it posts messages, sets timers, and hears of both.

/// A message that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// A host.
    pub from: u32,
    /// Another one.
    pub to: u32,
    /// At least 1.
    pub flits: u32,
    /// The service level.
    pub level: u8,
    /// Under which it is counted; below the number of classes.
    pub class: u8,
    /// What the workload calls it.
    pub token: u32,
}

/// What a workload wants next.
#[derive(Debug, Default)]
pub struct Wishes {
    pub(crate) posts: Vec<Post>,
    pub(crate) timers: Vec<(u64, u32)>,
}

impl Wishes {
    /// Posts a message now.
    pub fn post(&mut self, post: Post) {
        self.posts.push(post);
    }

    /// Calls [`Workload::timer`] at a time, which is behind now.
    pub fn at(&mut self, time: u64, token: u32) {
        self.timers.push((time, token));
    }
}

/// Something that sends messages.
pub trait Workload {
    /// The classes by which messages are counted, in their order.
    fn classes(&self) -> Vec<String>;

    /// Time begins: it is 0.
    fn begin(&mut self, wishes: &mut Wishes);

    /// A timer.
    fn timer(&mut self, now: u64, token: u32, wishes: &mut Wishes);

    /// All of a message has left its host.
    fn sent(&mut self, _now: u64, _token: u32, _wishes: &mut Wishes) {}

    /// All of a message has arrived.
    fn delivered(&mut self, _now: u64, _token: u32, _wishes: &mut Wishes) {}
}
