//! Bytes that a server on real (emulated) drives sends, compared with what the drives hold.
//! tests/guest/uring-rdma.sh runs it, whose guest fills its drives with keystreams that can be
//! computed; and tests/guest/paths.sh, which compares the two data paths.

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use millrace::client::{Client, ClientOptions, Read};
use millrace::memory::Pages;
use support::reader::Reader;
use support::skip;

const LONGEST: u32 = 1 << 20;

/// What scripts/vm fills a namespace with (scripts/vm.d/drives.sh): zeros encrypted by AES-128-CTR,
/// so that any range can be had from the counter of its first block.
fn keystream(key: u64, offset: u64, len: u32) -> Vec<u8> {
    let (key, counter) = (format!("{key:032x}"), format!("{:032x}", offset / 16));
    let mut openssl = Command::new("openssl")
        .args(["enc", "-aes-128-ctr", "-K", &key, "-iv", &counter])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl is there");
    let mut zeros = openssl.stdin.take().expect("piped");
    // Not from this thread: both pipes would fill up.
    let feeder = std::thread::spawn(move || zeros.write_all(&vec![0; len as usize]));
    let output = openssl.wait_with_output().expect("it ends");
    feeder.join().expect("no panic").expect("openssl takes its input");
    assert!(output.status.success(), "{:?}", output.status);
    output.stdout
}

/// Offsets and lengths: both ends of the drive, every size of request, none of them alike.
fn ranges(capacity: u64, block: u32) -> Vec<(u64, u32)> {
    let step = u64::from(block);
    let last = capacity - u64::from(LONGEST);
    let mut ranges = vec![(0, 4096), (last, LONGEST), (capacity - step, block)];
    let lengths = [3 * block, 65_536, 131_072 + block, LONGEST - block];
    for (n, len) in (1u64..).zip(lengths) {
        ranges.push((n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % last / step * step, len));
    }
    ranges
}

#[test]
fn what_arrives_is_what_the_drives_hold() {
    let Ok(address) = std::env::var("MILLRACE_TEST_SERVER") else {
        return skip("guest_reads", "no drives with known contents; tests/guest/uring-rdma.sh");
    };
    let options = ClientOptions { pages: Pages::Base, ..ClientOptions::default() };
    let mut client = Client::connect(&address, &options).unwrap();
    let drives = client.drives().to_vec();
    assert!(!drives.is_empty());
    let mut reads = Vec::new();
    for (number, drive) in (0u16..).zip(&drives) {
        let k = drive.serial.strip_prefix("mill").expect("a drive of scripts/vm").parse::<u64>();
        // Drive K, namespace 1.
        let key = k.expect("its number") * 65_536 + 1;
        for (offset, len) in ranges(drive.capacity, drive.block_size) {
            reads.push((Read { drive: number, offset, len, tag: reads.len() as u64 }, key));
        }
    }
    // Across drives and sizes, so that a payload put into another's place would show.
    let stride = 5;
    assert!(!reads.len().is_multiple_of(stride), "the stride visits each");
    let (mut next, mut compared) = (0, 0);
    let mut done = Vec::with_capacity(64);
    while compared < reads.len() {
        while next < reads.len()
            && client.submit(reads[next * stride % reads.len()].0).unwrap()
                == millrace::client::Submitted::Queued
        {
            next += 1;
        }
        client.flush().unwrap();
        if client.poll(&mut done).unwrap() == 0 {
            // Soft-RoCE and the server work on the CPUs that would otherwise be spun on.
            std::thread::yield_now();
        }
        for answer in done.drain(..) {
            let (Read { drive, offset, len, .. }, key) = reads[answer.tag as usize];
            client.verify(&answer).unwrap();
            let payload = client.payload(&answer).unwrap();
            let expected = keystream(key, offset, len);
            assert!(payload == expected, "{len} bytes at {offset} of drive {drive} differ");
            client.recycle(answer);
            compared += 1;
        }
    }
    println!("{compared} ranges of {} drives are right", drives.len());
}

/// The same 2,000 ranges for a drive of the same size: both ends, sizes from one block to 8 MiB,
/// starts that are not aligned to 2 MiB, and many that cross such a border.
fn two_thousand(capacity: u64, block: u32, longest: u32) -> Vec<(u64, u32)> {
    const BORDER: u64 = 2 << 20;
    let unit = u64::from(block);
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut ranges = vec![(0, block), (capacity - unit, block), (0, longest)];
    ranges.push((capacity - u64::from(longest), longest));
    while ranges.len() < 2000 {
        let len = match random(16) {
            0 => (block << random(15)).min(longest),
            _ => block * (1 + random(64) as u32),
        };
        let last = (capacity - u64::from(len)) / unit;
        let offset = match random(4) {
            // Begins a few blocks before a border of a hugepage.
            0 => {
                let border = (1 + random(capacity / BORDER - 1)) * BORDER;
                (border - unit * (1 + random(4))).min(last * unit)
            }
            _ => random(last + 1) * unit,
        };
        ranges.push((offset, len));
    }
    ranges
}

