//! Table of lies of the NIC below, and the cases for uDAPL that notice them.

use udeck_conformance::{Case, Fabric};
use udeck_faults::{BrokenPromises, When};

use crate::cases;
use crate::noticed;

const fn case(name: &'static str, run: fn(&dyn Fabric)) -> Case {
    Case { topic: "dat-lies", name, needs: &[], run }
}

pub const CASES: &[Case] = &[
    case("a_dropped_message_is_noticed", dropped),
    case("a_message_that_comes_twice_is_noticed", doubled),
    case("messages_out_of_order_are_noticed", reordered),
    case("an_altered_bit_is_noticed", altered),
    case("a_forgotten_wake_up_is_noticed", forgotten),
    case("a_dropped_answer_is_noticed", without_an_answer),
    case("a_dropped_write_is_noticed", without_a_write),
];

/// Chooses the tenth message, so late that the case works at first, and notices the lie itself.
fn tenth() -> When {
    When::Numbers(vec![10])
}

fn dropped(fabric: &dyn Fabric) {
    let lies = BrokenPromises { drop: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
}

fn doubled(fabric: &dyn Fabric) {
    let lies = BrokenPromises { duplicate: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    // The duplicate is the last of a batch: nothing arrives in the wrong place, but one message arrives again.
    let lies = BrokenPromises { duplicate: When::Numbers(vec![15]), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "message 15 came again");
}

fn reordered(fabric: &dyn Fabric) {
    let lies = BrokenPromises { reorder: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
}

fn altered(fabric: &dyn Fabric) {
    // The message is so long that the altered bit is unlikely to be in its header.
    let lies = BrokenPromises { corrupt: When::Numbers(vec![10]), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_of_all_sizes", "instead of");
}

fn forgotten(fabric: &dyn Fabric) {
    // Several wake-ups are forgotten, not one: a queue may be named without need, and forgetting that does no
    // harm.
    let lies = BrokenPromises { forget_wakeup: When::Chance(0.1), ..BrokenPromises::default() };
    noticed(fabric, &lies, "no_post_is_slept_through", "a receive is over");
}

fn without_an_answer(fabric: &dyn Fabric) {
    let lies = BrokenPromises { drop: When::Numbers(vec![4]), ..BrokenPromises::default() };
    noticed(fabric, &lies, "both_read_at_a_time", "a request is over");
}

/// A message behind a write has arrived, but the write has not.
fn without_a_write(fabric: &dyn Fabric) {
    let lies = BrokenPromises { drop: When::Numbers(vec![0]), ..BrokenPromises::default() };
    noticed(fabric, &lies, "write_a_whole_window", "instead of");
}

fn noticed(fabric: &dyn Fabric, lies: &BrokenPromises, name: &str, words: &str) {
    let all = cases::all();
    let case = all.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is named {name}"));
    noticed::noticed(fabric, lies, case, words);
}
