//! VIPL's calls and return codes, and VIA's status bits: by name, each with the cases that produce it.

use super::{Rule, absent, rule};

pub const CALLS: &[Rule] = &[
    rule(
        "VipOpenNic, VipCloseNic",
        &["orphans::a_vi_outlives_its_nic", "many::connections_leave_nothing_behind"],
    )
    .note("a transport's `open`, and dropping the last `Nic` and what was made from it"),
    rule(
        "VipQueryNic",
        &[
            "attributes::limits_allow_a_program_to_run",
            "attributes::every_nic_has_an_address_of_its_own",
            "attributes::attributes_do_not_change",
        ],
    ),
    absent(
        "VipQuerySystemManagementInfo",
        "its one type of information is autodiscovery; hosts and their NICs come from the name service here",
    ),
    rule(
        "VipErrorCallback",
        &[
            "callback::a_missing_receive_is_told_at_both_ends",
            "callback::a_short_receive_is_told_at_both_ends",
            "callback::immediate_data_without_a_receive_are_told",
            "callback::peers_are_told",
            "callback::each_connection_is_told_of",
            "callback::one_connection_of_many_is_told_of",
            "callback::an_orderly_end_is_not_told",
            "callback::a_dropped_unreliable_message_is_not_told",
            "callback::refused_posts_are_not_told",
            "callback::errors_go_on_without_a_callback",
        ],
    ),
    rule("VipCreatePtag", &["attributes::ptags_are_unique", "registration::tags_that_are_none_are_refused"]),
    rule(
        "VipDestroyPtag",
        &["registration::a_tag_in_use_is_not_destroyed", "registration::a_window_uses_its_tag"],
    ),
    rule(
        "VipCreateVi, VipDestroyVi",
        &[
            "attributes::reliability_levels_are_there_or_unsupported",
            "attributes::rdma_write_is_there_or_unsupported",
            "connection::a_dropped_vi_disconnects",
        ],
    ),
    rule(
        "VipQueryVi",
        &[
            "attributes::a_vi_keeps_its_settings",
            "attributes::queue_lengths_count_what_is_posted_and_not_reported",
            "states::every_call_in_every_state",
        ],
    ),
    rule(
        "VipSetViAttributes",
        &[
            "attributes::an_idle_vi_changes_its_settings",
            "attributes::settings_change_while_idle_and_empty_only",
            "attributes::what_is_unreported_keeps_the_settings",
        ],
    ),
    rule("VipConnectWait", &["connection::requests_wait_in_order", "connection::a_listener_times_out"]),
    rule(
        "VipConnectRequest",
        &["connection::private_data_travel_both_ways", "connection::an_unanswered_request_times_out"],
    ),
    rule(
        "VipConnectAccept",
        &["connection::private_data_travel_both_ways", "states::a_refused_accept_refuses_the_request"],
    ),
    rule(
        "VipConnectReject",
        &[
            "connection::a_rejection_carries_its_reason",
            "connection::a_long_reason_arrives_cut",
            "connection::a_rejection_carries_private_data",
        ],
    ),
    rule(
        "VipDisconnect",
        &[
            "connection::states_follow_connect_and_disconnect",
            "states::the_error_state_ends_by_disconnect_only",
        ],
    ),
    rule(
        "VipConnectPeerRequest",
        &["peer::a_peer_request_does_not_wait", "peer::private_data_of_peers_travel_both_ways"],
    ),
    rule(
        "VipConnectPeerDone",
        &["peer::a_peer_request_does_not_wait", "peer::a_lone_peer_request_times_out"],
    ),
    rule("VipConnectPeerWait", &["peer::both_ask_and_are_connected", "peer::a_lone_peer_request_times_out"]),
    rule(
        "VipRegisterMem, VipDeregisterMem",
        &[
            "memory::regions_are_zeroed_aligned_and_disjoint",
            "memory::recycled_regions_are_zeroed",
            "memory::revoke_gives_the_bytes",
            "user_memory::user_memory_is_sent",
            "raw::memory_of_others_is_refused",
            "raw::memory_registered_by_address_is_sent_and_received",
        ],
    ),
    rule(
        "VipSetMemAttributes",
        &[
            "registration::set_attributes_ends_the_old_handle",
            "registration::set_attributes_changes_rights",
            "registration::set_attributes_that_fails_changes_nothing",
            "registration::regions_change_their_tag",
        ],
    ),
    rule("VipQueryMem", &["registration::memory_tells_its_attributes"]),
    rule(
        "VipPostSend, VipPostRecv",
        &["transfer::messages_of_all_sizes", "raw::raw_posts_are_reported_by_their_ids"],
    ),
    rule(
        "VipSendDone, VipRecvDone, VipSendWait, VipRecvWait",
        &["completion::sends_are_reported_in_order", "completion::waits_end_at_their_deadline"],
    ),
    rule("VipSendNotify", &["notify::a_handler_sees_the_end_of_a_send"])
        .note("`Cno` serves a completion queue: a work queue that is notified of has one of its own"),
    rule(
        "VipRecvNotify",
        &["notify::a_handler_sees_each_receive", "notify::a_handler_that_breaks_was_called_once"],
    ),
    rule(
        "VipCQNotify",
        &[
            "notify::a_handler_sees_all_entries_of_a_queue",
            "notify::stop_gives_queue_and_state_back",
            "notify::stop_ends_a_flood",
            "notify::stop_does_not_wait_beyond_its_deadline",
        ],
    ),
    rule(
        "VipCreateCQ, VipDestroyCQ",
        &[
            "limits::completion_queues_are_recycled",
            "queues::the_table_of_completion_queues_fills_and_recovers",
            "queues::a_size_that_can_never_be_is_refused",
        ],
    ),
    rule("VipResizeCQ", &["queues::resize_makes_room_and_never_drops"]),
    rule(
        "VipCQDone, VipCQWait",
        &[
            "completion::arrivals_are_named_with_their_context",
            "completion::an_empty_queue_names_nothing_until_the_deadline",
            "completion::no_post_is_slept_through",
            "queues::threads_take_turns_on_one_queue",
        ],
    ),
    rule(
        "VipNSInit, VipNSShutdown",
        &["names::a_table_reads_as_it_was_written", "names::a_name_outlives_its_nic_and_leads_nowhere"],
    )
    .note("making a `HostTable`, and dropping it"),
    rule(
        "VipNSGetHostByName",
        &["names::a_name_leads_to_a_connection", "names::an_index_tells_a_hosts_nics_apart"],
    ),
    rule("VipNSGetHostByAddr", &["names::an_address_leads_back_to_its_name"]),
];

