//! Agents of consumer notification objects: functions of the program's, each called on a thread of its own.
//!
//! An event dispatcher waits once for the agent, however many events it has: an agent that does not return holds up
//! no memory. An agent that is replaced, or whose object goes, is not called any more. The thread that removes it waits for a call that
//! has begun, unless that call itself removes it. The next agent is called with the dispatchers that were still waiting.
//!
//! An agent that panics is called again at the next notification, as every function of the program's that this library calls.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck::via::Deadline;
use udeck::via::thread::{self, Callback};

/// Function of the program's, called with the handle of an event dispatcher that has events.
pub type Agent = Box<dyn Fn(usize) + Send>;

/// Time that the removal of an agent waits for a call that has begun.
const PATIENCE: Duration = Duration::from_secs(10);

/// An agent on its thread. Dropping it ends its calls.
pub struct Called(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Event dispatchers that the agent is still to be called with, each once.
    news: VecDeque<usize>,
    is_over: bool,
    /// The thread on which the agent is called at the moment.
    calling: Option<ThreadId>,
}

impl Called {
    /// Starts the agent's thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(agent: Agent) -> io::Result<Called> {
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        thread::spawn_handlers("dat-agent", move || serving.serve(&agent), |_| {})?;
        Ok(Called(shared))
    }

    /// Has the agent called with an event dispatcher that has events.
    pub fn tell(&self, evd: usize) {
        let mut state = self.0.state.lock();
        if !state.is_over && !state.news.contains(&evd) {
            state.news.push_back(evd);
            self.0.changed.notify_all();
        }
    }

    /// Forgets an event dispatcher that is gone.
    pub fn forget(&self, evd: usize) {
        self.0.state.lock().news.retain(|other| *other != evd);
    }

    /// Ends the calls. Returns the event dispatchers that the agent was still to be called with, oldest first.
    pub fn retire(&self) -> VecDeque<usize> {
        self.0.over()
    }

    /// Ends the agent, and waits for a call that has begun. `false`: that call does not return.
    pub fn end(self) -> bool {
        self.retire();
        let mut state = self.0.state.lock();
        let deadline = Deadline::after(PATIENCE);
        while state.calling.is_some_and(|thread| thread != std::thread::current().id()) {
            if self.0.changed.wait_until(&mut state, deadline.instant()).timed_out() && deadline.passed() {
                return state.calling.is_none();
            }
        }
        true
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        self.0.over();
    }
}

impl Shared {
    fn over(&self) -> VecDeque<usize> {
        let mut state = self.state.lock();
        state.is_over = true;
        self.changed.notify_all();
        std::mem::take(&mut state.news)
    }

    fn serve(&self, agent: &Agent) {
        let calls = Callback::new("the agent of a CNO");
        loop {
            let evd = {
                let mut state = self.state.lock();
                loop {
                    if state.is_over {
                        return;
                    }
                    if let Some(evd) = state.news.pop_front() {
                        state.calling = Some(std::thread::current().id());
                        break evd;
                    }
                    self.changed.wait(&mut state); // until an event dispatcher notifies, or the agent ends
                }
            };
            let _ = calls.call(|| agent(evd));
            self.state.lock().calling = None;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn news_wait_once_and_the_end_waits_for_a_call() {
        let (began, begins) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let returned = Arc::new(AtomicBool::new(false));
        let told = returned.clone();
        let called = Called::start(Box::new(move |evd| {
            began.send(evd).unwrap();
            let _ = released.recv_timeout(LIMIT);
            told.store(true, Ordering::SeqCst);
        }))
        .unwrap();
        called.tell(1);
        assert_eq!(begins.recv_timeout(LIMIT), Ok(1));
        for _ in 0..1000 {
            called.tell(1);
            called.tell(2);
        }
        assert_eq!(called.0.state.lock().news, [1, 2]);
        called.forget(2);
        assert_eq!(called.0.state.lock().news, [1]);
        let ending = std::thread::spawn(move || (called.end(), returned.load(Ordering::SeqCst)));
        std::thread::sleep(Duration::from_millis(50)); // it waits, most often
        release.send(()).unwrap();
        assert_eq!(ending.join().unwrap(), (true, true));
        assert!(begins.recv_timeout(LIMIT).is_err(), "called after its end");
    }

    #[test]
    fn a_call_may_end_its_own_agent() {
        let place: Arc<Mutex<Option<Called>>> = Arc::default();
        let (from, calls) = (place.clone(), Arc::new(AtomicUsize::new(0)));
        let (counted, (ended, ends)) = (calls.clone(), mpsc::channel());
        let agent = Called::start(Box::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let own = from.lock().take();
            ended.send(own.is_some_and(Called::end)).unwrap();
        }));
        let mut held = place.lock();
        held.insert(agent.unwrap()).tell(1);
        held.as_ref().unwrap().tell(2);
        drop(held);
        assert_eq!(ends.recv_timeout(LIMIT), Ok(true));
        assert!(ends.recv_timeout(LIMIT).is_err(), "called after its end");
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn one_that_panics_is_called_again() {
        let (called, calls) = mpsc::channel();
        let agent = Called::start(Box::new(move |evd| {
            called.send(evd).unwrap();
            assert!(evd != 1, "the agent's own mistake");
        }))
        .unwrap();
        for evd in [1, 2, 1, 3] {
            agent.tell(evd);
            assert_eq!(calls.recv_timeout(LIMIT), Ok(evd));
        }
        assert!(agent.end(), "no call is under way");
    }
}
