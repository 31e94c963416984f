//! Windows that are revoked while a peer is in the middle of a write: no memory is lost for good, and none is reused
//! too early.

use udeck_sys::socket;
use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error, NetAddress, State, Vi, Window};

use super::attacker::{Attacker, Grip};
use super::victim::{Victim, soon};
use crate::board::WINDOWS;
use crate::layout::Direction;
use crate::peer_socket_wire::Datagram;

const LEN: usize = 5 << 20; // more than half of the victim's landing arena

struct Scene {
    attacker: Attacker,
    grip: Grip,
    vi: Vi,
    victim: Victim,
}

impl Scene {
    /// Makes a window of the victim, with the attacker inside.
    fn new() -> (Self, Window) {
        let victim = Victim::new();
        let mut attacker = Attacker::admitted(victim.address());
        let (grip, vi) = attacker.connect(&victim);
        let scene = Scene { attacker, grip, vi, victim };
        let window = scene.window(LEN).unwrap();
        scene.grip.stay_in(&window);
        (scene, window)
    }

    fn window(&self, len: usize) -> udeck_via::Result<Window> {
        self.victim.nic.window(len, self.vi.attributes().ptag)
    }

    fn blocks(&self) -> usize {
        self.victim.nic.landing().usage().blocks
    }

    fn await_blocks(&self, blocks: usize) {
        let deadline = soon();
        while self.blocks() != blocks {
            assert!(!deadline.passed(), "{} blocks instead of {blocks}", self.blocks());
            std::thread::yield_now();
        }
    }

    /// Asserts that no entry of the board is lost.
    fn assert_all_windows_are_there(&self) {
        let all: Vec<_> = (0..WINDOWS).map(|_| self.window(64).unwrap()).collect();
        assert_eq!(self.blocks(), all.len());
    }
}

/// A process that is stopped in the middle of a copy is inside one window only. Windows of others are revoked at
/// once, more of them than the board has entries, whether their owner waits or not; so is a block that peers read.
#[test]
fn who_is_inside_a_window_holds_up_no_other() {
    let (mut scene, held) = Scene::new();
    for number in 0..2 * WINDOWS {
        let other = scene.window(64).unwrap();
        match number.is_multiple_of(2) {
            true => drop(other.revoke(Deadline::now()).expect("nobody is inside this one")),
            false => drop(other),
        }
    }
    assert_eq!(scene.blocks(), 1, "the one that the attacker is inside");
    let block = scene.victim.nic.outbox().block(500, Fill::Zero).unwrap();
    let readable = scene.victim.nic.readable(block, scene.vi.attributes().ptag);
    readable.map_err(|(error, _)| error).unwrap().revoke(Deadline::now()).expect("nobody reads it");
    let error = held.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    scene.victim.serves_the_honest(1);
    scene.grip.leave();
    scene.assert_all_windows_are_there();
}

#[test]
fn a_window_dropped_before_its_writer_died_comes_home() {
    let (mut scene, window) = Scene::new();
    drop(window);
    assert_eq!(scene.blocks(), 1, "the attacker may be writing there");
    let victim_address = scene.victim.address().to_vec();
    let other = Attacker::admitted(&victim_address);
    let died = std::mem::replace(&mut scene.attacker, other);
    drop(died);
    scene.await_blocks(0);
    scene.assert_all_windows_are_there();
    scene.victim.serves_the_honest(1);
}

#[test]
fn a_window_dropped_while_a_writer_is_inside_comes_home_when_it_leaves() {
    let (scene, window) = Scene::new();
    drop(window);
    let next = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 2, "the attacker is still inside");
    scene.grip.leave();
    let after = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 2, "the new ones alone");
    drop((next, after));
    scene.assert_all_windows_are_there();
}

/// A writer that is inside at every poll, but on a new visit each time, holds nothing up.
#[test]
fn a_later_visit_is_another_one() {
    let (scene, window) = Scene::new();
    let handle = window.remote().handle;
    drop(window);
    scene.grip.leave();
    scene.grip.stay_at(handle);
    let next = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 1, "the next window alone");
    scene.grip.leave();
    drop(next);
    scene.assert_all_windows_are_there();
}

