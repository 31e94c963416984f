//! Which case notices which lie.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use udeck_conformance::{Case, Fabric, Options, cases, kit};
use udeck_faults::{Fault, Lies, When};
use udeck_via::Caps;

use crate::wrapped::Wrapping;

/// How long cases wait for what a lie keeps from them: longer, if the machine was so busy that something else failed.
const PATIENCE: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30)];

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

/// Late enough that the case works at first, so that it is the lie that it notices.
fn tenth() -> When {
    When::Numbers(vec![10])
}

fn always() -> When {
    When::Chance(1.0)
}

fn dropped(fabric: &dyn Fabric) {
    let lies = Lies { drop: tenth(), ..Lies::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
}

fn doubled(fabric: &dyn Fabric) {
    let lies = Lies { duplicate: tenth(), ..Lies::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
    // The last of a batch: nothing comes in the wrong place, but something comes again.
    let lies = Lies { duplicate: When::Numbers(vec![15]), ..Lies::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "message 15 came again");
}

fn reordered(fabric: &dyn Fabric) {
    let lies = Lies { reorder: tenth(), ..Lies::default() };
    noticed(fabric, &lies, "messages_arrive_once_in_the_order_of_posting", "what came, and what was posted");
    noticed(
        fabric,
        &lies,
        "lent_messages_arrive_once_in_the_order_of_posting",
        "what came, and what was posted",
    );
}

fn altered(fabric: &dyn Fabric) {
    // One that travels in its descriptor, and one that is lent.
    for number in [3, 10] {
        let lies = Lies { corrupt: When::Numbers(vec![number]), ..Lies::default() };
        noticed(fabric, &lies, "messages_of_all_sizes", "instead of");
        noticed(fabric, &lies, "posted_sends_reach_lent_receivers", "instead of");
    }
}

fn done_while_read(fabric: &dyn Fabric) {
    let lies = Lies { complete_early: always(), ..Lies::default() };
    noticed(fabric, &lies, "a_send_is_not_done_while_its_receiver_reads_it", "nobody has read them yet");
}

fn done_before_arrival(fabric: &dyn Fabric) {
    let lies = Lies { complete_early: always(), ..Lies::default() };
    noticed(fabric, &lies, "a_send_is_done_when_it_has_arrived", "the receiver has not looked yet");
    noticed(
        fabric,
        &lies,
        "a_write_with_immediate_data_is_done_when_they_arrived",
        "the receiver has not looked yet",
    );
}

fn forgotten(fabric: &dyn Fabric) {
    // Some, not one: a queue may be named without need, and to forget that is no harm.
    let lies = Lies { forget_wakeup: When::Chance(0.1), ..Lies::default() };
    noticed(fabric, &lies, "no_post_is_slept_through", "the waiter is woken");
}

/// The case fails over NICs that lie so, with these words; and passes over the same NICs when they do not.
fn noticed(fabric: &dyn Fabric, lies: &Lies, name: &str, words: &str) {
    let case =
        cases::all().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is named {name}"));
    let caps = fabric.open(&Options::default()).caps();
    assert!(case.needs.iter().all(|cap| caps.has(*cap)), "{name} would be skipped");
    let run = |lies: &Lies| {
        let lies = lies.clone();
        (case.run)(&Wrapping::new("lying", fabric, move || Fault::lying(lies.clone(), 1)));
    };
    run(&Lies::default());
    let mut said = Vec::new();
    for patience in PATIENCE {
        let failure = words_of_failure(patience, || run(lies));
        said = failure.unwrap_or_else(|| panic!("{}::{name} did not notice {lies:?}", case.topic));
        if said.iter().any(|one| one.contains(words)) {
            println!("    noticed by {}::{name}", case.topic);
            return;
        }
    }
    panic!("{}::{name} failed for another reason: {said:?}", case.topic);
}

/// What the threads of `run` say as they panic, which is not printed; `None` when it comes to its end.
fn words_of_failure(patience: Duration, run: impl FnOnce()) -> Option<Vec<String>> {
    let said = Arc::new(Mutex::new(Vec::new()));
    let (heard, usual) = (said.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        heard.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
    }));
    let patience = kit::set_patience(patience);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    kit::set_patience(patience);
    panic::set_hook(usual);
    let said = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
    result.is_err().then_some(said)
}
