//! Planning of tables from a file's classes.

use crate::input::{self, Class, Kind, Table};
use std::ops::Range;
use toml::Spanned;
use udeck_cli::Problem;
use udeck_fabric::admission;
use udeck_qos::{
    dtable::{self, BadShare, Factors},
    opensm,
    planner::{Link, Planner, Request, Unpromised, low_table},
    table::{LANES, MANAGEMENT_VL, VlTables},
};

/// A plan of InfiniBand's tables.
#[derive(Debug)]
pub struct InfiniBand {
    pub link: Link,
    pub classes: Vec<PlannedClass>,
    pub options: opensm::Options,
    pub free: usize,
    pub promised: u64,
}

/// A class and its lane.
#[derive(Debug)]
pub struct PlannedClass {
    pub class: Class,
    pub kind: Kind,
    pub vl: u8,
    /// Distance between the class's entries in the high table.
    pub distance: Option<usize>,
}

/// Plans InfiniBand's tables.
pub fn infiniband(link: &admission::Link, classes: &[Class]) -> Result<InfiniBand, Problem> {
    let vls = *link.vls.get_ref();
    let port = link.port();
    let mut planner = Planner::new(port);
    let lanes = lanes(classes, vls)?;
    let mut low = Vec::new();
    let mut planned = Vec::new();
    for (class, vl) in classes.iter().zip(lanes) {
        // The parser has checked that the kind is there.
        let kind = class.kind.unwrap_or(Kind::Be);
        match kind {
            Kind::Dbts | Kind::Db => admit(&mut planner, class, vl)?,
            Kind::Pbe => low.push((vl, Unpromised::Preferred)),
            Kind::Be => low.push((vl, Unpromised::BestEffort)),
            Kind::Ch => low.push((vl, Unpromised::Challenged)),
        }
        planned.push(PlannedClass { class: class.clone(), kind, vl, distance: planner.lane_distance(vl) });
    }
    let tables = VlTables { high: planner.table(), low: low_table(&low), high_limit: port.high_limit };
    let options = opensm::Options { max_vls: vls, tables, sl2vl: sl2vl(&planned) };
    Ok(InfiniBand {
        link: port,
        classes: planned,
        options,
        free: planner.free(),
        promised: planner.promised(),
    })
}

fn admit(planner: &mut Planner, class: &Class, vl: u8) -> Result<(), Problem> {
    let connections = class.connections.unwrap_or(1);
    let request = Request { bandwidth: class.bandwidth.unwrap_or(0), latency: class.latency };
    for connection in 1..=connections {
        planner.admit(vl, request).map_err(|refusal| {
            let name = class.name.get_ref();
            let which = if connections > 1 {
                format!(", connection {connection} of {connections}")
            } else {
                String::new()
            };
            Problem::cannot(class.line, format!("class {name:?}{which}: {refusal}"))
        })?;
    }
    Ok(())
}

/// Chooses the lane of each class: the one that the file gives, or the next free one.
fn lanes(classes: &[Class], vls: u8) -> Result<Vec<u8>, Problem> {
    let mut taken: Vec<(u8, usize)> = Vec::new();
    for class in classes {
        let (Some(vl), line, name) = (class.vl, class.line, class.name.get_ref()) else { continue };
        if vl >= vls {
            let reason =
                format!("class {name:?}: vl = {vl}, and the link has the data lanes 0 to {}", vls - 1);
            return Err(Problem::wrong(line, reason));
        }
        if let Some((_, first)) = taken.iter().find(|(other, _)| *other == vl) {
            return Err(Problem::wrong(
                line,
                format!("class {name:?}: VL {vl} is that of line {first}; each class has its own"),
            ));
        }
        taken.push((vl, line));
    }
    let mut rest = (0..vls).filter(|vl| taken.iter().all(|(other, _)| other != vl));
    let found = classes.iter().map(|class| {
        class.vl.or_else(|| rest.next()).ok_or_else(|| {
            let (name, count) = (class.name.get_ref(), classes.len());
            Problem::cannot(
                class.line,
                format!("class {name:?} finds no lane: {count} classes need {count} lanes, and the link has {vls}. Merge classes"),
            )
        })
    });
    found.collect()
}

/// Makes the mapping of levels to lanes. Levels without a class go to a lane without promises, or are not served.
fn sl2vl(planned: &[PlannedClass]) -> [u8; LANES] {
    let mut lanes = [other_levels(planned).unwrap_or(MANAGEMENT_VL); LANES];
    planned.iter().for_each(|planned| lanes[usize::from(planned.class.sl)] = planned.vl);
    lanes
}

/// Lane of the levels that have no class.
pub fn other_levels(planned: &[PlannedClass]) -> Option<u8> {
    let of = |kind| planned.iter().find(|planned| planned.kind == kind).map(|planned| planned.vl);
    of(Kind::Be).or_else(|| of(Kind::Ch)).or_else(|| of(Kind::Pbe))
}

/// Plans a table with deficits. `line` finds the line of a place in the file.
pub fn dtable(
    table: &Table,
    classes: &[Class],
    line: impl Fn(Range<usize>) -> usize,
) -> Result<dtable::Plan, Problem> {
    let credits = |bytes: u32| input::credits(bytes).map_err(|why| Problem::wrong(None, why));
    let wanted = classes.iter().map(|class| {
        Ok(dtable::Class {
            level: class.sl,
            distance: class.distance.unwrap_or(0),
            share: class.share.unwrap_or(f64::NAN),
            mtu: credits(class.mtu.unwrap_or(0))?,
        })
    });
    let wanted = wanted.collect::<Result<Vec<_>, Problem>>()?;
    let (entries, gmtu) = (*table.entries.get_ref(), credits(*table.gmtu.get_ref())?);
    let plan = match (&table.k, &table.w) {
        (None, None) => dtable::plan(entries, gmtu, &wanted),
        (Some(k), Some(w)) => {
            dtable::plan_with(entries, gmtu, &wanted, Factors { k: *k.get_ref(), w: *w.get_ref() })
        }
        (Some(factor), None) | (None, Some(factor)) => {
            return Err(Problem::wrong(
                line(factor.span()),
                "[dtable] has one of k and w: give both, or none, and they are found",
            ));
        }
    };
    plan.map_err(|bad| {
        let key = match &bad {
            BadShare::Table { .. } => Some(table.entries.span()),
            BadShare::Gmtu { .. } => Some(table.gmtu.span()),
            BadShare::Factors { .. } => table.k.as_ref().map(Spanned::span),
            _ => None,
        };
        let (at, reason) = match bad.class().map(|at| &classes[at]) {
            Some(class) => (Some(class.line), format!("class {:?}: {bad}", class.name.get_ref())),
            None => (key.map(line), bad.to_string()),
        };
        Problem { line: at, reason, cannot_be: !bad.is_out_of_range() }
    })
}