#[test]
fn a_window_revoked_in_vain_comes_home() {
    let (scene, window) = Scene::new();
    let error = window.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(scene.blocks(), 1);
    scene.grip.leave();
    scene.assert_all_windows_are_there();
}

/// Otherwise a window would never be quiet where many write.
#[test]
fn a_window_that_is_asked_for_again_waits_for_nobody_else() {
    let (mut scene, mut window) = Scene::new();
    let (other, _vi) = scene.attacker.connect(&scene.victim);
    let error = window.close(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    other.stay_in(&window);
    assert!(window.close(Deadline::now()).is_err(), "the first is still inside");
    scene.grip.leave();
    window.close(Deadline::now()).expect("the other one came later");
    window.revoke(Deadline::now()).expect("closed already");
    scene.assert_all_windows_are_there();
}

/// The writer's connection is gone for its owner before the window is.
#[test]
fn a_window_is_not_quiet_because_its_vi_is_gone() {
    let (scene, window) = Scene::new();
    let Scene { attacker: _attacker, grip, vi, victim } = scene;
    drop(vi);
    let error = window.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let landing = victim.nic.landing();
    victim.nic.reclaim();
    assert_eq!(landing.usage().blocks, 1, "the attacker is still inside");
    grip.leave();
    victim.nic.reclaim();
    assert_eq!(landing.usage().blocks, 0);
}

#[test]
fn memory_that_a_writer_has_left_is_found_when_it_is_short() {
    let (scene, window) = Scene::new();
    drop(window);
    let error = scene.window(LEN).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    scene.grip.leave();
    scene.window(LEN).expect("what the first one held");
}

/// The writer can enter a window as soon as it has received the connection request, before its answer arrives.
#[test]
fn a_window_is_not_quiet_because_its_writer_has_not_answered() {
    let victim = Victim::new();
    let host = b"udeck-attacker-that-is-asked".to_vec();
    let listener = socket::listen_at(&host).unwrap();
    let mut vi = super::victim::vi(&victim.nic);
    let window = victim.nic.window(LEN, vi.attributes().ptag).unwrap();
    let (to, queue) = (NetAddress { host, discriminator: b"attacker".to_vec() }, victim.cq.handle());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| vi.connect(&to, &queue, &queue, &[], soon()));
        let (attacker, control) = Attacker::asked(&listener);
        let handle = window.remote().handle;
        std::mem::forget(Direction::new(&control, 1).sender().gate.enter(handle.0));
        let error = window.revoke(Deadline::now()).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        drop(attacker);
        let error = asking.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
    });
}

/// The writer broke the protocol elsewhere, and is still in the middle of a write.
#[test]
fn a_window_is_not_quiet_because_its_writer_lied() {
    let (mut scene, window) = Scene::new();
    scene.grip.push(u32::MAX, 0, &[]);
    assert!(matches!(scene.vi.arrival(), Err(Error::Lost(_))));
    assert_not_quiet_until_the_attacker_dies(scene, window);
}

#[test]
fn a_window_is_not_quiet_because_its_writers_link_is_down() {
    let (mut scene, window) = Scene::new();
    scene.attacker.send(&Datagram::Welcome, &[]);
    let deadline = soon();
    // (The ring may be full before the link is down.)
    while scene.vi.send_inline(None, &[], b"?").is_ok() || scene.vi.state() == State::Connected {
        assert!(!deadline.passed(), "the link is up still");
        std::thread::yield_now();
    }
    assert_not_quiet_until_the_attacker_dies(scene, window);
}

fn assert_not_quiet_until_the_attacker_dies(scene: Scene, window: Window) {
    let Scene { attacker, grip, vi, mut victim } = scene;
    drop(vi);
    let error = window.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let nic = victim.nic.clone();
    nic.reclaim();
    assert_eq!(nic.landing().usage().blocks, 1, "the attacker is still inside");
    drop((attacker, grip));
    let deadline = soon();
    while nic.landing().usage().blocks > 0 {
        assert!(!deadline.passed(), "the attacker is dead");
        std::thread::yield_now();
    }
    victim.serves_the_honest(1);
}
