//! NAS FT over mailboxes.

use super::*;

const PROTOCOLS: [&str; 7] = ["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake", "hand-off"];

/// Runs with these arguments, without deckrun if on one rank.
fn run(ranks: usize, arguments: &[&str]) -> Ended {
    let program = Bin::nas_ft();
    let job = if ranks == 1 { program.alone() } else { program.ranks(ranks) };
    job.args(arguments).run()
}

/// Checks the result by NPB's own checksums.
fn verifies(ranks: usize, arguments: &[&str]) -> Ended {
    let ended = run(ranks, arguments).ok();
    assert_eq!(value(ended.line_with("Verification ")), "SUCCESSFUL", "{ended}");
    ended
}

/// Value behind the `=` of a summary line.
fn value(line: &str) -> &str {
    line.split_once('=').map_or("", |(_, value)| value.trim())
}

#[test]
fn class_s_verifies_alone() {
    verifies(1, &["--class", "S"]);
}

#[test]
fn class_s_verifies_on_2_ranks() {
    verifies(2, &["--class", "S"]);
}

#[test]
fn class_s_verifies_on_4_ranks() {
    verifies(4, &["--class", "S"]);
}

#[test]
fn class_w_verifies_on_2_ranks() {
    verifies(2, &["--class", "W"]);
}

/// Neither y nor z is divisible by six: blocks differ in length, and a rank's planes differ from its pencils.
#[test]
fn class_w_verifies_on_6_ranks() {
    verifies(6, &["--class", "W"]);
}

/// The ranks form an array of 2 x 3: pairs exchange x for y, threes y for z.
#[test]
fn class_s_verifies_in_pencils_on_6_ranks() {
    let ended = verifies(6, &["--class", "S", "--layout", "pencil"]);
    ended.line_with("Processor array     :          2x  3");
}

#[test]
fn a_loop_of_transforms_gives_the_input_back() {
    let ended = run(3, &["--class", "S", "--transforms", "2", "--profile"]).ok();
    ended.line_with("3 ranks, 2 rounds: forward");
    ended.line_with("memory, while all ranks copy");
}

#[test]
fn every_order_verifies() {
    for order in ["triangle", "tournament", "hypercube"] {
        verifies(4, &["--class", "S", "--order", order]);
    }
    for order in ["triangle", "tournament"] {
        verifies(3, &["--class", "S", "--order", order]);
    }
}

#[test]
fn every_protocol_verifies() {
    for protocol in PROTOCOLS {
        verifies(2, &["--class", "S", "--protocol", protocol]);
    }
}

/// A verification that cannot fail would prove nothing.
#[test]
fn an_altered_alpha_is_unsuccessful() {
    let ended = run(2, &["--class", "S", "--alpha", "1.1e-6"]).fails();
    assert_eq!(value(ended.line_with("Verification ")), "UNSUCCESSFUL", "{ended}");
}

/// Compares the library's own count of the payload with the bytes that the algorithm must move: in each
/// transpose all points of 16 bytes except those that stay, whose y and z a rank has both in planes and in
/// pencils. There are two transposes in the starts and one in each of six iterations.
#[test]
fn mailboxes_carry_every_transposed_byte() {
    const EDGE: u64 = 64;
    const TRANSPOSES: u64 = 2 + 6;
    let shares: [&[u64]; 4] = [&[64], &[32, 32], &[21, 21, 22], &[16, 16, 16, 16]];
    for shares in shares {
        let ended = verifies(shares.len(), &["--class", "S"]);
        let stay: u64 = shares.iter().map(|share| share * share * EDGE).sum();
        let expected = TRANSPOSES * 16 * (EDGE.pow(3) - stay);
        let printed = value(ended.line_with("Transposed "));
        let bytes = printed.split_whitespace().next().and_then(|number| number.parse().ok());
        assert_eq!(bytes, Some(expected), "{ended}");
    }
}

#[test]
fn an_order_that_cannot_serve_the_number_of_ranks_is_refused_with_the_reason() {
    let ended = run(3, &["--class", "S", "--order", "hypercube"]).fails();
    assert!(ended.stderr.contains("power of two"), "{ended}");
}

#[test]
fn more_ranks_than_the_grid_has_planes_are_refused_with_the_most_it_can_take() {
    let ended = run(33, &["--class", "W", "--layout", "slab"]).fails();
    assert!(ended.stderr.contains("at most 32"), "{ended}");
}
