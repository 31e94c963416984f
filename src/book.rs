//! The Rust samples of the README, of the book and of the message layer's types, as tests: `cargo test --doc -p udeck`
//! compiles and runs them. (The message layer has no transports, so it cannot run its own.)

#[doc = include_str!("../README.md")]
struct Readme;

#[doc = include_str!("../docs/first-steps.md")]
struct FirstSteps;

#[doc = include_str!("../docs/spmd.md")]
struct Spmd;

#[doc = include_str!("../docs/from-mpi.md")]
struct FromMpi;

#[doc = include_str!("../docs/errors.md")]
struct Errors;

#[doc = include_str!("../docs/groups.md")]
struct Groups;

#[doc = include_str!("../docs/calls.md")]
struct Calls;

#[doc = include_str!("../docs/protocols.md")]
struct Protocols;

#[doc = include_str!("../docs/qos.md")]
struct Qos;

#[doc = include_str!("../docs/traces.md")]
struct Traces;

#[doc = include_str!("../crates/deck/examples/group.md")]
struct Group;

#[doc = include_str!("../crates/deck/examples/group_ragged.md")]
struct GroupRagged;

#[doc = include_str!("../crates/deck/examples/group_values.md")]
struct GroupValues;

#[doc = include_str!("../crates/deck/examples/grid.md")]
struct Grid;

#[doc = include_str!("../crates/deck/examples/wait_all.md")]
struct WaitAll;

#[doc = include_str!("../crates/deck/examples/wait_any.md")]
struct WaitAny;

#[doc = include_str!("../crates/deck/examples/survivors.md")]
struct Survivors;

#[doc = include_str!("../crates/deck/examples/agree.md")]
struct Agree;

#[doc = include_str!("../crates/deck/examples/service.md")]
struct Service;

#[doc = include_str!("../crates/deck/examples/world.md")]
struct World;

#[doc = include_str!("../crates/deck/examples/mailbox.md")]
struct Mailbox;

#[doc = include_str!("../crates/deck/examples/postbox.md")]
struct Postbox;

#[doc = include_str!("../crates/deck/examples/buf.md")]
struct Buf;

#[doc = include_str!("../crates/deck/examples/received.md")]
struct Received;

#[doc = include_str!("../crates/deck/examples/message.md")]
struct Message;

#[doc = include_str!("../crates/deck/examples/shared_segment.md")]
struct SharedSegment;

#[doc = include_str!("../crates/deck/examples/shared_mutex.md")]
struct SharedMutex;

#[doc = include_str!("../crates/deck/examples/semaphore.md")]
struct Semaphore;

#[doc = include_str!("../docs/services.md")]
struct Services;
