//! Numbers that tell objects from each other. None is given twice.

use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

macro_rules! ids {
    ($($name:ident: $of:literal),* $(,)?) => {$(
        #[doc = concat!("Which ", $of, " it is; never the number of another one that is or was in this process.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(super) u64);
    )*};
}

ids! {
    EpId: "end point",
    EvdId: "event dispatcher",
    RmrId: "remote memory region",
    SrqId: "shared receive queue",
    ServiceId: "service point",
}
