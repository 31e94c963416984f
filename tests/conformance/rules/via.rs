//! Rules of the specification's text.

use super::{Rule, rule};

pub const RELIABILITY: &[Rule] = &[
    rule(
        "corrupt data are detected, at every level",
        &["transfer::messages_of_all_sizes", "transfer::posted_sends_reach_lent_receivers"],
    )
    .tests(&[
        "transports/sim/tests/corruption.rs::unreliable_connections_drop_corrupt_frames",
        "transports/sim/tests/corruption.rs::reliable_connections_break_of_a_corrupt_frame_at_both_ends",
        "transports/sim/tests/corruption.rs::a_corrupt_receipt_breaks_the_connection",
        "transports/sim/tests/corruption.rs::a_corrupt_word_of_an_rdma_write_is_noticed",
        "transports/sim/tests/corruption.rs::a_read_whose_question_or_answer_is_lost_or_corrupt_reads_nothing",
    ])
    .note("the cases: nothing comes altered; the tests, where links corrupt: what does is never delivered"),
    rule("loss is detected: the reliable levels", &["integrity::messages_arrive_once_in_the_order_of_posting"])
        .tests(&[
            "transports/sim/tests/faults.rs::reliable_connections_break_of_a_loss_at_both_ends",
            "transports/sim/tests/faults.rs::a_lost_descriptor_ends_as_a_transport_error",
            "transports/sim/tests/reception.rs::a_lost_message_is_a_transport_error",
            "transports/sim/tests/reception.rs::a_lost_receipt_breaks_the_connection",
        ]),
    rule(
        "unreliable delivery: at most once, losses unnoticed, the connection stands",
        &[
            "reliability::an_unreliable_message_without_a_receive_is_dropped",
            "reliability::an_unreliable_message_too_long_is_a_length_error_only",
            "reliability::dropped_messages_hide_nothing_behind_them",
        ],
    )
    .tests(&["transports/sim/tests/faults.rs::unreliable_connections_do_not_notice_a_loss"]),
    rule(
        "reliable levels: exactly once, in order",
        &[
            "integrity::messages_arrive_once_in_the_order_of_posting",
            "integrity::lent_messages_arrive_once_in_the_order_of_posting",
            "transfer::messages_stay_in_order",
            "order::sends_and_writes_arrive_in_the_order_of_their_posts",
            "order::sends_and_writes_arrive_in_order_by_reliable_reception",
            "flood::many_to_one_all_arrive_in_order",
            "flood::a_flood_of_short_messages_is_held_back",
            "flood::a_flood_of_long_messages_is_held_back",
        ],
    ),
    rule(
        "reliable levels: an error breaks the connection, at both ends",
        &[
            "errors::a_message_without_a_receive_breaks_the_connection",
            "errors::a_receive_too_short_is_a_length_error",
            "reliability::after_an_error_both_connect_again",
            "callback::a_missing_receive_is_told_at_both_ends",
            "callback::a_missing_receive_is_told_at_both_ends_of_reliable_reception",
        ],
    ),
    rule(
        "RDMA write: every level",
        &[
            "memory::write_a_whole_window",
            "reliability::a_write_without_immediate_data_needs_no_receive",
            "reliability::a_write_without_immediate_data_waits_for_no_program",
            "reliability::an_unreliable_write_keeps_its_data_when_the_immediate_is_dropped",
            "reliability::an_unreliable_write_to_a_window_that_is_gone_is_dropped",
        ],
    ),
    rule(
        "RDMA read: optional at reliable levels, none at the unreliable one",
        &["read::rdma_read_is_there_or_unsupported", "read::unreliable_vis_do_not_read"],
    ),
    rule(
        "a send is done when its data left the sender: unreliable and reliable delivery",
        &[
            "reliability::a_delivered_send_is_done_before_anybody_looks",
            "reliability::a_delivered_send_says_nothing_of_its_arrival",
        ],
    ),
    rule(
        "a send is done when its data arrived at the receiver: reliable reception",
        &[
            "reliability::a_send_is_done_when_it_has_arrived",
            "reliability::sends_are_done_as_they_arrive",
            "reliability::a_write_with_immediate_data_is_done_when_they_arrived",
            "reliability::a_send_to_a_lending_receiver_is_done_when_it_is_dropped",
            "reliability::a_write_to_a_lending_receiver_is_done_when_that_looks_on",
            "reliability::a_write_that_cannot_be_announced_writes_nothing",
        ],
    ),
    rule(
        "both VIs of a connection have one level, and each side learns when they have not",
        &[
            "connection::different_reliability_levels_never_connect",
            "peer::peers_of_different_levels_never_connect",
        ],
    ),
];

