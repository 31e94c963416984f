//! A rank of the database: a server, or a spare that becomes one. A state machine without I/O.

use crate::copy::{Limits, Reaction, Spare};
use crate::message::{Body, Outgoing};
use crate::ranks::{SERVERS, Servers};
use crate::server::Server;
use crate::table::Tables;
use std::ops::Deref;

#[derive(Clone, Debug)]
pub struct Node<B> {
    role: Role<B>,
    servers: Servers,
    limits: Limits,
}

#[derive(Clone, Debug)]
enum Role<B> {
    Server(Box<Server<B>>),
    Spare(Box<Spare<B>>),
}

impl<B: Clone + Deref<Target = [u8]>> Node<B> {
    /// The node with this rank, which is a server's or a spare's.
    pub fn new(rank: usize, servers: Servers, limits: Limits) -> Self {
        let role = if rank < SERVERS {
            let spares = servers.spares().collect();
            Role::Server(Box::new(Server::new(rank as u8, 1 - rank, servers, spares, limits)))
        } else {
            Role::Spare(Box::new(Spare::new(rank, servers)))
        };
        Node { role, servers, limits }
    }

    /// Tables of a server. `None`: this is a spare, which has not all data.
    pub fn tables(&self) -> Option<&Tables<B>> {
        match &self.role {
            Role::Server(server) => Some(server.tables()),
            Role::Spare(_) => None,
        }
    }

    /// The spare to which this node copies its data, if it does, and the number of confirmations from there.
    pub fn copy_progress(&self) -> Option<(usize, u64)> {
        match &self.role {
            Role::Server(server) => server.copy_progress(),
            Role::Spare(_) => None,
        }
    }

    /// Handles a message of a client or of another node, and returns the messages to be sent.
    pub fn handle(&mut self, from: usize, body: Body, blob: Option<B>) -> Vec<Outgoing<B>> {
        match &mut self.role {
            Role::Server(server) => server.handle(from, body, blob),
            Role::Spare(spare) => match spare.handle(from, body, blob) {
                Reaction::Send(out) => out,
                Reaction::Join { half, view, peer } => {
                    let tables = std::mem::replace(&mut spare.tables, Tables::new());
                    let (waiting, further) = (spare.take_waiting(), spare.further_spares());
                    let server = Server::new(half, peer, self.servers, further, self.limits);
                    let mut server = server.joined(view, tables);
                    let waiting = waiting.into_iter();
                    let mut out = vec![Outgoing { to: peer, body: Body::Copied, blob: None }];
                    out.extend(
                        waiting.flat_map(|(client, (body, blob))| server.handle(client as usize, body, blob)),
                    );
                    self.role = Role::Server(Box::new(server));
                    out
                }
            },
        }
    }

    /// Handles the death of another node. The caller sends the answers, and then calls [`Node::begin_copy`].
    pub fn lost(&mut self, dead: usize) -> Vec<Outgoing<B>> {
        match &mut self.role {
            Role::Server(server) => server.lost(dead),
            Role::Spare(spare) => spare.lost(dead),
        }
    }

    /// Begins a copy to a spare, if one is due, and returns the first messages.
    pub fn begin_copy(&mut self) -> Vec<Outgoing<B>> {
        match &mut self.role {
            Role::Server(server) => server.begin_copy(),
            Role::Spare(_) => Vec::new(),
        }
    }
}