pub const CODES: &[Rule] = &[
    rule("SUCCESS", &["transfer::messages_of_all_sizes"]),
    rule(
        "NOT_DONE",
        &["peer::a_peer_request_does_not_wait", "reliability::a_send_is_done_when_it_has_arrived"],
    ),
    rule(
        "INVALID_PARAMETER",
        &[
            "connection::a_discriminator_too_long_is_refused",
            "connection::private_data_too_long_are_refused_by_connect",
            "connection::private_data_too_long_are_refused_by_accept",
            "transfer::segments_past_their_region",
            "completion::a_queue_of_another_nic_is_refused_by_connect",
            "queues::a_size_that_can_never_be_is_refused",
        ],
    ),
    rule(
        "ERROR_RESOURCE",
        &[
            "limits::the_send_queue_fills_and_recovers",
            "limits::the_outbox_fills_and_recovers",
            "queues::a_full_queue_attaches_no_more",
            "registration::registrations_in_use_are_bounded",
        ],
    ),
    rule("TIMEOUT", &["connection::an_unanswered_request_times_out", "peer::a_lone_peer_request_times_out"]),
    rule("REJECT", &["connection::a_rejection_carries_its_reason"]),
    rule("INVALID_RELIABILITY_LEVEL", &["connection::different_reliability_levels_never_connect"]),
    rule("INVALID_MTU", &["limits::a_transfer_too_long_is_refused"])
        .note("no VI asks for a transfer size: the NIC's `max_transfer` is everyone's, and a post beyond it is refused"),
    absent("INVALID_QOS", "a VI has no quality of service to ask for: nothing can raise it"),
    rule(
        "INVALID_PTAG",
        &["memory::a_send_of_another_tag_is_refused", "registration::tags_that_are_none_are_refused"],
    ),
    rule(
        "INVALID_RDMAREAD",
        &["read::rdma_read_is_there_or_unsupported", "read::unreliable_vis_do_not_read"],
    ),
    rule("DESCRIPTOR_ERROR", &["limits::too_many_segments_are_refused", "raw::memory_of_others_is_refused"])
        .note("descriptors are built by the library; what can still be wrong with one is an invalid parameter"),
    rule(
        "INVALID_STATE",
        &["states::every_call_in_every_state", "memory::write_while_not_connected"],
    ),
    rule("ERROR_NAMESERVICE", &["names::unknown_names_indices_and_addresses_are_errors"]),
    rule("NO_MATCH", &["connection::nobody_listens", "connection::nobody_listens_any_more"]),
];