pub const QUEUES: &[Rule] = &[
    rule(
        "work queues are FIFO",
        &[
            "order::receives_are_taken_in_the_order_of_their_posts",
            "transfer::messages_stay_in_order",
            "completion::sends_are_reported_in_order",
        ],
    ),
    rule(
        "the two queues of a VI complete independently",
        &[
            "order::receives_complete_while_sends_wait_to_be_taken",
            "order::sends_complete_while_receives_wait_to_be_taken",
            "completion::two_queues_of_one_vi_report_apart",
            "transfer::both_directions_at_once",
        ],
    ),
    rule(
        "a descriptor gathers and scatters; what does not fill it leaves the rest alone",
        &[
            "transfer::gather_from_several_segments",
            "transfer::scatter_over_several_segments",
            "transfer::gather_and_scatter_with_other_boundaries",
            "transfer::a_message_shorter_than_its_descriptor",
            "transfer::a_message_without_segments",
        ],
    ),
    rule(
        "immediate data travel with their descriptor",
        &["transfer::immediate_data_with_and_without", "memory::write_with_immediate_data"],
    ),
    rule(
        "a receive is there, and long enough, when the message comes",
        &[
            "errors::a_message_without_a_receive_breaks_the_connection",
            "errors::a_receive_too_short_is_a_length_error",
            "reliability::a_write_whose_immediate_data_find_no_receive",
        ],
    ),
    rule(
        "after an error everything behind is flushed, in order; everything posted is reported, once",
        &[
            "errors::an_error_flushes_the_receives_behind_it",
            "errors::an_error_reports_every_send",
            "reliability::sends_that_nobody_took_are_flushed",
            "reliability::a_write_behind_a_flushed_send_is_flushed",
            "statuses::an_error_flushes_both_queues_delivery",
            "statuses::an_error_flushes_both_queues_reception",
            "connection::disconnect_flushes_receives_in_order",
            "connection::the_peers_end_flushes_receives_in_order",
            "connection::flushed_receives_come_before_what_arrives_later",
            "raw::raw_receives_are_flushed",
        ],
    ),
    rule(
        "a fenced descriptor (QFENCE) is not started before the RDMA reads before it are over",
        &[
            "fence::when_a_fenced_message_has_come_the_reads_before_it_are_over",
            "fence::a_fenced_write_does_not_spoil_the_read_before_it",
            "fence::a_fence_lets_the_peer_reuse_what_was_read",
            "fence::fenced_posts_stay_in_their_order",
            "fence::a_raw_post_is_fenced_by_its_vi",
            "fence::a_fence_without_reads_changes_nothing",
            "fence::a_refused_post_leaves_a_fence_that_holds_nothing_up",
        ],
    )
    .tests(&[
        "transports/sim/tests/rdma.rs::what_is_fenced_waits_for_the_reads_before_it_and_what_is_behind_it_too",
        "transports/sim/tests/rdma.rs::a_fenced_read_is_asked_when_the_one_before_it_is_over",
    ])
    .note("`Descriptor::fenced`, and for raw posts `Vi::fence`; the tests hold reads up, which only some transports can"),
    rule(
        "an RDMA read ends in its turn, with its data in place",
        &[
            "late::reads_and_sends_are_reported_in_the_order_of_their_posts",
            "late::as_many_reads_as_a_queue_holds",
            "late::reads_of_blocks_end_with_what_was_read",
            "late::both_read_at_a_time",
        ],
    ),
    rule(
        "reads under way when a connection ends are flushed, and their memory comes back",
        &[
            "late::reads_that_were_posted_before_a_disconnect_are_reported",
            "late::reads_that_the_peer_leaves_alone_are_flushed",
            "late::reads_of_blocks_are_over_when_their_connection_is",
            "late::a_vi_that_goes_takes_no_memory_along",
        ],
    ),
    rule(
        "the memory of a posted descriptor is the NIC's until it is reported",
        &[
            "transfer::descriptors_come_back_and_serve_again",
            "integrity::a_send_is_not_done_while_its_receiver_reads_it",
            "user_memory::flushed_descriptors_have_their_memory",
            "lent::a_posted_send_outlives_its_vi",
            "raw::raw_posts_are_reported_by_their_ids",
        ],
    ),
    rule(
        "a completion queue names every queue with news, of any number of VIs",
        &[
            "completion::arrivals_are_named_with_their_context",
            "completion::a_queue_is_named_until_it_is_empty",
            "completion::the_end_of_a_connection_is_named",
            "completion::who_waits_for_room_is_told_of_the_end",
            "completion::the_end_is_named_behind_what_came_before_it",
            "many::every_vi_of_many_is_served",
            "many::a_flood_is_served_fairly",
            "many::a_quiet_vi_is_heard_in_a_flood",
            "flood::many_to_one_all_arrive_in_order",
        ],
    ),
];

