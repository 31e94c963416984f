//! Misuse of memory that was posted, lent or opened to peers: safe code that must not compile.

udeck_test_kit::pairs! {
    lmr_after_post,
    lmr_after_post_to_a_shared_queue,
    lmr_read_while_posted,
    rmr_after_post_bind,
    request_accepted_twice,
    shared_memory_has_no_slices,
}
