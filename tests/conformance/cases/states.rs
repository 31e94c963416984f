//! The states of a VI: every call in every state is carried out, or refused without effect.
//!
//! | call | Idle | ConnectPending | Connected | Error |
//! |---|---|---|---|---|
//! | `post_send` | refused | refused | stays | refused |
//! | `post_receive` | stays | stays | stays | refused |
//! | `connect` | Connected | refused | refused | refused |
//! | `Request::accept` into it | Connected | refused | refused | refused |
//! | `peer_request` | ConnectPending | refused | refused | refused |
//! | `peer_done` | refused | stays; Connected once the peer has asked | refused | refused |
//! | `peer_wait` | refused | Connected | refused | refused |
//! | `disconnect` | stays | Idle | Idle | Idle |
//! | `set_attributes` | stays | refused | refused | refused |
//! | `send_done`, `receive_done`, and the queries | stays | stays | stays | stays |
//!
//! *Refused* is [`Error::InvalidState`] with the state, which stays; the VI is unharmed. In a wrong state VIA would take a
//! descriptor and complete it with an error; here it comes back with the refusal.
//!
//! `connect` and `accept` borrow the VI until they return, so no program sees it pending in them. A peer request leaves
//! it pending, even when the connection is already made: the connection belongs to the program after the program has
//! taken it.

use udeck_via::{Descriptor, Error, State, Status, ViAttributes};

use crate::kit::{Door, End, Pair, address, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "states";
pub const CASES: &[Case] = &[
    case!(every_call_in_every_state),
    case!(a_refused_call_leaves_the_vi_as_good_as_before),
    case!(a_refused_accept_refuses_the_request),
    case!(a_pending_vi_keeps_its_receives_for_the_connection),
    case!(a_vi_is_pending_until_the_program_takes_its_connection),
    case!(a_withdrawn_request_flushes_the_receives),
    case!(the_error_state_ends_by_disconnect_only),
];

const STATES: [State; 4] = [State::Idle, State::ConnectPending, State::Connected, State::Error];

/// Effect of a call in a state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Refused,
    Unchanged,
    Goes(State),
}

use Effect::{Goes, Refused, Unchanged};

/// A call, and its effect in each of [`STATES`].
struct Row {
    name: &'static str,
    call: fn(&mut Scene) -> udeck_via::Result,
    effects: [Effect; 4],
}

const TABLE: &[Row] = &[
    Row { name: "post_send", call: post_send, effects: [Refused, Refused, Unchanged, Refused] },
    Row { name: "post_receive", call: post_receive, effects: [Unchanged, Unchanged, Unchanged, Refused] },
    Row { name: "connect", call: connect, effects: [Goes(State::Connected), Refused, Refused, Refused] },
    Row { name: "accept", call: accept, effects: [Goes(State::Connected), Refused, Refused, Refused] },
    Row {
        name: "peer_request",
        call: ask,
        effects: [Goes(State::ConnectPending), Refused, Refused, Refused],
    },
    Row { name: "peer_done", call: peer_done, effects: [Refused, Unchanged, Refused, Refused] },
    Row { name: "peer_wait", call: peer_wait, effects: [Refused, Goes(State::Connected), Refused, Refused] },
    Row {
        name: "disconnect",
        call: disconnect,
        effects: [Unchanged, Goes(State::Idle), Goes(State::Idle), Goes(State::Idle)],
    },
    Row { name: "set_attributes", call: set_attributes, effects: [Unchanged, Refused, Refused, Refused] },
    Row { name: "send_done", call: send_done, effects: [Unchanged; 4] },
    Row { name: "receive_done", call: receive_done, effects: [Unchanged; 4] },
    Row { name: "query", call: query, effects: [Unchanged; 4] },
];

const NAME: &[u8] = b"states";

/// A VI in some state, `pair.a`, and the end to which it connects.
struct Scene {
    pair: Pair,
}

impl Scene {
    fn new(fabric: &dyn Fabric, state: State) -> Self {
        let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
        match state {
            State::Idle => {}
            State::ConnectPending => ask_peer(&mut pair.a, &pair.b).unwrap(),
            State::Connected => pair.connect(),
            State::Error => {
                pair.connect();
                pair.b.vi.disconnect();
                until("the peer's end is noticed", || {
                    assert!(pair.a.vi.receive_done().is_none());
                    (pair.a.vi.state() == State::Error).then_some(())
                });
            }
        }
        assert_eq!(pair.a.vi.state(), state);
        Scene { pair }
    }

    fn state(&self) -> State {
        self.pair.a.vi.state()
    }

