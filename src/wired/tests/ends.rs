//! Single cases: how posts and connections end.
