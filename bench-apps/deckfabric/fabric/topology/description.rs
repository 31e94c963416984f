//! Description of a network in a file: its kind, and its size.

use super::{
    HalfWay, Network, adaptive_dragonfly, adaptive_tree, dragonfly, hypercube, irregular, mesh, parse, tree,
    trunked_torus, valiant_tree,
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// `[topology]`: kind and size of the network.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "kind")]
#[expect(missing_docs, reason = "the functions that make the networks describe their numbers")]
pub enum Description {
    Tree {
        k: usize,
        n: usize,
        #[serde(default)]
        routes: Routes,
    },
    Torus {
        dims: Vec<usize>,
        hosts: usize,
        /// Links between neighbours.
        #[serde(default = "one")]
        trunk: usize,
        /// Direction of packets half way round a ring.
        #[serde(default)]
        half_way: HalfWay,
    },
    Mesh {
        dims: Vec<usize>,
        hosts: usize,
    },
    Hypercube {
        dimensions: usize,
        hosts: usize,
    },
    Dragonfly {
        hosts: usize,
        group: usize,
        global: usize,
        #[serde(default)]
        routes: Routes,
    },
    Irregular {
        switches: usize,
        hosts: usize,
        degree: usize,
        seed: u64,
    },
    File {
        path: PathBuf,
    },
}

/// `topology.routes`: ways up in a tree, and ways between groups of a dragonfly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routes {
    /// One way for each destination.
    #[default]
    Fixed,
    /// Any way, at random; only in trees.
    Valiant,
    /// The way with the shorter queues.
    Adaptive,
}

fn one() -> usize {
    1
}

impl Description {
    /// Builds the network. Names of files are relative to `folder`.
    ///
    /// # Errors
    /// There can be no such network, or the file cannot be read: the reason as text.
    pub fn build(&self, folder: &Path) -> Result<Network, String> {
        let built = match self {
            Self::Tree { k, n, routes: Routes::Fixed } => tree(*k, *n),
            Self::Tree { k, n, routes: Routes::Valiant } => valiant_tree(*k, *n),
            Self::Tree { k, n, routes: Routes::Adaptive } => adaptive_tree(*k, *n),
            Self::Torus { dims, hosts, trunk, half_way } => trunked_torus(dims, *hosts, *trunk, *half_way),
            Self::Mesh { dims, hosts } => mesh(dims, *hosts),
            Self::Hypercube { dimensions, hosts } => hypercube(*dimensions, *hosts),
            Self::Dragonfly { hosts, group, global, routes } => match routes {
                Routes::Fixed => dragonfly(*hosts, *group, *global),
                Routes::Adaptive => adaptive_dragonfly(*hosts, *group, *global),
                Routes::Valiant => {
                    let reason =
                        "routes = \"valiant\" is for trees: take \"fixed\" or \"adaptive\" in a dragonfly";
                    return Err(format!("[topology]: {reason}"));
                }
            },
            Self::Irregular { switches, hosts, degree, seed } => irregular(*switches, *hosts, *degree, *seed),
            Self::File { path } => {
                let place = folder.join(path);
                let text = fs::read_to_string(&place)
                    .map_err(|why| format!("[topology]: {} cannot be read: {why}", place.display()))?;
                return parse(&path.display().to_string(), &text)
                    .map_err(|bad| format!("[topology]: {}: {bad}", place.display()));
            }
        };
        built.map_err(|bad| format!("[topology]: {bad}"))
    }

    /// Makes the name of a file, which is relative to `folder`, absolute. A place without a name in Unicode stays as it is.
    pub fn make_absolute(&mut self, folder: &Path) {
        if let Self::File { path } = self
            && let Ok(place) = std::path::absolute(folder.join(&*path))
            && place.to_str().is_some()
        {
            *path = place;
        }
    }
}
