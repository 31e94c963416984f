//! The exits of ranks: how one learns of them, and what they mean for its connections.
//!
//! | file | contents |
//! |---|---|
//! | `log` | the launcher's reports of exits (`record`), and whom they wake |
//! | `check` | whether a rank whose connection broke has finished or is lost |
//! | `rank_exits` | the exits of other ranks, as events that a program can wait for |

pub(crate) mod check;
pub(crate) mod log;
pub(crate) mod rank_exits;
