//! Rules of VIA's text.

use super::{Asked, asked, does_not_meet};

/// Rules of the chapters of `udeck_conformance::rules::via`.
pub const ASKED: &[Asked] = &[
    // ---- reliability levels: end points are reliable, with delivery ----
    asked("corrupt data are detected, at every level", &["transfer::messages_of_all_sizes"])
        .note("nothing comes altered; links that corrupt are below, and the suite over VIs has them"),
    asked(
        "loss is detected: the reliable levels",
        &["integrity::messages_arrive_once_in_the_order_of_posting"],
    ),
    does_not_meet(
        "unreliable delivery: at most once, losses unnoticed, the connection stands",
        "DAT_SERVICE_TYPE_RC is the only type of an end point",
    ),
    asked(
        "reliable levels: exactly once, in order",
        &[
            "integrity::messages_arrive_once_in_the_order_of_posting",
            "order::sends_and_writes_arrive_in_the_order_of_their_posts",
            "flood::many_to_one_all_arrive_in_order",
            "flood::a_flood_of_short_messages_is_held_back",
            "flood::a_flood_of_long_messages_is_held_back",
        ],
    ),
    asked(
        "reliable levels: an error breaks the connection, at both ends",
        &["statuses::a_receive_too_short_is_a_length_error", "statuses::an_error_flushes_what_is_behind_it"],
    )
    .note("DAT_CONNECTION_EVENT_BROKEN, at both; then both connect again"),
    asked("RDMA write: every level", &["memory::write_a_whole_window", "memory::write_gathers"]),
    asked(
        "RDMA read: optional at reliable levels, none at the unreliable one",
        &["read::read_a_whole_window", "read::read_scatters", "read::read_what_another_wrote"],
    )
    .note("always there, because it travels in messages"),
    asked(
        "a send is done when its data left the sender: unreliable and reliable delivery",
        &["unposted::a_message_waits_for_its_receive"],
    ),
    does_not_meet(
        "a send is done when its data arrived at the receiver: reliable reception",
        "DAT_COMPLETION says that the memory is the program's again, no more",
    ),
    does_not_meet(
        "both VIs of a connection have one level, and each side learns when they have not",
        "there is one type of end point; that a VI which is none is refused, bindings/dat/api/hostile.rs has",
    ),
    // ---- work queues ----
    asked(
        "work queues are FIFO",
        &[
            "order::receives_are_taken_in_the_order_of_their_posts",
            "completion::sends_are_reported_in_order",
            "order::sends_and_writes_arrive_in_the_order_of_their_posts",
        ],
    ),
    asked(
        "the two queues of a VI complete independently",
        &[
            "order::receives_complete_while_sends_wait_to_be_taken",
            "order::sends_complete_while_receives_wait_to_be_taken",
            "transfer::both_directions_at_once",
        ],
    ),
    asked(
        "a descriptor gathers and scatters; what does not fill it leaves the rest alone",
        &[
            "transfer::gather_from_several_segments",
            "transfer::scatter_over_several_segments",
            "transfer::gather_and_scatter_with_other_boundaries",
            "transfer::a_message_shorter_than_its_descriptor",
            "memory::part_of_a_region_is_sent_and_filled",
        ],
    ),
    does_not_meet(
        "immediate data travel with their descriptor",
        "uDAPL has them in an extension only, which the provider does not have",
    ),
    asked(
        "a receive is there, and long enough, when the message comes",
        &[
            "unposted::a_message_waits_for_its_receive",
            "unposted::a_read_is_answered_while_a_message_waits",
            "unposted::the_end_comes_behind_what_waits",
            "statuses::a_receive_too_short_is_a_length_error",
        ],
    )
    .tests(&["tests/bindings/dat/c/orders.c::bears_so_many_bytes_without_a_receive"])
    .note("a message waits for its receive, as hardware asks again; for ten seconds, and so many bytes"),
    asked(
        "after an error everything behind is flushed, in order; everything posted is reported, once",
        &[
            "statuses::an_error_flushes_what_is_behind_it",
            "connection::disconnect_flushes_receives_in_order",
            "connection::the_peers_end_flushes_receives_in_order",
            "states::what_is_posted_to_an_ended_end_point_is_flushed",
        ],
    ),
    asked(
        "a fenced descriptor (QFENCE) is not started before the RDMA reads before it are over",
        &[
            "fence::when_a_fenced_message_has_come_the_reads_before_it_are_over",
            "fence::a_fenced_write_does_not_spoil_the_read_before_it",
            "fence::a_fence_lets_the_peer_reuse_what_was_read",
            "fence::fenced_posts_stay_in_their_order",
        ],
    )
    .note("DAT_COMPLETION_BARRIER_FENCE_FLAG"),
    asked(
        "an RDMA read ends in its turn, with its data in place",
        &["order::reads_and_sends_are_reported_in_the_order_of_their_posts", "late::both_read_at_a_time"],
    ),
    asked(
        "reads under way when a connection ends are flushed, and their memory comes back",
        &["limits::the_request_queue_fills_and_recovers", "unposted::reads_under_way_are_flushed"],
    ),
    asked(
        "the memory of a posted descriptor is the NIC's until it is reported",
        &["memory::memory_of_the_programs_own_comes_back", "transfer::messages_of_all_sizes"],
    )
    .note("posting moves it, and the completion has it"),
    asked(
        "a completion queue names every queue with news, of any number of VIs",
        &[
            "flood::many_to_one_all_arrive_in_order",
            "many::many_ask_at_a_time",
            "events::no_post_is_slept_through",
            "statuses::a_completion_says_what_was_done",
        ],
    )
    .note("an event dispatcher has the completions themselves"),
    // ---- connections ----
    asked(
        "each call is legal in some states only, and fails without effect in the others",
        &[
            "states::states_follow_connect_and_disconnect",
            "states::an_unconnected_end_point_takes_receives_but_no_requests",
            "states::a_connected_end_point_neither_asks_nor_accepts",
            "states::what_is_posted_to_an_ended_end_point_is_flushed",
        ],
    )
    .tests(&[
        "bindings/dat/core/state.rs::requests_are_posted_to_what_is_or_was_connected",
        "tests/bindings/dat/c/states.c::refuses_before_it_is_connected",
    ]),
    asked(
        "a connection is made where discriminators match, by length and bytes",
        &[
            "connection::qualifiers_are_compared_by_all_their_bits",
            "connection::a_qualifier_is_taken_once",
            "connection::an_adapter_connects_to_itself",
            "names::free_qualifiers_are_found",
        ],
    )
    .note("connection qualifiers, of 64 bits"),
    asked(
        "exactly one answer per request; who has given up is never connected",
        &[
            "connection::each_request_is_answered_once",
            "connection::an_answer_that_comes_too_late_connects_nobody",
            "connection::a_request_dropped_unanswered_is_refused",
            "connection::who_listens_in_time_is_found",
        ],
    )
    .note("requests come in no order that is promised: each end point asks on a thread of its own"),
    does_not_meet(
        "crossing peer requests: exactly one connection results",
        "one side listens: dat_ep_common_connect is not implemented",
    ),
    asked(
        "an error moves the VI to Error; disconnecting leads to Idle, from where it connects again",
        &[
            "connection::an_end_point_connects_again",
            "statuses::one_broken_connection_leaves_the_others_alone",
            "statuses::a_receive_too_short_is_a_length_error",
        ],
    )
    .note("Disconnected, and dat_ep_reset leads to Unconnected"),
    asked(
        "a VI whose connection was asked for is pending until the program takes it or withdraws",
        &["states::states_follow_connect_and_disconnect", "connection::a_withdrawn_request_connects_nobody"],
    ),
    asked(
        "disconnecting: what was sent still arrives, what is posted is flushed",
        &[
            "connection::the_sender_disconnects_after_sending",
            "connection::the_receiver_disconnects_before_reading",
            "connection::disconnect_flushes_receives_in_order",
            "connection::a_dropped_end_point_disconnects",
            "unposted::the_end_comes_behind_what_waits",
        ],
    ),
    // ---- memory ----
    asked(
        "memory and VI carry the same protection tag",
        &[
            "memory::requests_from_memory_of_another_zone_are_refused",
            "memory::a_receive_into_memory_of_another_zone_breaks_the_connection",
            "memory::write_to_memory_of_another_zone",
            "memory::read_of_memory_of_another_zone",
        ],
    )
    .note("protection zones"),
    asked(
        "RDMA reaches what is registered and enabled for it, and nothing else",
        &[
            "memory::write_part_of_a_window",
            "memory::write_past_the_end",
            "memory::write_by_a_context_that_never_was",
            "memory::rdma_longer_than_what_it_names_is_refused",
            "read::read_part_of_a_window",
            "memory::read_past_the_end",
            "memory::read_by_a_context_that_never_was",
            "memory::rights_are_kept_apart",
        ],
    )
    .note("rights are the memory's, not the end point's"),
    asked(
        "memory of the program's own is registered, posted, and comes back",
        &["memory::memory_of_the_programs_own_comes_back"],
    ),
    asked(
        "deregistered memory is not reached any more",
        &["memory::write_to_memory_that_was_freed", "memory::read_of_memory_that_was_freed"],
    ),
    asked(
        "RDMA-written data are visible with the immediate data, or the message, that follow them",
        &["memory::data_are_visible_when_the_message_behind_them_is"],
    ),
    asked(
        "an RDMA write takes a receive only for its immediate data, a read never",
        &["memory::write_without_immediate_data_takes_no_receive", "read::a_read_takes_no_receive"],
    ),
];
