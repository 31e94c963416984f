//! Report of `deckperf registration`.

use clap::ValueEnum;

use super::{RegistrationPlan, operation::Operation};
use crate::{
    experiment::{plan::Test, rounds::Results, sizes},
    named::Named,
    report::{
        data, export, scheduling,
        summary::Finding,
        table_body::{Cell, Table, names},
    },
};

/// Sentences on how the figures were measured.
pub fn method(plan: &RegistrationPlan, pins: bool, results: &Results<Operation>) -> String {
    let nic = match pins {
        true => "this NIC pins memory: a registration is a call of the kernel, which grows with the pages",
        false => {
            "this NIC pins no memory: a registration is an entry in the library's books, whatever the size, and a post from \
             the program's memory copies once"
        }
    };
    scheduling(plan.pace.iterations, results)
        + &format!(
            "register, deregister: Nic::register of a Vec, and Region::into_buffer; miss, hit: Nic::register_memory of memory \
             that the cache of registrations does not know, and does; each call is timed by itself, with a read of the clock\n\
             post_*: a message of the size from rank 0, and an empty one back when it is retrieved; post_registering: an \
             ExternalBuf made for this message and taken apart after it; post_cached: one ExternalBuf that is posted again and \
             again; post_buf: a buffer of the library's (World::buf_reused); nobody looks at the data\n\
             {nic}\n\
             memory is written before it is registered: no figure pays for fresh pages\n"
        )
}

/// Tables of the medians, then of the 99th percentiles.
pub fn tables(sizes: &[usize], results: &Results<Operation>) -> Vec<Table> {
    let operations = Operation::value_variants();
    let table = |title: &str, name: &'static str, of: fn(crate::report::Figure) -> f64| {
        let row = |&size: &usize| {
            let figure = |operation| results.of(operation, size).and_then(|series| series.figure()).map(of);
            let cells = operations.iter().map(|&operation| Cell::Figure(figure(operation)));
            [Cell::Count(size as u64)].into_iter().chain(cells).collect()
        };
        let mut columns = names(&["size"]);
        columns.extend(operations.iter().map(Named::name));
        Table { title: title.to_owned(), name: name.into(), columns, rows: sizes.iter().map(row).collect() }
    };
    vec![
        table("Registration (us), median over the batches", "p50", |figure| figure.p50),
        table("Registration (us), 99 % of the batches are at least as good", "p99", |figure| figure.p99),
    ]
}

/// Ratios that show the savings by the cache.
pub fn findings(sizes: &[usize], results: &Results<Operation>) -> Vec<Finding> {
    let one = |&size: &usize| {
        let ratio = |what: &str, of, to| {
            let what = format!("{what}, {}", sizes::show(size));
            Finding::of(what, results.figures(of, size), results.figures(to, size))
        };
        [
            ratio("hit / miss", Operation::Hit, Operation::Miss),
            ratio("post cached / registering", Operation::PostCached, Operation::PostRegistering),
            ratio("post cached / post_buf", Operation::PostCached, Operation::PostBuf),
        ]
    };
    sizes.iter().flat_map(one).flatten().collect()
}

/// Series with the figures of every round.
pub fn series(network: &str, results: &Results<Operation>) -> Vec<data::Series> {
    export::series_of(results, |operation, size| data::Key {
        test: "registration".to_owned(),
        protocol: Some(operation.name()),
        ..export::key(Test::Latency, network, size)
    })
}
