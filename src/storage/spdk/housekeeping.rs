//! The thread that keeps controllers alive: admin queues (keep-alive, events), hot-plug, resets.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spdk_sys as sys;

use super::controller::{Controller, Kin, Phase};
use super::env;
use crate::error::{Error, Kind, Result};

/// Time between two looks at the admin queues.
const TICK: Duration = Duration::from_millis(10);

/// Ticks between two looks at hot-plug events and status registers.
const SCAN_TICKS: u32 = 10;

/// How long queues may take to comply with a phase. They poll millions of times a second; a queue
/// that does not is one whose thread is not running.
const COMPLY: Duration = Duration::from_secs(2);

/// Pause between the last doorbell and the end of a controller. QEMU's (7.2) that is disabled while
/// it fetches commands ends them into queues that it has freed, and crashes.
const SETTLE: Duration = Duration::from_millis(20);

/// How long a controller may take to be disabled, and to be enabled again. SPDK bounds its steps by
/// what the controller says of itself (CAP.TO), and not at all where that is 0, as the registers of
/// a dead one may read.
const STEP: Duration = Duration::from_secs(30);

/// How long the thread may take to end before it is helped: above what a reset takes that goes
/// well.
const END: Duration = Duration::from_secs(20);

/// A job for the thread.
enum Job {
    Reset(usize, Sender<Result<()>>),
}

/// The thread, stopped and joined on drop.
#[derive(Debug)]
pub(super) struct Housekeeping {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    controllers: Vec<Arc<Controller>>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Housekeeping {
    /// Starts it over `controllers`.
    pub(super) fn start(controllers: Vec<Arc<Controller>>) -> Result<Self> {
        let (jobs, inbox) = channel();
        let kept = controllers.clone();
        let thread = std::thread::Builder::new()
            .name("spdk-keeper".into())
            .spawn(move || Keeper { controllers, ticks: 0 }.run(&inbox))
            .map_err(|e| {
                Error::new(Kind::Resource, "cannot start SPDK's housekeeping thread").caused_by(e)
            })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), controllers: kept })
    }

    /// Resets controller number `index` and waits for the outcome.
    pub(super) fn reset(&self, index: usize) -> Result<()> {
        let gone = || Error::new(Kind::Device, "SPDK's housekeeping thread has ended");
        let (answer, outcome) = channel();
        let jobs = self.jobs.as_ref().expect("present until drop");
        jobs.send(Job::Reset(index, answer)).map_err(|_| gone())?;
        outcome.recv().map_err(|_| gone())?
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let deadline = Instant::now() + END;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= deadline {
                // It is in the middle of a reset, or waits for a vfio-user target without a bound.
                let unended = self.controllers.iter().filter(|c| {
                    c.kin == Kin::VfioUser || matches!(c.phase(), Phase::Quiesce | Phase::Release)
                });
                unended.for_each(|controller| controller.give_up());
                break;
            }
            std::thread::sleep(TICK);
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("SPDK's housekeeping thread has panicked");
        }
    }
}

struct Keeper {
    controllers: Vec<Arc<Controller>>,
    ticks: u32,
}

impl Keeper {
    fn run(&mut self, inbox: &Receiver<Job>) {
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Job::Reset(index, answer)) => {
                    let outcome = self.reset(index);
                    // Nobody to tell where the caller has ended meanwhile.
                    let _ = answer.send(outcome);
                }
                Err(RecvTimeoutError::Timeout) => self.tick(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        let scan = self.ticks.is_multiple_of(SCAN_TICKS);
        if scan && self.controllers.iter().any(|c| c.kin == Kin::Pci && !c.phase().is_final()) {
            // SAFETY: the environment is up; it looks at attached controllers only, and marks
            // those that have left the bus.
            unsafe { sys::shim_scan_attached() };
        }
        for index in 0..self.controllers.len() {
            let controller = Arc::clone(&self.controllers[index]);
            if controller.phase() != Phase::Running {
                continue;
            }
            if scan && self.look(&controller) {
                continue;
            }
            let alive = poll_admin(&controller);
            if (controller.take_reset_wish() || !alive)
                && let Err(e) = self.reset(index)
            {
                log::error!("{}", e.report());
            }
        }
    }

    /// Looks whether a controller is still there. True where it is not.
    fn look(&self, controller: &Controller) -> bool {
        if controller.kin == Kin::Fabric {
            return false;
        }
        // SAFETY: it is attached, as it runs.
        if unsafe { sys::shim_pci_removed(controller.raw()) } {
            self.remove(controller);
            return true;
        }
        let lock = env::exclusive();
        // SAFETY: as above. A function that has left the bus reads as all ones; SPDK catches the
        // SIGBUS of a mapping that the kernel has taken away.
        let csts = unsafe { sys::shim_csts(controller.raw()) };
        drop(lock);
        // SAFETY: a pure function of its argument.
        let fatal = unsafe { sys::shim_csts_fatal(csts) };
        if fatal {
            log::error!("{}: controller status {csts:#x}: fatal, or gone", controller.name);
            controller.ask_reset();
        }
        false
    }

    /// The function has left the bus: everybody lets go, then it is detached, which is what the
    /// kernel waits for before it gives up the device.
    fn remove(&self, controller: &Controller) {
        log::error!("{} has been removed", controller.name);
        let Some(word) = controller.advance(controller.word(), Phase::Removed) else { return };
        if self.wait(controller, word) {
            controller.detach();
        } else {
            log::error!("{}: a queue did not let go; the controller is leaked", controller.name);
        }
    }

