//! Tables of `deckperf cpu --as chapter-9`, one for each of the graphs 9.1 to 9.9 of a master's thesis on uDAPL in a parallel
//! database (2004): rate and processor time of UDP, TCP and uDAPL with 20 and 60 buffers.
//!
//! The thesis draws its graphs without numbers. A table has the graph's quantity, its definition here, and its axes: a row for
//! each contender and number of buffers, and a column for each message size.

use super::{
    Kind,
    cost::{Cost, SideCost},
    order::Waiting,
};
use crate::report::table_body::{Cell, Table};

/// Numbers of buffers of the thesis.
pub const DEPTHS: [u64; 2] = [20, 60];
/// Contenders of the thesis: UDP and TCP, which it ran over Ethernet and InfiniBand, and uDAPL, here over each transport without a
/// device.
pub const KINDS: [Kind; 5] = [Kind::UdpSockets, Kind::TcpSockets, Kind::DatShm, Kind::DatTcp, Kind::DatUdp];
/// How the programs of the thesis wait for messages.
pub const WAITING: Waiting = Waiting::Blocking;
/// Differences from the thesis, for the report's method.
pub const METHOD: &str = "as chapter 9: each window of so many messages (buffers) is acknowledged, for sockets as well, where the thesis \
                          sends without a pause, and sockets have no buffers of their own; both sides are processes of this host, on a \
                          core each, where the thesis has two machines and counts all that runs on the two processors of each; both \
                          sides block where they wait\n";

/// A contender with one number of buffers.
pub struct Line<'r> {
    /// Name of the contender.
    pub contender: &'r str,
    /// Buffers, or messages under way.
    pub buffers: u64,
    /// Costs at each size; `None` where nothing was measured.
    pub costs: Vec<Option<Cost>>,
}

/// One graph.
struct Graph {
    number: &'static str,
    /// Quantity of the graph, with its unit and its definition here.
    shows: &'static str,
    figures: Figures,
}

/// Figures of a cost, where a message has so many megabits.
enum Figures {
    /// One figure.
    One(fn(&Cost, f64) -> f64),
    /// User and system time, which the graph stacks.
    Parts(fn(&Cost, f64) -> [f64; 2]),
}

const GRAPHS: [Graph; 9] = [
    Graph {
        number: "9.1",
        shows: "rate of sending: Mbit (10^6 bits of payload) per second of the sender's clock",
        figures: Figures::One(|cost, megabits| cost.sides[0].rate * megabits),
    },
    Graph {
        number: "9.2",
        shows: "processor use while sending: user and system time of the sending process, in % of one core",
        figures: Figures::Parts(|cost, _| use_of_core(&cost.sides[0])),
    },
    Graph {
        number: "9.3",
        shows: "processor time for a megabit sent: user and system time of the sending process, in us",
        figures: Figures::Parts(|cost, megabits| sent(cost).map(|time| time / megabits)),
    },
    Graph {
        number: "9.4",
        shows: "processor time for a message sent: user and system time of the sending process, in us",
        figures: Figures::Parts(|cost, _| sent(cost)),
    },
    Graph {
        number: "9.5",
        shows: "messages that arrive, in % of those sent",
        figures: Figures::One(|cost, _| cost.arrived * 100.0),
    },
    Graph {
        number: "9.6",
        shows: "rate of receiving: Mbit of payload that arrived per second of the receiver's clock",
        figures: Figures::One(|cost, megabits| cost.sides[1].rate * megabits),
    },
    Graph {
        number: "9.7",
        shows: "processor use while receiving: user and system time of the receiving process, in % of one core",
        figures: Figures::Parts(|cost, _| use_of_core(&cost.sides[1])),
    },
    Graph {
        number: "9.8",
        shows: "processor time for a megabit that arrived: user and system time of the receiving process, in us",
        figures: Figures::Parts(|cost, megabits| received(cost).map(|time| time / megabits)),
    },
    Graph {
        number: "9.9",
        shows: "processor time for a message that arrived: user and system time of the receiving process, in us",
        figures: Figures::Parts(|cost, _| received(cost)),
    },
];

/// User and system time of the sender for a message that it sent, whether it arrived or not, in µs.
fn sent(cost: &Cost) -> [f64; 2] {
    let SideCost { user, system, .. } = cost.sides[0];
    [user, system].map(|time| time * cost.arrived)
}

/// User and system time of the receiver for a message that arrived, in µs.
fn received(cost: &Cost) -> [f64; 2] {
    let SideCost { user, system, .. } = cost.sides[1];
    [user, system]
}

/// Use of a core by user and by system time, in percent.
fn use_of_core(side: &SideCost) -> [f64; 2] {
    let all = side.user + side.system;
    [side.user, side.system].map(|part| if all > 0.0 { side.core * part / all } else { 0.0 })
}

