use super::*;
use crate::memory::{ArenaSpec, Pages};
use crate::skip::skip;

/// Runs on a thread of its own: capabilities and seccomp filters are a thread's.
fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(run).join().expect("the thread ends well")
}

/// Takes capabilities (capabilities(7), numbers below 32) from the calling thread.
fn drop_capabilities(numbers: &[u32]) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    // Effective, permitted and inheritable, for the low and the high 32 numbers.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: capget(2) reads the header and writes two sets, capset(2) reads both.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets), 0);
        numbers.iter().for_each(|number| sets[0][0] &= !(1 << number));
        assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, &raw const sets), 0);
    }
}

/// Has the calling thread's io_uring_setup answer EPERM, as container runtimes do.
fn refuse_by_seccomp() {
    // Classic BPF over struct seccomp_data, whose first word is the number of the system call.
    const LOAD_WORD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: prctl(2) reads the program; both calls change only the calling thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

fn options() -> UringOptions {
    UringOptions::default()
}

#[test]
fn a_seccomp_filter_is_named_as_the_cause() {
    let error = on_a_thread(|| {
        refuse_by_seccomp();
        Ring::new(8, options()).map(drop).unwrap_err()
    });
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.report().contains("seccomp"), "{}", error.report());
}

#[test]
#[ignore = "sets kernel.io_uring_disabled of the machine; tests/guest/faults.sh runs it"]
fn the_sysctl_is_named_as_the_cause() {
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            std::fs::write(SYSCTL, &self.0).expect("the sysctl is restored");
        }
    }
    const CAP_SYS_ADMIN: u32 = 21;
    let restore = Restore(std::fs::read_to_string(SYSCTL).unwrap());
    // 1 leaves processes with CAP_SYS_ADMIN alone, so others on the machine go on.
    std::fs::write(SYSCTL, "1").unwrap();
    let error = on_a_thread(|| {
        drop_capabilities(&[CAP_SYS_ADMIN]);
        Ring::new(8, options()).map(drop).unwrap_err()
    });
    drop(restore);
    assert!(error.what().contains("kernel.io_uring_disabled = 1"), "{}", error.report());
}

#[test]
fn too_little_locked_memory_says_need_and_limit() {
    const CAP_IPC_LOCK: u32 = 14;
    let limit = memlock_limit().unwrap_or(u64::MAX);
    if limit > 1 << 28 {
        let test = "storage::uring too_little_locked_memory_says_need_and_limit";
        return skip(test, &format!("the limit is {limit} bytes"));
    }
    let error = on_a_thread(move || {
        drop_capabilities(&[CAP_IPC_LOCK]);
        let bytes = limit as usize + (1 << 20);
        let arena = Arena::map(&ArenaSpec { bytes, pages: Pages::Base, node: None }).unwrap();
        let ring = Ring::new(8, options()).unwrap();
        // SAFETY: the arena is dropped after the ring.
        unsafe { ring.register_arena(&arena) }.unwrap_err()
    });
    assert_eq!(error.kind(), Kind::Resource);
    assert!(error.what().contains("locks 9MiB") || limit != 8 << 20, "{error}");
    assert!(error.report().contains("--regbufs off"), "{}", error.report());
}

#[test]
fn the_table_of_rings_is_given_back_and_its_end_is_told() {
    on_a_thread(|| {
        // Twice the table, one after the other: each gives its place back.
        for _ in 0..32 {
            Ring::new(1, options()).unwrap();
        }
        let rings: Vec<_> = (0..16).map(|_| Ring::new(1, options()).unwrap()).collect();
        let error = Ring::new(1, options()).map(drop).unwrap_err();
        assert!(error.report().contains("--regring off"), "{}", error.report());
        Ring::new(1, UringOptions { regring: false, ..options() }).unwrap();
        drop(rings);
    });
}

#[test]
fn an_idle_ring_makes_no_system_call() {
    let mut ring = Ring::new(8, options()).unwrap();
    for _ in 0..10 {
        ring.enter(false, false).unwrap();
    }
    assert_eq!(ring.enters(), 0);
}