    /// True where a controller that does not answer turns out to have left the bus: its registers
    /// read as all ones before the event arrives.
    fn was_removed(&self, controller: &Controller) -> bool {
        let deadline = Instant::now() + COMPLY;
        while controller.kin == Kin::Pci && Instant::now() < deadline {
            // SAFETY: the environment is up; marks attached controllers that have left the bus.
            unsafe { sys::shim_scan_attached() };
            // SAFETY: it is attached until `remove`.
            if unsafe { sys::shim_pci_removed(controller.raw()) } {
                return true;
            }
            self.poll_others(controller);
            std::thread::sleep(TICK);
        }
        false
    }

    /// Waits until all queues comply with `word`. False after [`COMPLY`].
    fn wait(&self, controller: &Controller, word: u32) -> bool {
        let deadline = Instant::now() + COMPLY;
        while !controller.all_acknowledged(word) {
            if Instant::now() >= deadline {
                return false;
            }
            self.poll_others(controller);
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Keeps the other controllers alive while one is being dealt with.
    fn poll_others(&self, but: &Controller) {
        for other in &self.controllers {
            if !std::ptr::eq(&**other, but) && other.phase() == Phase::Running && !poll_admin(other)
            {
                other.ask_reset();
            }
        }
    }

    /// Resets a controller: see the protocol in [`super::controller`].
    fn reset(&self, index: usize) -> Result<()> {
        let Some(controller) = self.controllers.get(index) else {
            return Err(Error::usage(format!("no controller {index}")));
        };
        let gone = || Error::new(Kind::Device, format!("{} is gone", controller.name));
        controller.take_reset_wish();
        let running = controller.word();
        if Phase::of(running) != Phase::Running {
            return Err(gone());
        }
        let begun = Instant::now();
        log::warn!("{}: resetting the controller", controller.name);
        let quiesce = controller.advance(running, Phase::Quiesce).ok_or_else(gone)?;
        if !self.wait(controller, quiesce) {
            let _ = controller.advance(quiesce, Phase::Running);
            return Err(Error::new(
                Kind::Busy,
                format!("{}: not reset, since a queue is not being polled", controller.name),
            ));
        }
        std::thread::sleep(SETTLE);
        if !self.disable(controller) {
            if self.was_removed(controller) {
                self.remove(controller);
            } else {
                controller.give_up();
            }
            return Err(Error::new(
                Kind::Device,
                format!("{}: the controller could not be disabled", controller.name),
            )
            .remedy("power-cycle the drive, or start the target again; then this program"));
        }
        let release = controller.advance(quiesce, Phase::Release).ok_or_else(gone)?;
        if !self.wait(controller, release) {
            controller.give_up();
            return Err(gone());
        }
        if !self.enable(controller) {
            controller.give_up();
            return Err(Error::new(
                Kind::Device,
                format!("{}: the controller did not come back from its reset", controller.name),
            )
            .remedy("power-cycle the drive, or start the target again; then this program"));
        }
        controller.advance(release, Phase::Running).ok_or_else(gone)?;
        log::warn!("{}: reset in {:?}", controller.name, begun.elapsed());
        Ok(())
    }

    /// Disables the controller, so that it lets go of all queues. True where that is proven.
    fn disable(&self, controller: &Controller) -> bool {
        let raw = controller.raw();
        let _lock = env::exclusive();
        // SAFETY: attached, and every queue has said that it does not touch it now.
        if unsafe { sys::spdk_nvme_ctrlr_disconnect(raw) } != 0 {
            return false;
        }
        let deadline = Instant::now() + STEP;
        // -ENXIO says that it is done.
        // SAFETY: as above.
        while unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(raw) } != -libc::ENXIO {
            if given_up(controller, deadline) {
                return false;
            }
            self.poll_others(controller);
        }
        // With a fabric the connections are closed when the queue pairs are freed.
        if controller.kin == Kin::Fabric {
            return true;
        }
        // SAFETY: as above.
        let csts = unsafe { sys::shim_csts(raw) };
        // SAFETY: a pure function of its argument. All ones, for a dead controller, is "ready".
        unsafe { !sys::shim_csts_ready(csts) }
    }

    /// Enables it again and initialises it anew.
    fn enable(&self, controller: &Controller) -> bool {
        let raw = controller.raw();
        let _lock = env::exclusive();
        // SAFETY: attached and disabled; no queue pair is left. The controller's lock is held from
        // here until the poll below ends, on this thread; for ever where that is given up, after
        // which nobody calls a function of this controller (phase Lost).
        unsafe { sys::spdk_nvme_ctrlr_reconnect_async(raw) };
        let deadline = Instant::now() + STEP;
        loop {
            // SAFETY: follows reconnect_async, as spdk/nvme.h asks.
            match unsafe { sys::spdk_nvme_ctrlr_reconnect_poll_async(raw) } {
                0 => return true,
                answer if answer == -libc::EAGAIN && !given_up(controller, deadline) => {
                    self.poll_others(controller);
                }
                _ => return false,
            }
        }
    }
}

/// True where a step of a reset is not to be waited for any more: the workers or the end of the
/// program have given the controller up, or it is late.
fn given_up(controller: &Controller, deadline: Instant) -> bool {
    controller.phase().is_final() || Instant::now() >= deadline
}

/// Polls an admin queue. False where the controller is failed.
fn poll_admin(controller: &Controller) -> bool {
    // SAFETY: attached, as its phase is Running; the function takes the controller's lock.
    unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(controller.raw()) >= 0 }
}
