//! A message that arrives while a retrieve waits, although one thread drives both ends: the library reports a poll in vain,
//! and the message is posted then ([`udeck_sys::on_next_miss`]).

use std::cell::RefCell;

use udeck::{Buf, Postbox};

/// The postbox, and this round's message.
type Prepared = (Postbox<u64>, Option<Buf<u64>>);

thread_local! {
    static PREPARED: RefCell<Option<Prepared>> = const { RefCell::new(None) };
}

/// Sets the postbox of the posts; `None`: no more posts.
pub fn post_by(out: Option<Postbox<u64>>) {
    PREPARED.set(out.map(|out| (out, None)));
}

/// Sets the message that [`post_prepared`] will post.
pub fn prepare(small: Buf<u64>) {
    PREPARED.with_borrow_mut(|prepared| prepared.as_mut().expect("a postbox").1 = Some(small));
}

/// Posts the message of this round.
pub fn post_prepared() {
    PREPARED.with_borrow_mut(|prepared| {
        let (out, small) = prepared.as_mut().expect("a postbox");
        out.post(small.take().expect("a message")).expect("posting while the mailbox waits");
    });
}