pub const CONNECTIONS: &[Rule] = &[
    rule(
        "each call is legal in some states only, and fails without effect in the others",
        &[
            "states::every_call_in_every_state",
            "states::a_refused_call_leaves_the_vi_as_good_as_before",
            "states::a_refused_accept_refuses_the_request",
            "connection::states_follow_connect_and_disconnect",
            "connection::an_idle_vi_takes_receives_but_no_sends",
            "connection::a_connected_vi_cannot_connect",
            "connection::a_connected_vi_cannot_accept",
            "connection::a_vi_in_error_takes_nothing_until_disconnected",
            "peer::peer_requests_need_an_idle_vi",
        ],
    ),
    rule(
        "a connection is made where discriminators match, by length and bytes",
        &[
            "connection::discriminators_are_compared_by_all_their_bytes",
            "connection::an_empty_discriminator_is_one",
            "peer::peers_meet_at_the_same_discriminator_only",
        ],
    ),
    rule(
        "exactly one answer per request; who has given up is never connected",
        &[
            "connection::requests_wait_in_order",
            "connection::an_answer_that_comes_too_late_connects_nobody",
            "connection::a_request_dropped_unanswered_is_refused",
            "peer::a_peer_request_that_timed_out_connects_nobody",
            "peer::a_side_that_gave_up_resets_the_other",
        ],
    ),
    rule(
        "crossing peer requests: exactly one connection results",
        &["peer::both_ask_at_once_and_one_connection_results", "peer::a_third_one_does_not_get_between"],
    ),
    rule(
        "an error moves the VI to Error; disconnecting leads to Idle, from where it connects again",
        &[
            "errors::a_broken_pair_connects_again",
            "states::the_error_state_ends_by_disconnect_only",
            "reliability::a_vi_that_reports_a_flushed_send_is_in_error",
            "statuses::an_unreliable_vi_is_reset_and_used_again",
            "connection::a_vi_connects_again",
            "errors::one_broken_connection_leaves_the_others_alone",
        ],
    ),
    rule(
        "a VI whose connection was asked for is pending until the program takes it or withdraws",
        &[
            "states::a_vi_is_pending_until_the_program_takes_its_connection",
            "states::a_pending_vi_keeps_its_receives_for_the_connection",
            "states::a_withdrawn_request_flushes_the_receives",
            "peer::a_peer_request_is_withdrawn",
            "peer::a_withdrawn_peer_request_asks_no_more",
        ],
    ),
    rule(
        "disconnecting: what was sent still arrives, what is posted is flushed",
        &[
            "connection::the_sender_disconnects_after_sending",
            "connection::the_receiver_disconnects_before_reading",
            "connection::disconnect_flushes_receives_in_order",
            "connection::a_dropped_vi_disconnects",
        ],
    ),
];

pub const MEMORY: &[Rule] = &[
    rule(
        "memory and VI carry the same protection tag",
        &[
            "memory::a_send_of_another_tag_is_refused",
            "user_memory::user_memory_of_another_tag_is_refused",
            "raw::a_raw_segment_has_the_tag_of_its_vi",
            "memory::a_receive_of_another_tag_is_refused",
            "memory::write_from_memory_of_another_tag",
            "memory::write_to_a_window_of_another_tag",
            "read::read_from_a_window_of_another_tag",
            "read::read_into_memory_of_another_tag",
        ],
    ),
    rule(
        "RDMA reaches what is registered and enabled for it, and nothing else",
        &[
            "memory::write_part_of_a_window",
            "memory::write_past_the_end",
            "memory::write_beyond_the_buffer_it_was_given",
            "memory::write_by_a_handle_that_never_was",
            "memory::write_to_a_vi_that_does_not_allow_it",
            "read::read_past_the_end",
            "read::read_by_a_handle_that_never_was",
            "read::rights_are_kept_apart",
            "read::read_from_a_vi_that_does_not_allow_it",
        ],
    ),
    rule(
        "memory of the program's own is registered, posted, and comes back",
        &[
            "user_memory::user_memory_is_sent",
            "user_memory::user_memory_receives",
            "user_memory::sends_mix_memory_of_both_kinds",
            "user_memory::user_memory_of_another_nic_is_refused",
            "raw::memory_registered_by_address_is_sent_and_received",
        ],
    ),
    rule(
        "deregistered memory is not reached any more",
        &[
            "memory::write_to_a_revoked_window",
            "memory::write_to_a_dropped_window",
            "memory::a_handle_is_not_used_again_at_once",
            "registration::set_attributes_ends_the_old_handle",
            "raw::a_raw_segment_lies_in_a_living_registration",
            "read::a_revoked_window_is_not_read",
            "read::revoke_waits_for_readers",
        ],
    ),
    rule(
        "RDMA-written data are visible with the immediate data, or the message, that follow them",
        &[
            "memory::data_are_visible_when_the_immediate_data_are",
            "memory::data_are_visible_when_the_message_behind_them_is",
        ],
    ),
    rule(
        "an RDMA write takes a receive only for its immediate data, a read never",
        &[
            "memory::write_without_immediate_data_takes_no_receive",
            "memory::write_with_immediate_data",
            "read::a_read_takes_no_receive",
            "read::a_read_carries_no_immediate_data",
        ],
    ),
];