    /// Checks that the VI can be reset from any state, connects, and works.
    fn works(mut self) {
        self.pair.a.vi.disconnect();
        self.pair.b.vi.disconnect();
        assert_eq!(self.state(), State::Idle);
        while self.pair.a.vi.send_done().is_some() || self.pair.a.vi.receive_done().is_some() {}
        self.pair.connect();
        self.pair.check();
        std::mem::swap(&mut self.pair.a, &mut self.pair.b);
        self.pair.check();
    }
}

fn post_send(scene: &mut Scene) -> udeck_via::Result {
    let descriptor = Descriptor::new([scene.pair.a.region(b"state")]);
    scene.pair.a.vi.post_send(descriptor).map_err(|(error, descriptor)| {
        assert_eq!(regions(descriptor)[0][..], *b"state", "the descriptor comes back untouched");
        error
    })
}

fn post_receive(scene: &mut Scene) -> udeck_via::Result {
    let descriptor = Descriptor::new([scene.pair.a.region(b"state")]);
    scene.pair.a.vi.post_receive(descriptor).map_err(|(error, descriptor)| {
        assert_eq!(regions(descriptor)[0][..], *b"state", "the descriptor comes back untouched");
        error
    })
}

fn connect(scene: &mut Scene) -> udeck_via::Result {
    let door = Door::new(&scene.pair.b.nic, NAME);
    if scene.state() != State::Idle {
        let refused = scene.pair.a.connect(&door.address, b"").map(drop);
        assert!(door.listener.wait(udeck_via::Deadline::now()).is_err(), "no request was made");
        return refused;
    }
    let Pair { a, b } = &mut scene.pair;
    let (asked, answered) = door.connect(a, b"", |request| b.accept(request, b""));
    answered.unwrap();
    asked.map(drop)
}

fn accept(scene: &mut Scene) -> udeck_via::Result {
    let door = Door::new(&scene.pair.a.nic, NAME);
    let mut asker = End::new(&scene.pair.b.nic, |_| {});
    let (asked, answered) = door.connect(&mut asker, b"", |request| scene.pair.a.accept(request, b""));
    assert_eq!(asked.is_ok(), answered.is_ok(), "both sides say the same: {asked:?}");
    answered
}

fn ask_peer(end: &mut End, other: &End) -> udeck_via::Result {
    let cq = end.cq.handle();
    end.vi.peer_request(&address(&other.nic, NAME), &cq, &cq, b"", soon())
}

fn ask(scene: &mut Scene) -> udeck_via::Result {
    ask_peer(&mut scene.pair.a, &scene.pair.b)
}

fn peer_done(scene: &mut Scene) -> udeck_via::Result {
    scene.pair.a.vi.peer_done().map(|done| assert!(done.is_none(), "the peer has not asked"))
}

fn peer_wait(scene: &mut Scene) -> udeck_via::Result {
    if scene.state() == State::ConnectPending {
        ask_peer(&mut scene.pair.b, &scene.pair.a).unwrap();
    }
    scene.pair.a.vi.peer_wait().map(drop)
}

fn disconnect(scene: &mut Scene) -> udeck_via::Result {
    scene.pair.a.vi.disconnect();
    Ok(())
}

fn set_attributes(scene: &mut Scene) -> udeck_via::Result {
    let before = *scene.pair.a.vi.attributes();
    let set = scene.pair.a.vi.set_attributes(ViAttributes { context: 7, ..before });
    let context = if set.is_ok() { 7 } else { before.context };
    assert_eq!(scene.pair.a.vi.attributes().context, context);
    set
}

fn send_done(scene: &mut Scene) -> udeck_via::Result {
    assert!(scene.pair.a.vi.send_done().is_none(), "nothing was posted");
    Ok(())
}

fn receive_done(scene: &mut Scene) -> udeck_via::Result {
    assert!(scene.pair.a.vi.receive_done().is_none(), "nothing was posted");
    Ok(())
}

fn query(scene: &mut Scene) -> udeck_via::Result {
    let End { nic, ptag, vi, .. } = &scene.pair.a;
    assert_eq!(vi.attributes().ptag, *ptag);
    assert_eq!(vi.nic().attributes().address, nic.attributes().address);
    Ok(())
}

