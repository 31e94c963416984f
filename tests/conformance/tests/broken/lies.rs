//! Table of lies and the cases that notice them.

use udeck_conformance::{Case, Fabric, cases};
use udeck_faults::{BrokenPromises, When};
use udeck_via::Caps;

const fn case(name: &'static str, needs: &'static [Caps], run: fn(&dyn Fabric)) -> Case {
    Case { topic: "lies", name, needs, run }
}

pub const CASES: &[Case] = &[
    case("a_dropped_message_is_noticed", &[], dropped),
    case("a_message_that_comes_twice_is_noticed", &[], doubled),
    case("messages_out_of_order_are_noticed", &[], reordered),
    case("an_altered_bit_is_noticed", &[], altered),
    case("a_send_done_while_it_is_read_is_noticed", &[Caps::HAND_OFF], done_while_read),
    case("a_send_done_before_it_arrived_is_noticed", &[Caps::RELIABLE_RECEPTION], done_before_arrival),
    case("a_forgotten_wake_up_is_noticed", &[], forgotten),
];

/// Chooses the tenth message, so late that the case works at first, and notices the lie itself.
fn tenth() -> When {
    When::Numbers(vec![10])
}

fn always() -> When {
    When::Chance(1.0)
}

fn dropped(fabric: &dyn Fabric) {
    let lies = BrokenPromises { drop: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
}

fn doubled(fabric: &dyn Fabric) {
    let lies = BrokenPromises { duplicate: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
    // The duplicate is the last of a batch: nothing arrives in the wrong place, but one message arrives again.
    let lies = BrokenPromises { duplicate: When::Numbers(vec![15]), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "message 15 came again");
}

fn reordered(fabric: &dyn Fabric) {
    let lies = BrokenPromises { reorder: tenth(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
}

fn altered(fabric: &dyn Fabric) {
    // One message travels in its descriptor, and one is lent.
    for number in [3, 10] {
        let lies = BrokenPromises { corrupt: When::Numbers(vec![number]), ..BrokenPromises::default() };
        noticed(fabric, &lies, "messages_of_all_sizes", "instead of");
        noticed(fabric, &lies, "posted_sends_reach_lent_receivers", "instead of");
    }
}

fn done_while_read(fabric: &dyn Fabric) {
    let lies = BrokenPromises { complete_early: always(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "a_send_is_not_done_while_its_receiver_reads_it", "nobody has read them yet");
}

fn done_before_arrival(fabric: &dyn Fabric) {
    let lies = BrokenPromises { complete_early: always(), ..BrokenPromises::default() };
    noticed(fabric, &lies, "a_send_is_done_when_it_has_arrived", "the receiver has not looked yet");
    noticed(
        fabric,
        &lies,
        "a_write_with_immediate_data_is_done_when_they_arrived",
        "the receiver has not looked yet",
    );
}

fn forgotten(fabric: &dyn Fabric) {
    // Several wake-ups are forgotten, not one: a queue may be named without need, and forgetting that does no
    // harm.
    let lies = BrokenPromises { forget_wakeup: When::Chance(0.1), ..BrokenPromises::default() };
    noticed(fabric, &lies, "no_post_is_slept_through", "the waiter is woken");
}

/// Checks that the suite's case of this name notices the lies.
fn noticed(fabric: &dyn Fabric, lies: &BrokenPromises, name: &str, words: &str) {
    let case =
        cases::all().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is named {name}"));
    crate::noticed::noticed(fabric, lies, case, words);
}
