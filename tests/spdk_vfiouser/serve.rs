//! The built server on drives that hang, are reset and go, with a client for each drive.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace::storage::mem;

use crate::support::reader::Reader;
use crate::support::{Server, millrace};
use crate::target::{Drive, Target, Trouble};
use crate::{fill, open, start, writable};

/// Reads that each client keeps in flight.
const DEPTH: u16 = 8;

/// A server on these drives. Its steps against a drive that hangs come after 1 s each.
fn serve(names: &[String]) -> Server {
    let storage = open(names, writable());
    fill(&storage);
    drop(storage);
    let mut args = vec!["--backend", "spdk", "--depth", "32", "--slot-size", "64KiB"];
    // The deadline of requests is not what these tests are about.
    args.extend(["--command-timeout", "1s", "--deadline", "120s"]);
    names.iter().for_each(|name| args.extend(["--device", name]));
    let mut program = millrace();
    // Its last line says how many slots are leaked.
    program.env("RUST_LOG", "info");
    Server::start_command(program, &args)
}

/// Runs `story` while a client reads each of the two drives of `server`; their clients, ended.
fn with_two_clients(server: &Server, story: impl FnOnce(&Reader, &Reader)) -> [Reader; 2] {
    let readers = [Reader::default(), Reader::default()];
    std::thread::scope(|scope| {
        let threads = [0u16, 1].map(|drive| {
            let (reader, address) = (&readers[usize::from(drive)], &server.address);
            let expected = move |offset, buffer: &mut [u8]| mem::fill(drive, offset, buffer);
            scope.spawn(move || reader.run(address, drive, DEPTH, &expected))
        });
        let [first, second] = &readers;
        // Whatever happens in it, the clients are told to stop.
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(first, second)));
        readers.iter().for_each(|reader| reader.stop.store(true, Ordering::Relaxed));
        threads.into_iter().for_each(|thread| thread.join().expect("a client"));
        told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    readers
}

fn until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !reached() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `reader` has got `more` of its reads well.
fn goes_on(reader: &Reader, more: u64) {
    let goal = reader.ok.load(Ordering::Relaxed) + more;
    until("its client does not go on", || reader.ok.load(Ordering::Relaxed) >= goal);
}

/// Some commands of a loaded drive hang: the server resets its controller. Each request ends once,
/// with data or as aborted; the drive goes on; the other drive's client sees data alone.
#[test]
fn a_drive_that_hangs_is_reset_under_the_server() {
    let hangs = Drive { trouble: Trouble::Hangs, ..Drive::new(4096) };
    let test = "a_drive_that_hangs_is_reset_under_the_server";
    let Some((_turn, target)) = start(test, &[&[hangs], &[Drive::new(4096)]]) else { return };
    let server = serve(&[target.id(0), target.id(1)]);
    let readers = with_two_clients(&server, |first, second| {
        goes_on(first, 200);
        goes_on(second, 200);
        target.hang(0, 0, 3);
        until("nothing was aborted", || first.aborted.load(Ordering::Relaxed) >= 3);
        goes_on(first, 200);
        goes_on(second, 200);
    });
    println!("{readers:?}");
    assert_eq!(readers[0].counts().1, 0);
    let (_, gone, aborted) = readers[1].counts();
    assert_eq!((gone, aborted), (0, 0));
    let (code, log) = server.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("resetting the controller") && log.contains("reset in "), "{log}");
    assert!(log.contains(" 0 slots leaked"), "{log}");
}

/// A controller stops to answer and does not come back: its drive fails, with a status, and its
/// slots are counted as leaked. The other drive's client goes on, and the server ends well.
#[test]
fn a_drive_that_freezes_fails_under_the_server() {
    let test = "a_drive_that_freezes_fails_under_the_server";
    let Some((_turn, frozen)) = start(test, &[&[Drive::new(4096)]]) else { return };
    let staying = Target::start(&[&[Drive::new(4096)]]).expect("a second target");
    let server = serve(&[frozen.id(0), staying.id(0)]);
    let readers = with_two_clients(&server, |first, second| {
        goes_on(first, 200);
        goes_on(second, 200);
        frozen.freeze();
        goes_on(second, 200);
        // Those in flight, and many that come after.
        until("the drive does not fail", || first.gone.load(Ordering::Relaxed) > 100);
        goes_on(second, 200);
    });
    println!("{readers:?}");
    let (_, gone, aborted) = readers[1].counts();
    assert_eq!((gone, aborted), (0, 0));
    let (code, log) = server.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("is given up"), "{log}");
    assert!(log.contains(&format!(" {DEPTH} slots leaked")), "{log}");
}
