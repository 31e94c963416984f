//! Report of `deckperf costs`.

use super::{
    CostsPlan,
    creation::Creation,
    idle::{Blocked, IdleMemory},
    start_time::StartTime,
};
use crate::{
    report::table_body::{Cell, Table, names},
    stats::{median, percentile},
};
use udeck_cli::machine::Machine;

/// Sentences on how the figures were measured.
pub fn method(plan: &CostsPlan) -> String {
    let mut text = format!(
        "making: a mailbox by rank 0, a clone by rank 0 of a mailbox of rank 1, and a byte to a sleeping thread and back through \
         a Unix socket take turns; each call is timed by itself\n\
         idle connection: PSS (/proc/self/smaps_rollup) of both ranks with so many clones more, shared out; what the kernel \
         keeps of its own (inode and page tables of a segment) is not in it\n\
         blocked: processor time of all threads of rank 1 while it waits for {} s in `retrieve` for what does not come\n",
        plan.blocked.as_secs_f64()
    );
    if plan.ranks > 0 {
        text += "start: from the start of a launcher of its own (deckrun's library) until rank 0 has passed a barrier of all \
                 ranks; one more barrier; and until all have ended. Ranks are not pinned\n";
    }
    text
}

/// The tables; `start_time` is `None` if no ranks were started.
pub fn tables(
    machine: &Machine,
    creation: &Creation,
    memory: &IdleMemory,
    blocked: &Blocked,
    start_time: Option<&StartTime>,
) -> Vec<Table> {
    let mut tables = vec![making(creation), keeping(memory), waiting(blocked)];
    tables.extend(start_time.map(|start_time| starting(machine, start_time)));
    tables
}

fn making(creation: &Creation) -> Table {
    let row = |what: &str, goal: Option<f64>, figures: &[f64]| {
        let at = |percent| Cell::Figure(percentile(figures, percent));
        vec![Cell::text(what), Cell::Figure(median(figures)), at(99.0), at(99.9), Cell::Figure(goal)]
    };
    Table {
        title: "Making (us)".to_owned(),
        name: "making".into(),
        columns: names(&["what", "p50", "p99", "p99.9", "goal"]),
        rows: vec![
            row("mailbox", Some(100.0), &creation.mailboxes),
            row("clone", Some(300.0), &creation.clones),
            row("socket-round-trip", None, &creation.round_trips),
        ],
    }
}

fn keeping(memory: &IdleMemory) -> Table {
    let kib = |bytes: u64| Cell::Count(bytes >> 10);
    Table {
        title: "Memory of idle connections, in both processes together (KiB)".to_owned(),
        name: "idle_connection".into(),
        columns: names(&["connections", "before", "idle", "after", "each", "goal"]),
        rows: vec![vec![
            Cell::Count(memory.connections as u64),
            kib(memory.before),
            kib(memory.idle),
            kib(memory.after),
            Cell::Figure(Some(memory.each() / 1024.0)),
            Cell::Figure(Some(16.0)),
        ]],
    }
}

fn waiting(blocked: &Blocked) -> Table {
    Table {
        title: "A rank blocked in retrieve".to_owned(),
        name: "blocked".into(),
        columns: names(&["seconds", "processor_ms", "percent", "goal"]),
        rows: vec![
            [blocked.lasted.as_secs_f64(), blocked.processor.as_secs_f64() * 1e3, blocked.percent(), 1.0]
                .map(|figure| Cell::Figure(Some(figure)))
                .to_vec(),
        ],
    }
}

fn starting(machine: &Machine, start_time: &StartTime) -> Table {
    let counts = [u64::from(start_time.ranks), machine.cores as u64].map(Cell::Count);
    let seconds = [start_time.passed, start_time.barrier, start_time.ended];
    let seconds = seconds.map(|time| Cell::Figure(Some(time.as_secs_f64())));
    Table {
        title: "Starting ranks (s)".to_owned(),
        name: "start".into(),
        columns: names(&["ranks", "cores", "barrier_passed", "next_barrier", "ended"]),
        rows: vec![[&counts[..], &seconds].concat()],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_row_fits_its_columns() {
        let creation = Creation { mailboxes: vec![1.0, 3.0, 2.0], clones: vec![7.0], round_trips: vec![] };
        let memory = IdleMemory { connections: 10, before: 1 << 20, idle: 2 << 20, after: 1 << 20 };
        let blocked = Blocked { processor: Duration::from_millis(5), lasted: Duration::from_secs(1) };
        let second = Duration::from_secs(1);
        let start_time = StartTime { ranks: 500, passed: second, barrier: second / 4, ended: 2 * second };
        let machine = Machine::sample("pinned", "shm0");
        let tables = tables(&machine, &creation, &memory, &blocked, Some(&start_time));
        assert_eq!(tables.len(), 4);
        for table in &tables {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.name);
        }
        assert_eq!(tables[0].rows[0][1..3], [2.0, 3.0].map(|figure| Cell::Figure(Some(figure))));
        assert_eq!(tables[0].rows[2][1], Cell::Figure(None), "not measured");
        assert_eq!(tables[1].rows[0][4], Cell::Figure(Some(102.4)));
        assert_eq!(tables[2].rows[0][2], Cell::Figure(Some(0.5)));
        assert_eq!(tables[3].rows[0][3], Cell::Figure(Some(0.25)));
    }
}
