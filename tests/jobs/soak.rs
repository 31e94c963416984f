//! Random jobs under random faults, judged by an oracle: `cargo xtask soak`.
//!
//! A [`plan::Plan`] follows from a seed alone: ranks, transports, mailboxes, streams of messages, and faults. The driver
//! (`soak/driver.rs`) starts a job of `soak-rank` processes, each of which derives the same plan from the seed and plays
//! its part; meanwhile the driver inflicts the faults ([`faults`]). Ranks write their observations into logs ([`facts`]), and
//! [`check`] compares these with the requirements: it fails a run for anything that no fault explains, but never for the
//! time that something took.
//!
//! | file | what it is |
//! |---|---|
//! | `plan` | the meaning of a seed |
//! | `content` | the bytes of each message, and its check |
//! | `facts` | the lines that ranks write |
//! | `folder` | one run's files: logs, and signals between ranks that do not pass through the library |
//! | `rank/` | the program of a rank: posting, reading, the watch over its calls, its holdings |
//! | `faults` | killing, stopping, pulling cables, losing packets |
//! | `run` | one job from its start to its verdict |
//! | `check` | the verdict |

#![allow(missing_docs, reason = "fields and variants that say it themselves; nothing here is shipped")]

pub mod check;
pub mod content;
pub mod facts;
pub mod faults;
pub mod folder;
pub mod plan;
pub mod run;
