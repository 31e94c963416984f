//! Rules for what VIA leaves to its providers, and for what it does not have.

use super::{Rule, rule};

pub const RESOURCES: &[Rule] = &[
    rule(
        "each is bounded, exhaustion is an error, and its end is the end of it",
        &[
            "limits::the_send_queue_fills_and_recovers",
            "limits::rdma_writes_keep_the_bounds_of_sends",
            "limits::the_receive_queue_fills_and_recovers",
            "limits::the_connection_fills_and_recovers",
            "limits::the_outbox_fills_and_recovers",
            "limits::the_landing_fills_and_recovers",
            "limits::the_table_of_windows_fills_and_recovers",
            "limits::a_request_beyond_all_memory_is_refused",
            "events::events_are_bounded",
            "queues::a_full_queue_attaches_no_more",
            "registration::registrations_in_use_are_bounded",
            "registration::pinned_memory_is_bounded_by_the_kernel",
        ],
    ),
    rule(
        "a sender that is too fast is held back",
        &[
            "flood::a_flood_of_short_messages_is_held_back",
            "flood::a_flood_of_long_messages_is_held_back",
            "completion::room_to_send_is_named",
            "transfer::a_sender_learns_what_is_unread",
        ],
    ),
    rule(
        "each object holds what it needs: no order of dropping is wrong",
        &[
            "orphans::a_vi_outlives_its_nic",
            "orphans::a_vi_outlives_its_completion_queue",
            "orphans::a_handle_outlives_its_completion_queue",
            "orphans::a_completion_queue_outlives_its_nic",
            "orphans::a_listener_outlives_its_nic",
            "orphans::a_request_outlives_its_listener",
            "orphans::a_completion_outlives_vi_queue_and_nic",
            "orphans::a_window_outlives_its_nic",
        ],
    ),
    rule(
        "a process may end when it has waited for what it posted",
        &[
            "drain::where_nothing_was_posted_there_is_nothing_to_wait_for",
            "drain::what_was_posted_is_with_the_peer_before_its_program_looks",
            "drain::what_a_vi_posted_that_is_gone_is_waited_for",
            "drain::who_takes_something_at_last_ends_the_wait",
            "drain::nobody_is_waited_for_who_has_closed",
            "drain::writes_are_waited_for",
        ],
    ),
    rule("connections leave nothing behind", &["many::connections_leave_nothing_behind"]),
];

pub const UDAPL: &[Rule] = &[
    rule(
        "shared receive queues: many VIs take from one supply, in the order of its posts",
        &[
            "shared::vis_take_from_one_queue_in_order_of_posting",
            "shared::a_message_that_finds_the_shared_queue_empty_breaks_its_connection_only",
            "shared::the_end_of_a_vi_flushes_nothing_of_the_shared_queue",
            "shared::a_shared_queue_is_bounded_and_checks_what_is_posted",
            "shared::sharing_is_for_idle_vis_of_the_same_nic_and_tag",
        ],
    ),
    rule(
        "software events: in order, bounded, each ends a wait",
        &[
            "events::events_come_out_in_order",
            "events::events_are_bounded",
            "events::each_event_ends_a_wait",
            "events::events_of_many_threads_all_come",
            "events::events_and_messages_do_not_starve_each_other",
            "events::events_to_a_queue_that_is_gone_harm_nobody",
        ],
    ),
    rule(
        "one wait on several completion queues",
        &["queues::one_wait_on_three_queues", "queues::a_wait_on_three_queues_ends_at_its_deadline"],
    ),
    rule(
        "registration by cache: the same memory is registered once, and never outlives itself",
        &[
            "registration::a_registration_is_there_the_next_time",
            "registration::registrations_end_with_their_memory",
            "registration::the_longest_unused_registration_makes_room",
            "registration::what_the_device_refuses_comes_back",
        ],
    ),
];

pub const OURS: &[Rule] = &[
    rule(
        "a job's secret is the condition of every connection",
        &["connection::different_secrets_never_connect"],
    ),
    rule(
        "who asks for a connection is the rank that it proves to be, and so is who is asked",
        &["connection::each_rank_learns_which_the_other_is", "connection::no_rank_passes_for_another"],
    ),
    rule(
        "a received message is the sender's own memory until dropped",
        &[
            "lent::a_handed_off_block_arrives_with_its_head",
            "lent::hand_off_copies_nothing",
            "lent::a_vi_takes_back_what_was_dropped",
            "lent::a_shared_block_comes_home_when_all_have_dropped_it",
            "lent::a_shared_block_that_is_refused_has_no_owner_here",
            "lent::parts_of_a_shared_block_are_lent_where_they_lie",
        ],
    ),
    rule(
        "a message is read from its sender's memory by whom it was shown to, and as far as it was shown",
        &[
            "readable::a_message_is_read_where_it_lies",
            "readable::a_message_that_was_taken_back_is_not_read",
            "readable::a_message_of_another_tag_is_not_read",
            "readable::more_than_the_message_is_not_read",
            "readable::a_message_to_be_read_is_not_written",
            "readable::a_block_of_another_nic_is_not_shown",
        ],
    ),
    rule(
        "a message outlives whom it came from and whom it came to",
        &[
            "lent::messages_outlive_the_senders_vi",
            "lent::messages_outlive_the_receivers_vi",
            "lent::messages_outlive_the_senders_nic",
            "lent::messages_outlive_the_receivers_nic",
        ],
    ),
    rule(
        "a receiver that hoards messages does not starve their sender",
        &[
            "lent::a_hoarding_receiver_does_not_starve_its_sender",
            "lent::a_hoarding_receiver_does_not_withhold_receipts",
        ],
    ),
    rule("errors say what happened", &["errors::errors_say_what_happened"]),
];
