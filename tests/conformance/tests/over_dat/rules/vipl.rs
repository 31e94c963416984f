//! VIPL's calls, codes and bits, if uDAPL has a counterpart.

use super::{Asked, asked, does_not_meet};

/// Rules of the chapters of `udeck_conformance::rules::vipl`. (uDAPL's own calls and their refusals:
/// tests/bindings/dat/c/refusals.c.)
pub const ASKED: &[Asked] = &[
    asked("VipOpenNic, VipCloseNic", &["orphans::an_end_point_outlives_its_adapter_and_zone"])
        .note("dat_ia_open, dat_ia_close"),
    asked("VipQueryNic", &["limits::a_transfer_too_long_is_refused", "names::an_address_is_a_value"])
        .note("dat_ia_query"),
    does_not_meet("VipQuerySystemManagementInfo", "uDAPL has nothing like it"),
    asked("VipErrorCallback", &["memory::write_past_the_end"])
        .tests(&["tests/bindings/dat/c/events.c::overflows"])
        .note("connection events, and the asynchronous dispatcher"),
    asked("VipCreatePtag", &["memory::requests_from_memory_of_another_zone_are_refused"])
        .note("dat_pz_create"),
    asked("VipDestroyPtag", &["orphans::an_end_point_outlives_its_adapter_and_zone"]).note("dat_pz_free"),
    asked("VipCreateVi, VipDestroyVi", &["limits::a_queue_that_can_never_be_is_refused"])
        .note("dat_ep_create, dat_ep_free"),
    asked("VipQueryVi", &["states::states_follow_connect_and_disconnect"])
        .note("dat_ep_query, dat_ep_get_status"),
    asked("VipSetViAttributes", &[])
        .tests(&["bindings/dat/api/tests/qos.rs::attributes_change_while_there_is_no_connection"])
        .note("dat_ep_modify"),
    asked("VipConnectWait", &["connection::private_data_travel_both_ways"])
        .note("dat_psp_create, and a wait for its dispatcher"),
    asked(
        "VipConnectRequest",
        &["connection::private_data_travel_both_ways", "connection::an_unanswered_request_times_out"],
    )
    .note("dat_ep_connect"),
    asked(
        "VipConnectAccept",
        &["connection::private_data_travel_both_ways", "connection::private_data_too_long_are_refused"],
    )
    .note("dat_cr_accept"),
    asked("VipConnectReject", &["connection::a_rejection_carries_its_reason"]).note("dat_cr_reject"),
    asked("VipDisconnect", &["states::states_follow_connect_and_disconnect"]).note("dat_ep_disconnect"),
    does_not_meet("VipConnectPeerRequest", "dat_ep_common_connect is not implemented"),
    does_not_meet("VipConnectPeerDone", "dat_ep_common_connect is not implemented"),
    does_not_meet("VipConnectPeerWait", "dat_ep_common_connect is not implemented"),
    asked(
        "VipRegisterMem, VipDeregisterMem",
        &["memory::memory_of_the_programs_own_comes_back", "memory::write_to_memory_that_was_freed"],
    )
    .note("dat_lmr_create, dat_lmr_free"),
    asked("VipSetMemAttributes", &[])
        .tests(&[
            "bindings/dat/api/tests/rmr.rs::a_peer_has_the_windows_rights_and_no_more",
            "bindings/dat/api/tests/rmr.rs::a_window_opens_and_closes_in_order_with_messages",
        ])
        .note("an LMR keeps its rights; an RMR is bound with others"),
    does_not_meet("VipQueryMem", "dat_lmr_query says what the program has said; tests/bindings/dat/c/memory.c has it"),
    asked("VipPostSend, VipPostRecv", &["transfer::messages_of_all_sizes"])
        .note("dat_ep_post_send, dat_ep_post_rdma_write, dat_ep_post_rdma_read, dat_ep_post_recv"),
    asked(
        "VipSendDone, VipRecvDone, VipSendWait, VipRecvWait",
        &["completion::sends_are_reported_in_order", "events::a_wait_ends_at_its_deadline"],
    )
    .note("dat_evd_dequeue, dat_evd_wait"),
    asked("VipSendNotify", &[]).tests(&["tests/bindings/dat/c/events.c::calls_an_agent"]).note("a CNO's agent"),
    asked("VipRecvNotify", &[]).tests(&["tests/bindings/dat/c/events.c::calls_an_agent"]).note("a CNO's agent"),
    asked("VipCQNotify", &[])
        .tests(&[
            "bindings/dat/api/tests/cno.rs::each_dispatcher_is_told_once_and_only_while_it_is_enabled",
            "tests/bindings/dat/c/events.c::notifies",
            "tests/bindings/dat/c/orders.c::ends_with_its_agent",
        ])
        .note("a CNO, with an agent or without"),
    asked("VipCreateCQ, VipDestroyCQ", &["orphans::a_dispatcher_takes_along_what_is_in_it"])
        .note("dat_evd_create, dat_evd_free"),
    asked("VipResizeCQ", &[])
        .tests(&["bindings/dat/api/tests/cno.rs::a_dispatcher_has_the_room_that_it_is_given"])
        .note("dat_evd_resize"),
    asked(
        "VipCQDone, VipCQWait",
        &[
            "events::no_post_is_slept_through",
            "events::a_wait_is_for_as_many_as_it_says",
            "events::who_waits_is_told_to_stop",
            "events::one_waits_at_a_time",
        ],
    )
    .note("dat_evd_dequeue, dat_evd_wait: one thread waits at a time"),
    does_not_meet(
        "VipNSInit, VipNSShutdown",
        "an adapter has its directory from when it opens; programs through the registry have one in tests/bindings/dat",
    ),
    asked("VipNSGetHostByName", &["names::an_adapter_without_a_directory_finds_no_host"])
        .tests(&["tests/bindings/dat/own.rs::two_ranks_talk"])
        .note("hosts are IP addresses, which the connecting call looks up"),
    does_not_meet("VipNSGetHostByAddr", "an address is what uDAPL has of a host"),
    // ---- return codes ----
    asked("SUCCESS", &["transfer::messages_of_all_sizes"]),
    asked("NOT_DONE", &["events::events_come_out_in_order"]).note("DAT_QUEUE_EMPTY: no event"),
    asked(
        "INVALID_PARAMETER",
        &[
            "limits::a_queue_that_can_never_be_is_refused",
            "limits::too_many_segments_are_refused",
            "names::an_adapter_without_a_directory_finds_no_host",
        ],
    ),
    asked(
        "ERROR_RESOURCE",
        &[
            "limits::the_request_queue_fills_and_recovers",
            "limits::the_receive_queue_fills_and_recovers",
            "events::events_are_bounded",
        ],
    )
    .note("DAT_INSUFFICIENT_RESOURCES, DAT_QUEUE_FULL"),
    asked("TIMEOUT", &["connection::an_unanswered_request_times_out", "events::a_wait_ends_at_its_deadline"])
        .note("DAT_TIMEOUT_EXPIRED of a wait, DAT_CONNECTION_EVENT_TIMED_OUT of a request"),
    asked("REJECT", &["connection::a_rejection_carries_its_reason"])
        .note("DAT_CONNECTION_EVENT_PEER_REJECTED"),
    does_not_meet("INVALID_RELIABILITY_LEVEL", "there is one"),
    asked("INVALID_MTU", &["limits::a_transfer_too_long_is_refused"]).note("DAT_LENGTH_ERROR, at the post"),
    asked("INVALID_QOS", &[])
        .tests(&["bindings/dat/api/tests/qos.rs::a_quality_is_a_level_of_the_interface_below_where_it_has_levels"])
        .note("a quality is a level; where there are none, what is asked for in vain is said, and queries say what it has"),
    asked("INVALID_PTAG", &["memory::requests_from_memory_of_another_zone_are_refused"])
        .note("DAT_PROTECTION_VIOLATION"),
    does_not_meet("INVALID_RDMAREAD", "every end point reads"),
    asked(
        "DESCRIPTOR_ERROR",
        &["limits::too_many_segments_are_refused", "memory::rdma_longer_than_what_it_names_is_refused"],
    ),
    asked("INVALID_STATE", &["states::an_unconnected_end_point_takes_receives_but_no_requests"])
        .note("DAT_INVALID_STATE, with the state"),
    asked("ERROR_NAMESERVICE", &["names::an_adapter_without_a_directory_finds_no_host"]),
    asked("NO_MATCH", &["connection::nobody_listens"]).note("DAT_CONNECTION_EVENT_NON_PEER_REJECTED"),
    // ---- status bits ----
    asked("VIP_STATUS_DONE", &["statuses::a_completion_says_what_was_done"]).note("DAT_DTO_SUCCESS"),
    does_not_meet("VIP_STATUS_FORMAT_ERROR", "such work is refused when it is posted"),
    asked(
        "VIP_STATUS_PROTECTION_ERROR",
        &["memory::a_receive_into_memory_of_another_zone_breaks_the_connection"],
    )
    .note("DAT_DTO_ERR_LOCAL_PROTECTION; of requests it is known at the post"),
    asked("VIP_STATUS_LENGTH_ERROR", &["statuses::a_receive_too_short_is_a_length_error"])
        .note("DAT_DTO_ERR_LOCAL_LENGTH"),
    does_not_meet("VIP_STATUS_PARTIAL_ERROR", "nothing raises it, as below"),
    asked(
        "VIP_STATUS_DESC_FLUSHED_ERROR",
        &[
            "connection::disconnect_flushes_receives_in_order",
            "states::what_is_posted_to_an_ended_end_point_is_flushed",
        ],
    )
    .note("DAT_DTO_ERR_FLUSHED"),
    asked("VIP_STATUS_TRANSPORT_ERROR", &[])
        .tests(&["tests/bindings/dat/own.rs::a_rank_dies"])
        .note("DAT_DTO_ERR_TRANSPORT: a peer has to die for it"),
    asked(
        "VIP_STATUS_RDMA_PROT_ERROR",
        &["memory::read_past_the_end", "memory::write_past_the_end", "memory::rights_are_kept_apart"],
    )
    .note("DAT_DTO_ERR_REMOTE_ACCESS of a read; of a write, whose data have left, a broken connection"),
    asked("VIP_STATUS_REMOTE_DESC_ERROR", &["statuses::a_receive_too_short_is_a_length_error"])
        .note("the message has left: both ends get DAT_CONNECTION_EVENT_BROKEN"),
];
