//! Windows that are taken back while a peer is in the middle of a write: nothing is lost for good, nothing too early.

use udeck_via::{Deadline, Error, Vi, Window};

use super::prey::{Prey, soon};
use super::rogue::{Grip, Rogue};
use crate::board::WINDOWS;

const LEN: usize = 5 << 20; // more than half of the prey's landing

struct Scene {
    rogue: Rogue,
    grip: Grip,
    vi: Vi,
    prey: Prey,
}

impl Scene {
    /// The rogue is inside its gate, and the prey has a window.
    fn new() -> (Self, Window) {
        let prey = Prey::new();
        let mut rogue = Rogue::admitted(prey.address());
        let (grip, vi) = rogue.connect(&prey);
        let scene = Scene { rogue, grip, vi, prey };
        scene.grip.direction().sender().gate.enter();
        let window = scene.window(LEN).unwrap();
        (scene, window)
    }

    fn window(&self, len: usize) -> udeck_via::Result<Window> {
        self.prey.nic.window(len, self.vi.attributes().ptag)
    }

    fn blocks(&self) -> usize {
        self.prey.nic.device().landing().usage().blocks
    }

    fn await_blocks(&self, blocks: usize) {
        let deadline = soon();
        while self.blocks() != blocks {
            assert!(!deadline.passed(), "{} blocks instead of {blocks}", self.blocks());
            std::thread::yield_now();
        }
    }

    /// No entry of the board is lost either.
    fn assert_all_windows_are_there(&self) {
        let all: Vec<_> = (0..WINDOWS).map(|_| self.window(64).unwrap()).collect();
        assert_eq!(self.blocks(), all.len());
    }
}

#[test]
fn a_window_dropped_before_its_writer_died_comes_home() {
    let (mut scene, window) = Scene::new();
    drop(window);
    assert_eq!(scene.blocks(), 1, "the rogue may be writing there");
    let prey_address = scene.prey.address().to_vec();
    let other = Rogue::admitted(&prey_address);
    let died = std::mem::replace(&mut scene.rogue, other);
    drop(died);
    scene.await_blocks(0);
    scene.assert_all_windows_are_there();
    scene.prey.serves_the_honest(1);
}

#[test]
fn a_window_dropped_while_a_writer_is_inside_comes_home_when_it_leaves() {
    let (scene, window) = Scene::new();
    drop(window);
    let next = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 2, "the rogue is still inside");
    scene.grip.direction().sender().gate.leave();
    let after = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 2, "the new ones alone");
    drop((next, after));
    scene.assert_all_windows_are_there();
}

/// A writer that is always inside when one looks, though not with what it found then, holds nothing up.
#[test]
fn a_later_visit_is_another_one() {
    let (scene, window) = Scene::new();
    drop(window);
    let direction = scene.grip.direction();
    direction.sender().gate.leave();
    direction.sender().gate.enter();
    let next = scene.window(64).unwrap();
    assert_eq!(scene.blocks(), 1, "the next window alone");
    direction.sender().gate.leave();
    drop(next);
    scene.assert_all_windows_are_there();
}

#[test]
fn a_window_revoked_in_vain_comes_home() {
    let (scene, window) = Scene::new();
    let error = window.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(scene.blocks(), 1);
    scene.grip.direction().sender().gate.leave();
    scene.assert_all_windows_are_there();
}

/// The connection that the writer uses is gone, for its owner, before the window is.
#[test]
fn a_window_is_not_quiet_because_its_vi_is_gone() {
    let (scene, window) = Scene::new();
    let Scene { rogue: _rogue, grip, vi, prey } = scene;
    drop(vi);
    let error = window.revoke(Deadline::now()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let landing = prey.nic.device().landing();
    prey.nic.device().reclaim();
    assert_eq!(landing.usage().blocks, 1, "the rogue is still inside");
    grip.direction().sender().gate.leave();
    prey.nic.device().reclaim();
    assert_eq!(landing.usage().blocks, 0);
}

#[test]
fn memory_that_a_writer_has_left_is_found_when_it_is_short() {
    let (scene, window) = Scene::new();
    drop(window);
    let error = scene.window(LEN).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    scene.grip.direction().sender().gate.leave();
    scene.window(LEN).expect("what the first one held");
}
