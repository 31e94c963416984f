//! VIA's rules, and the cases that hold transports to each. `--rules` prints it; a test checks that every case exists.
//!
//! To add a rule, or a case to one: a row, or a name in it. Cases are named `topic::case`.

/// A rule, and the cases that fail when it is broken.
pub struct Rule {
    /// In the specification's words, or nearly.
    pub rule: &'static str,
    /// `topic::case` each; one at least.
    pub cases: &'static [&'static str],
}

const fn rule(rule: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { rule, cases }
}

/// All of them, by chapter.
pub const RULES: &[(&str, &[Rule])] = &[
    ("Reliability levels: the properties of the specification's table", RELIABILITY),
    ("Work queues, descriptors, completion", QUEUES),
    ("Connections and states", CONNECTIONS),
    ("Memory", MEMORY),
    ("VIPL's calls", CALLS),
    ("VIPL's return codes and VIA's status bits", CODES),
    ("Resources", RESOURCES),
    ("Not VIA's", OURS),
];

const RELIABILITY: &[Rule] = &[
    rule(
        "corrupt data are detected, at every level",
        &["transfer::messages_of_all_sizes", "transfer::messages_of_all_sizes_by_reliable_reception"],
    ),
    rule(
        "unreliable delivery: at most once, losses unnoticed, the connection stands",
        &[
            "reliability::an_unreliable_message_without_a_receive_is_dropped",
            "reliability::an_unreliable_message_too_long_is_a_length_error_only",
            "reliability::dropped_messages_hide_nothing_behind_them",
        ],
    ),
    rule(
        "reliable levels: exactly once, in order",
        &[
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
        ],
    ),
    rule(
        "RDMA write: every level",
        &[
            "memory::write_a_whole_window",
            "reliability::a_write_without_immediate_data_needs_no_receive",
            "reliability::an_unreliable_write_keeps_its_data_when_the_immediate_is_dropped",
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

const QUEUES: &[Rule] = &[
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
            "connection::disconnect_flushes_receives_in_order",
            "connection::the_peers_end_flushes_receives_in_order",
            "raw::raw_receives_are_flushed",
        ],
    ),
    rule(
        "the memory of a posted descriptor is the NIC's until it is reported",
        &[
            "transfer::descriptors_come_back_and_serve_again",
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
            "many::every_vi_of_many_is_served",
            "many::a_flood_is_served_fairly",
            "many::a_quiet_vi_is_heard_in_a_flood",
            "flood::many_to_one_all_arrive_in_order",
        ],
    ),
];

const CONNECTIONS: &[Rule] = &[
    rule(
        "each call is legal in some states only, and fails without effect in the others",
        &[
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
            "connection::a_vi_connects_again",
            "errors::one_broken_connection_leaves_the_others_alone",
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

const MEMORY: &[Rule] = &[
    rule(
        "memory and VI carry the same protection tag",
        &[
            "memory::a_send_of_another_tag_is_refused",
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
        "deregistered memory is not reached any more",
        &[
            "memory::write_to_a_revoked_window",
            "memory::write_to_a_dropped_window",
            "memory::a_handle_is_not_used_again_at_once",
            "read::a_revoked_window_is_not_read",
            "read::revoke_waits_for_readers",
        ],
    ),
    rule(
        "RDMA-written data are visible with the immediate data that follow them",
        &["memory::data_are_visible_when_the_immediate_data_are"],
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

const CALLS: &[Rule] = &[
    rule(
        "VipQueryNic",
        &["attributes::limits_allow_a_program_to_run", "attributes::every_nic_has_an_address_of_its_own"],
    ),
    rule("VipCreatePtag, VipDestroyPtag", &["attributes::ptags_are_unique"]),
    rule(
        "VipCreateVi, VipDestroyVi",
        &[
            "attributes::reliability_levels_are_there_or_unsupported",
            "attributes::rdma_write_is_there_or_unsupported",
            "connection::a_dropped_vi_disconnects",
        ],
    ),
    rule(
        "VipQueryVi, VipSetViAttributes",
        &[
            "attributes::a_vi_keeps_its_settings",
            "attributes::an_idle_vi_changes_its_settings",
            "attributes::settings_change_while_idle_and_empty_only",
            "attributes::queue_lengths_count_what_is_posted_and_not_reported",
        ],
    ),
    rule("VipConnectWait", &["connection::requests_wait_in_order", "connection::a_listener_times_out"]),
    rule(
        "VipConnectRequest",
        &["connection::private_data_travel_both_ways", "connection::an_unanswered_request_times_out"],
    ),
    rule("VipConnectAccept", &["connection::private_data_travel_both_ways"]),
    rule("VipConnectReject", &["connection::a_rejection_carries_its_reason"]),
    rule("VipDisconnect", &["connection::states_follow_connect_and_disconnect"]),
    rule(
        "VipConnectPeerRequest, VipConnectPeerDone, VipConnectPeerWait",
        &["peer::both_ask_and_are_connected", "peer::a_peer_request_does_not_wait"],
    ),
    rule(
        "VipRegisterMem, VipDeregisterMem",
        &[
            "memory::regions_are_zeroed_aligned_and_disjoint",
            "memory::recycled_regions_are_zeroed",
            "memory::revoke_gives_the_bytes",
            "raw::memory_of_others_is_refused",
        ],
    ),
    rule("VipPostSend, VipPostRecv", &["transfer::messages_of_all_sizes"]),
    rule(
        "VipSendDone, VipRecvDone, VipSendWait, VipRecvWait",
        &["completion::sends_are_reported_in_order", "completion::waits_end_at_their_deadline"],
    ),
    rule("VipCreateCQ, VipDestroyCQ", &["limits::completion_queues_are_recycled"]),
    rule(
        "VipCQDone, VipCQWait",
        &[
            "completion::arrivals_are_named_with_their_context",
            "completion::an_empty_queue_names_nothing_until_the_deadline",
            "completion::no_post_is_slept_through",
        ],
    ),
];

const CODES: &[Rule] = &[
    rule("SUCCESS, and DONE", &["transfer::messages_of_all_sizes"]),
    rule(
        "NOT_DONE",
        &["peer::a_peer_request_does_not_wait", "reliability::a_send_is_done_when_it_has_arrived"],
    ),
    rule(
        "INVALID_PARAMETER, DESCRIPTOR_ERROR, and FORMAT_ERROR",
        &[
            "limits::too_many_segments_are_refused",
            "connection::a_discriminator_too_long_is_refused",
            "connection::private_data_too_long_are_refused_by_connect",
            "connection::private_data_too_long_are_refused_by_accept",
            "transfer::segments_past_their_region",
            "completion::a_queue_of_another_nic_is_refused_by_connect",
        ],
    ),
    rule(
        "ERROR_RESOURCE",
        &["limits::the_send_queue_fills_and_recovers", "limits::the_outbox_fills_and_recovers"],
    ),
    rule("TIMEOUT", &["connection::an_unanswered_request_times_out", "peer::a_lone_peer_request_times_out"]),
    rule("REJECT", &["connection::a_rejection_carries_its_reason"]),
    rule("INVALID_RELIABILITY_LEVEL", &["connection::different_reliability_levels_never_connect"]),
    rule("INVALID_MTU: a transfer too long is refused", &["limits::a_transfer_too_long_is_refused"]),
    rule("INVALID_PTAG, and PROTECTION_ERROR", &["memory::a_send_of_another_tag_is_refused"]),
    rule(
        "INVALID_RDMAREAD",
        &["read::rdma_read_is_there_or_unsupported", "read::unreliable_vis_do_not_read"],
    ),
    rule(
        "INVALID_STATE",
        &["connection::a_connected_vi_cannot_connect", "memory::write_while_not_connected"],
    ),
    rule("NO_MATCH", &["connection::nobody_listens", "connection::nobody_listens_any_more"]),
    rule(
        "LENGTH_ERROR",
        &[
            "errors::a_receive_too_short_is_a_length_error",
            "raw::a_raw_receive_too_short_is_a_length_error",
            "reliability::an_unreliable_message_too_long_is_a_length_error_only",
        ],
    ),
    rule("DESC_FLUSHED_ERROR", &["connection::disconnect_flushes_receives_in_order"]),
    rule("TRANSPORT_ERROR", &["errors::an_error_reports_every_send"]),
    rule("RDMA_PROT_ERROR", &["memory::write_past_the_end", "read::read_past_the_end"]),
    rule(
        "REMOTE_DESC_ERROR",
        &[
            "reliability::a_send_that_finds_no_receive_is_a_remote_descriptor_error",
            "reliability::a_send_that_finds_a_short_receive_is_a_remote_descriptor_error",
        ],
    ),
];

const RESOURCES: &[Rule] = &[
    rule(
        "each is bounded, exhaustion is an error, and its end is the end of it",
        &[
            "limits::the_send_queue_fills_and_recovers",
            "limits::the_receive_queue_fills_and_recovers",
            "limits::the_connection_fills_and_recovers",
            "limits::the_outbox_fills_and_recovers",
            "limits::the_landing_fills_and_recovers",
            "limits::the_table_of_windows_fills_and_recovers",
            "limits::a_request_beyond_all_memory_is_refused",
        ],
    ),
    rule(
        "a sender that is too fast is held back",
        &[
            "flood::a_flood_of_short_messages_is_held_back",
            "flood::a_flood_of_long_messages_is_held_back",
            "completion::room_to_send_is_named",
        ],
    ),
    rule("connections leave nothing behind", &["many::connections_leave_nothing_behind"]),
];

const OURS: &[Rule] = &[
    rule(
        "a job's secret is the condition of every connection",
        &["connection::different_secrets_never_connect"],
    ),
    rule(
        "a received message is the sender's own memory until dropped",
        &["lent::a_handed_off_block_arrives_with_its_head", "lent::hand_off_copies_nothing"],
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
        &["lent::a_hoarding_receiver_does_not_starve_its_sender"],
    ),
    rule("errors say what happened", &["errors::errors_say_what_happened"]),
];

/// Prints the table.
pub fn print() {
    for (chapter, rules) in RULES {
        println!("{chapter}");
        for Rule { rule, cases } in *rules {
            println!("  {rule}\n    {}", cases.join("\n    "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_is_held_by_cases_that_exist() {
        let all: BTreeSet<String> =
            crate::cases::all().map(|case| format!("{}::{}", case.topic, case.name)).collect();
        for Rule { rule, cases } in RULES.iter().flat_map(|(_, rules)| *rules) {
            assert!(!cases.is_empty(), "no case holds transports to: {rule}");
            for case in *cases {
                assert!(all.contains(*case), "no case is named {case}, which holds transports to: {rule}");
            }
        }
    }

    /// Which topics hold transports to nothing that the table knows?
    #[test]
    fn every_topic_is_in_the_table() {
        let named: BTreeSet<&str> = RULES
            .iter()
            .flat_map(|(_, rules)| *rules)
            .flat_map(|rule| rule.cases)
            .filter_map(|case| case.split("::").next())
            .collect();
        let missing: BTreeSet<&str> =
            crate::cases::all().map(|case| case.topic).filter(|topic| !named.contains(topic)).collect();
        assert!(missing.is_empty(), "topics without a rule in the table: {missing:?}");
    }
}
