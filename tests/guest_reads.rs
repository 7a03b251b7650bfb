//! Bytes that a server on real (emulated) drives sends, compared with what the drives hold. Run by
//! tests/guest/uring-rdma.sh, whose guest fills its drives with keystreams that can be computed.

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use millrace::client::{Client, ClientOptions, Read};
use millrace::memory::Pages;
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