fn every_call_in_every_state(fabric: &dyn Fabric) {
    for row in TABLE {
        for (before, effect) in STATES.into_iter().zip(row.effects) {
            let mut scene = Scene::new(fabric, before);
            let (result, name) = ((row.call)(&mut scene), row.name);
            let expected = match effect {
                Refused => {
                    let error = result.expect_err(&format!("{name} when {before:?}"));
                    let as_it_is = matches!(error, Error::InvalidState { state, .. } if state == before);
                    assert!(as_it_is, "{name} when {before:?}: {error}");
                    before
                }
                Unchanged | Goes(_) => {
                    result.unwrap_or_else(|error| panic!("{name} when {before:?}: {error}"));
                    if let Goes(after) = effect { after } else { before }
                }
            };
            assert_eq!(scene.state(), expected, "{name} when {before:?}");
        }
    }
}

fn a_refused_call_leaves_the_vi_as_good_as_before(fabric: &dyn Fabric) {
    for (at, state) in STATES.into_iter().enumerate() {
        let mut scene = Scene::new(fabric, state);
        for row in TABLE.iter().filter(|row| row.effects[at] == Refused) {
            (row.call)(&mut scene).expect_err(row.name);
        }
        match state {
            State::Idle | State::Error => {}
            State::ConnectPending => {
                peer_wait(&mut scene).unwrap();
                scene.pair.b.vi.peer_wait().unwrap();
                scene.pair.check();
            }
            State::Connected => scene.pair.check(),
        }
        scene.works();
    }
}

fn a_refused_accept_refuses_the_request(fabric: &dyn Fabric) {
    for state in [State::ConnectPending, State::Connected, State::Error] {
        let mut scene = Scene::new(fabric, state);
        let door = Door::new(&scene.pair.a.nic, b"other");
        let mut asker = End::new(&scene.pair.b.nic, |_| {});
        let (asked, answered) = door.connect(&mut asker, b"", |request| scene.pair.a.accept(request, b""));
        assert!(matches!(answered, Err(Error::InvalidState { .. })), "{answered:?}");
        assert!(matches!(asked, Err(Error::Rejected(_))), "{asked:?}");
        assert_eq!((asker.vi.state(), scene.state()), (State::Idle, state));
        let mut idle = End::new(&scene.pair.a.nic, |_| {});
        door.join(&mut asker, &mut idle);
    }
}

fn a_pending_vi_keeps_its_receives_for_the_connection(fabric: &dyn Fabric) {
    let mut scene = Scene::new(fabric, State::ConnectPending);
    scene.pair.a.post_receive(7);
    assert!(scene.pair.a.vi.receive_done().is_none());
    peer_wait(&mut scene).unwrap();
    scene.pair.b.vi.peer_wait().unwrap();
    scene.pair.b.post_send(b"pending");
    assert_eq!(scene.pair.a.received(), b"pending");
}

/// Both sides are tested: the accepting one between the acceptance and the program's next poll, and the connecting
/// one. The addresses determine which is which.
fn a_vi_is_pending_until_the_program_takes_its_connection(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    for _ in 0..2 {
        ask_peer(&mut pair.a, &pair.b).unwrap();
        ask_peer(&mut pair.b, &pair.a).unwrap();
        pair.b.vi.peer_wait().unwrap();
        pair.b.post_send(b"early");
        assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::ConnectPending, State::Connected));
        let early = Descriptor::new([pair.a.region(b"x")]);
        let (error, _) = pair.a.vi.post_send(early).unwrap_err();
        assert!(matches!(error, Error::InvalidState { state: State::ConnectPending, .. }), "{error}");
        pair.a.post_receive(5);
        assert!(pair.a.vi.receive_done().is_none(), "there is no connection to receive from yet");
        pair.a.vi.peer_wait().unwrap();
        assert_eq!(pair.a.vi.state(), State::Connected);
        assert_eq!(pair.a.received(), b"early", "what was sent meanwhile");
        pair.b.sent();
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
}

fn a_withdrawn_request_flushes_the_receives(fabric: &dyn Fabric) {
    let mut scene = Scene::new(fabric, State::ConnectPending);
    [11, 22, 33].into_iter().for_each(|len| scene.pair.a.post_receive(len));
    scene.pair.a.vi.disconnect();
    for len in [11, 22, 33] {
        let completion = scene.pair.a.vi.receive_done().expect("flushed");
        assert_eq!((completion.status, completion.length), (Status::Flushed, 0));
        assert_eq!(completion.descriptor.unwrap().len(), len);
    }
    scene.works();
}

fn the_error_state_ends_by_disconnect_only(fabric: &dyn Fabric) {
    let mut scene = Scene::new(fabric, State::Error);
    for row in TABLE.iter().filter(|row| row.effects[3] == Unchanged) {
        (row.call)(&mut scene).unwrap();
        assert_eq!(scene.state(), State::Error, "{}", row.name);
    }
    scene.pair.a.vi.disconnect();
    assert_eq!(scene.state(), State::Idle);
    scene.works();
}
