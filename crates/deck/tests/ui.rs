//! Compile-fail tests: safe code that misuses posted or received messages does not compile.

udeck_test_kit::pairs! {
    buf_after_post,
    buf_written_while_posted,
    external_buf_after_post,
    message_after_post,
    type_without_derive,
    mailbox_of_a_vector,
    mailbox_of_a_flag,
    value_is_posted_as_a_slice,
    struct_is_packed_as_bytes,
    message_outlived_by_an_item,
    received_outlived_by_its_elements,
    received_is_read_only,
    received_outlived_by_an_item,
    nested_message_outlived_by_an_item,
    postbox_is_not_shared,
    mailbox_is_not_shared,
    world_after_finish,
}
