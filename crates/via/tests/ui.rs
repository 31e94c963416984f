//! Misuses of memory in flight, or of objects of the VI layer, that do not compile in safe code.

#[macro_use]
mod pairs;

pairs! {
    descriptor_after_post_send,
    descriptor_after_post_receive,
    region_read_while_posted,
    region_written_while_posted,
    segment_read_while_posted,
    completion_outlived_by_its_bytes,
    block_after_hand_off,
    block_written_while_handed_off,
    lent_outlived_by_its_bytes,
    lent_read_after_refuse,
    window_has_no_slice,
    window_after_revoke,
    settled_outlived_by_its_bytes,
    vi_used_by_two_threads,
    cq_used_by_two_threads,
    vi_is_not_shared,
    cq_is_not_shared,
    request_accepted_twice,
    handler_of_one_thread_only,
    device_without_the_vi_layer,
    device_taken_in_safe_code,
    endpoint_implemented_in_safe_code,
}