pub const BITS: &[Rule] = &[
    rule(
        "VIP_STATUS_DONE",
        &["statuses::done_unreliable", "statuses::done_delivery", "statuses::done_reception"],
    ),
    rule(
        "VIP_STATUS_FORMAT_ERROR",
        &["statuses::refused_unreliable", "statuses::refused_delivery", "statuses::refused_reception"],
    )
    .note("known at the post, which is refused"),
    rule(
        "VIP_STATUS_PROTECTION_ERROR",
        &[
            "statuses::refused_delivery",
            "memory::a_send_of_another_tag_is_refused",
            "memory::a_receive_of_another_tag_is_refused",
            "raw::memory_of_others_is_refused",
        ],
    )
    .note("known at the post, which is refused"),
    rule(
        "VIP_STATUS_LENGTH_ERROR",
        &[
            "errors::a_receive_too_short_is_a_length_error",
            "raw::a_raw_receive_too_short_is_a_length_error",
            "reliability::an_unreliable_message_too_long_is_a_length_error_only",
        ],
    ),
    absent(
        "VIP_STATUS_PARTIAL_ERROR",
        "a transfer that broke off is a transport error, its length 0: nothing raises it",
    ),
    rule(
        "VIP_STATUS_DESC_FLUSHED_ERROR",
        &[
            "connection::disconnect_flushes_receives_in_order",
            "statuses::flushed_unreliable",
            "statuses::flushed_delivery",
            "statuses::flushed_reception",
        ],
    ),
    rule("VIP_STATUS_TRANSPORT_ERROR", &["errors::an_error_reports_every_send"])
        .tests(&[
            "transports/sim/tests/faults.rs::a_lost_descriptor_ends_as_a_transport_error",
            "transports/sim/tests/reception.rs::a_lost_message_is_a_transport_error",
        ])
        .note("the tests lose a connection, which only some transports can be made to"),
    rule(
        "VIP_STATUS_RDMA_PROT_ERROR",
        &[
            "statuses::protected_unreliable",
            "statuses::protected_delivery",
            "statuses::protected_reception",
            "memory::write_past_the_end",
            "read::read_past_the_end",
        ],
    ),
    rule(
        "VIP_STATUS_REMOTE_DESC_ERROR",
        &[
            "reliability::a_send_that_finds_no_receive_is_a_remote_descriptor_error",
            "reliability::a_send_that_finds_a_short_receive_is_a_remote_descriptor_error",
            "reliability::a_write_whose_immediate_data_find_no_receive",
        ],
    ),
];
