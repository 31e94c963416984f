//! Rules for what VIA leaves to its providers, and for what it does not have.

use super::{Asked, asked, does_not_meet};

/// Rules of the chapters of `udeck_conformance::rules::ours`.
pub const ASKED: &[Asked] = &[
    asked(
        "each is bounded, exhaustion is an error, and its end is the end of it",
        &[
            "limits::the_request_queue_fills_and_recovers",
            "limits::the_receive_queue_fills_and_recovers",
            "limits::too_many_segments_are_refused",
            "limits::a_transfer_too_long_is_refused",
            "events::events_are_bounded",
            "connection::private_data_too_long_are_refused",
        ],
    )
    .tests(&[
        "tests/bindings/dat/c/requests.c::are_not_more_than_so_many",
        "tests/bindings/dat/c/events.c::overflows",
    ]),
    asked(
        "a sender that is too fast is held back",
        &["flood::a_flood_of_short_messages_is_held_back", "flood::a_flood_of_long_messages_is_held_back"],
    ),
    asked(
        "each object holds what it needs: no order of dropping is wrong",
        &[
            "orphans::an_end_point_outlives_its_adapter_and_zone",
            "orphans::completions_outlive_their_end_point",
            "orphans::a_request_outlives_its_service_point",
            "orphans::a_dispatcher_takes_along_what_is_in_it",
            "orphans::memory_outlives_all_else",
        ],
    ),
    asked(
        "a process may end when it has waited for what it posted",
        &["connection::the_sender_disconnects_after_sending"],
    )
    .note("a graceful disconnect sends what is posted; what has left arrives"),
    asked("connections leave nothing behind", &["many::connections_leave_nothing_behind"]),
    asked("shared receive queues: many VIs take from one supply, in the order of its posts", &[]).tests(&[
        "bindings/dat/api/tests/srq.rs::messages_of_several_connections_take_receives_of_one_queue",
        "bindings/dat/api/tests/srq.rs::the_end_of_a_connection_leaves_the_receives_to_the_others",
        "bindings/dat/api/tests/srq.rs::what_a_shared_queue_refuses_comes_back",
        "tests/bindings/dat/c/srq.c::main",
    ]),
    asked(
        "software events: in order, bounded, each ends a wait",
        &[
            "events::events_come_out_in_order",
            "events::events_are_bounded",
            "events::each_event_ends_a_wait",
            "events::events_of_many_threads_all_come",
            "events::events_and_messages_do_not_starve_each_other",
        ],
    ),
    asked("one wait on several completion queues", &[])
        .tests(&["bindings/dat/api/tests/cno.rs::who_waits_learns_which_dispatcher_has_events"])
        .note("a CNO"),
    does_not_meet(
        "registration by cache: the same memory is registered once, and never outlives itself",
        "an LMR is one registration, of a table and not of a device",
    ),
    asked(
        "a job's secret is the condition of every connection",
        &["connection::different_secrets_never_connect"],
    ),
    does_not_meet(
        "who asks for a connection is the rank that it proves to be, and so is who is asked",
        "a peer is an address: which rank it is, uDAPL cannot ask",
    ),
    does_not_meet(
        "a received message is the sender's own memory until dropped",
        "a receive has memory of the program's: the message is copied there",
    ),
    does_not_meet(
        "a message is read from its sender's memory by whom it was shown to, and as far as it was shown",
        "memory is shown by its registration, whose rules are above",
    ),
    does_not_meet(
        "a message outlives whom it came from and whom it came to",
        "it lies in the receive's memory, which is the program's",
    ),
    does_not_meet(
        "a receiver that hoards messages does not starve their sender",
        "it hoards its own memory: the sender's was over when the message came",
    ),
    asked("errors say what happened", &["states::an_unconnected_end_point_takes_receives_but_no_requests"])
        .tests(&["bindings/dat/api/tests.rs::what_is_refused_comes_back_with_what_was_tried"]),
];