/// Makes the nine tables; `sizes` are those of the costs in each line, in bytes.
pub fn tables(lines: &[Line<'_>], sizes: &[usize]) -> Vec<Table> {
    GRAPHS.iter().map(|graph| graph.table(lines, sizes)).collect()
}

impl Graph {
    fn table(&self, lines: &[Line<'_>], sizes: &[usize]) -> Table {
        let parts: &[&str] = match self.figures {
            Figures::One(_) => &[],
            Figures::Parts(_) => &["part"],
        };
        let mut columns: Vec<String> =
            ["contender", "buffers"].iter().chain(parts).map(ToString::to_string).collect();
        columns.extend(sizes.iter().map(|size| format!("{size} B")));
        Table {
            title: format!("Graph {}: {}", self.number, self.shows),
            name: format!("graph-{}", self.number),
            columns,
            rows: lines.iter().flat_map(|line| self.rows(line, sizes)).collect(),
        }
    }

    fn rows(&self, line: &Line<'_>, sizes: &[usize]) -> Vec<Vec<Cell>> {
        // The number of buffers names a row, so it is a word.
        let names = [Cell::text(line.contender), Cell::text(line.buffers)];
        let megabits = sizes.iter().map(|&size| size as f64 * 8.0 / 1e6);
        let costs: Vec<_> = line.costs.iter().map(Option::as_ref).zip(megabits).collect();
        let row = |part: Option<&str>, figure: &dyn Fn(&Cost, f64) -> f64| {
            let cells =
                costs.iter().map(|(cost, megabits)| Cell::Figure(cost.map(|cost| figure(cost, *megabits))));
            names.iter().cloned().chain(part.map(Cell::text)).chain(cells).collect()
        };
        match self.figures {
            Figures::One(figure) => vec![row(None, &figure)],
            Figures::Parts(figures) => vec![
                row(Some("user"), &|cost, megabits| figures(cost, megabits)[0]),
                row(Some("system"), &|cost, megabits| figures(cost, megabits)[1]),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cpu::{cost::tests::a_round, schedule::CpuSample};

    /// Rows of the table of a graph, for one contender whose 100 messages of 500 bytes were sent in a millisecond.
    fn rows(graph: &str, lost: u64) -> Vec<Vec<Cell>> {
        let round = CpuSample { messages: 100 - lost, lost, ..a_round() };
        let line = Line { contender: "TCP sockets", buffers: 20, costs: vec![Cost::of(&[round], 500)] };
        let tables = tables(&[line], &[500]);
        assert_eq!(tables.len(), 9);
        let wanted = |table: &Table| table.name == format!("graph-{graph}");
        tables.into_iter().find(wanted).expect("a graph of this number").rows
    }

    fn figures(graph: &str, lost: u64) -> Vec<f64> {
        let last = |row: Vec<Cell>| match row.last() {
            Some(Cell::Figure(Some(figure))) => (figure * 1e6).round() / 1e6,
            other => panic!("{other:?} is no figure"),
        };
        rows(graph, lost).into_iter().map(last).collect()
    }

    #[test]
    fn each_graph_has_its_quantity() {
        // 100,000 messages of 4,000 bits a second.
        for (graph, expected) in [
            ("9.1", &[400.0][..]),
            ("9.2", &[10.0, 20.0]),
            ("9.3", &[250.0, 500.0]),
            ("9.4", &[1.0, 2.0]),
            ("9.5", &[100.0]),
            ("9.6", &[400.0]),
            ("9.7", &[100.0, 0.0]),
            ("9.8", &[2500.0, 0.0]),
            ("9.9", &[10.0, 0.0]),
        ] {
            assert_eq!(figures(graph, 0), expected, "graph {graph}");
        }
    }

    #[test]
    fn lost_messages_were_sent_and_did_not_arrive() {
        // Half of the 100 messages arrive: the sender's costs are for each message sent, the receiver's for each that arrived.
        for (graph, expected) in [
            ("9.1", &[400.0][..]),
            ("9.4", &[1.0, 2.0]),
            ("9.5", &[50.0]),
            ("9.6", &[200.0]),
            ("9.9", &[20.0, 0.0]),
        ] {
            assert_eq!(figures(graph, 50), expected, "graph {graph}");
        }
    }

    #[test]
    fn a_row_names_contender_buffers_and_part() {
        let names: Vec<Vec<Cell>> = rows("9.9", 0).into_iter().map(|row| row[..3].to_vec()).collect();
        let expected = ["user", "system"].map(|part| ["TCP sockets", "20", part].map(Cell::text).to_vec());
        assert_eq!(names, expected);
    }
}
