//! Check that a case notices a lie.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use udeck_conformance::{Case, Fabric, Options, kit};
use udeck_faults::{BrokenPromises, Fault};

use crate::wrapped::Wrapping;

/// Waits of a case for an event that a lie withholds: longer ones if the machine was so busy that something else
/// failed.
const PATIENCE: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(3), Duration::from_secs(30)];

/// Checks that the case fails with these words over NICs that lie in this way, and passes over the same NICs
/// without lies.
pub fn noticed(fabric: &dyn Fabric, lies: &BrokenPromises, case: &Case, words: &str) {
    let name = case.name;
    let caps = fabric.open(&Options::default()).caps();
    assert!(case.needs.iter().all(|cap| caps.has(*cap)), "{name} would be skipped");
    let run = |lies: &BrokenPromises| {
        let lies = lies.clone();
        (case.run)(&Wrapping::new("lying", fabric, move || Fault::lying(lies.clone(), 1)));
    };
    run(&BrokenPromises::default());
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

/// Runs `run` and returns the panic messages of its threads, which are not printed; `None`: it did not panic.
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