/// Reads the 2,000 ranges of each drive and writes a line with offset, length and CRC for each, so
/// that two servers can be compared; with a copy of the drive, its bytes are compared as well.
#[test]
fn crcs_of_two_thousand_ranges() {
    const NAME: &str = "crcs_of_two_thousand_ranges";
    let Ok(address) = std::env::var("MILLRACE_TEST_CRC_SERVER") else {
        return skip(NAME, "no server to compare; tests/guest/paths.sh");
    };
    let out = std::env::var("MILLRACE_TEST_CRC_LIST").expect("where to write the CRCs");
    let copy = std::env::var("MILLRACE_TEST_CRC_COPY").expect("a copy of the drive");
    let copy = std::fs::read(copy).expect("the copy can be read");
    let options = ClientOptions {
        depth: 4,
        max_read: 8 << 20,
        pages: Pages::Base,
        timeout: std::time::Duration::from_secs(60),
        ..ClientOptions::default()
    };
    let mut client = Client::connect(&address, &options).unwrap();
    let drive = client.drives()[0].clone();
    assert_eq!(drive.capacity as usize, copy.len(), "the drive and its copy");
    let ranges = two_thousand(drive.capacity, drive.block_size, 8 << 20);
    let mut crcs = vec![None; ranges.len()];
    let (mut next, mut answered) = (0, 0);
    let mut done = Vec::with_capacity(4);
    while answered < ranges.len() {
        while next < ranges.len() {
            let (offset, len) = ranges[next];
            let read = Read { drive: 0, offset, len, tag: next as u64 };
            if client.submit(read).unwrap() == millrace::client::Submitted::Busy {
                break;
            }
            next += 1;
        }
        client.flush().unwrap();
        if client.poll(&mut done).unwrap() == 0 {
            // Soft-RoCE does its work on these processors.
            std::thread::yield_now();
        }
        for answer in done.drain(..) {
            let (offset, len) = ranges[answer.tag as usize];
            client.verify(&answer).unwrap();
            let payload = client.payload(&answer).unwrap();
            let expected = &copy[offset as usize..][..len as usize];
            assert!(payload == expected, "{len} bytes at {offset} differ from the drive's");
            crcs[answer.tag as usize] = answer.record.payload_crc();
            client.recycle(answer);
            answered += 1;
        }
    }
    let mut list = String::new();
    for ((offset, len), crc) in ranges.iter().zip(crcs) {
        let crc = crc.expect("every range was answered with its CRC");
        list.push_str(&format!("{offset} {len} {crc:016x}\n"));
    }
    std::fs::write(out, list).expect("the list can be written");
    println!("{answered} ranges of {} are right", drive.name);
}

/// Reads one drive of a server, and says how its reads end in a file, until another file is there.
/// tests/guest/spdk-faults.sh runs one for each drive and does things to the drives meanwhile.
#[test]
fn a_reader_of_one_drive() {
    let Ok(address) = std::env::var("MILLRACE_TEST_READER_SERVER") else {
        return skip("a_reader_of_one_drive", "no server; tests/guest/spdk-faults.sh runs it");
    };
    let named = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}"));
    let drive = named("MILLRACE_TEST_READER_DRIVE").parse().expect("a number");
    let copy = std::fs::read(named("MILLRACE_TEST_READER_COPY")).expect("a copy of the drive");
    let base = std::path::PathBuf::from(named("MILLRACE_TEST_READER_FILES"));
    let (counts, stop) = (base.with_extension("counts"), base.with_extension("stop"));
    let reader = Reader::default();
    let say = || {
        let (ok, gone, aborted) = reader.counts();
        let new = base.with_extension("new");
        std::fs::write(&new, format!("{ok} {gone} {aborted}\n")).expect("it can be written");
        std::fs::rename(&new, &counts).expect("it can be renamed");
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            reader.run(&address, drive, 4, &|offset, buffer| {
                buffer.copy_from_slice(&copy[offset as usize..][..buffer.len()]);
            });
        });
        while !thread.is_finished() {
            reader.stop.store(stop.exists(), std::sync::atomic::Ordering::Relaxed);
            say();
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        thread.join().expect("its reads end as they may");
    });
    say();
}
