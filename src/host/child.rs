//! Programs that must not outlive this one.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel kill the program that `command` starts once the calling thread ends, however
/// that comes about (prctl(2), PR_SET_PDEATHSIG).
pub fn die_with_us(command: &mut Command) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl and getppid touch no memory of this process, and both may be called
        // between fork and exec (they are system calls without locks).
        let (done, now) = unsafe {
            (
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong),
                libc::getppid() as u32,
            )
        };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // It may have ended before the signal was set.
        if now != parent {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock and makes system calls only.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a signal to a process that this one has started and not waited for yet.
pub fn signal(child: &std::process::Child, signal: i32) -> std::io::Result<()> {
    // SAFETY: has no precondition. The child has not been waited for (we have its handle), so its
    // number is its own still.
    match unsafe { libc::kill(child.id() as libc::pid_t, signal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
