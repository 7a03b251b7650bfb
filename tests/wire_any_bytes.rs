//! Whatever 64 bytes arrive, a parser answers and does not panic; and what it accepts, it gives
//! back byte for byte.

use millrace::fabric::handshake::{ServerHandshake, Step};
use millrace::wire::{
    Challenge, CheckMode, Completion, DriveRecord, Hello, Proof, PutPrefix, Reason, Reject,
    Request, StoreInfo, Welcome,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn digest(nonce: &[u8; 32]) -> [u8; 24] {
    *nonce.first_chunk().unwrap()
}

/// Prefixes of puts, most of them almost right.
fn prefix() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::collection::vec(any::<u8>(), 1..=255);
    let flips = prop::collection::vec((0usize..512, any::<u8>()), 0..3);
    (key, any::<u64>(), flips, 500usize..=512).prop_map(|(key, crc, flips, len)| {
        let mut bytes = PutPrefix::new(&key, crc).as_bytes().to_vec();
        flips.into_iter().for_each(|(at, value)| bytes[at] = value);
        bytes.truncate(if len < 510 { 512 } else { len });
        bytes
    })
}

/// Mostly messages that are almost right: few random messages get past the first byte.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![1u8, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20]);
    let flips = prop::collection::vec((0usize..64, any::<u8>()), 0..4);
    let good = (kinds, any::<[u8; 32]>(), any::<u64>()).prop_map(|(kind, nonce, n)| match kind {
        1 => Hello::new((n as u16).max(1), n as u32, nonce).as_bytes().to_vec(),
        2 => Challenge::new(n & 1 == 1, nonce).as_bytes().to_vec(),
        3 => Proof::new(nonce).as_bytes().to_vec(),
        4 => Welcome::new("uring", CheckMode::Crc, n as u16, n, n as u32, 1, 0).as_bytes().to_vec(),
        5 => Reject::new(Reason::Full).as_bytes().to_vec(),
        6 => {
            let store = StoreInfo { uuid: [n as u8; 16], object_limit: 1 << 20, writable: true };
            let welcome = Welcome::new("spdk", CheckMode::None, n as u16, n, n as u32, 1, 0);
            welcome.with_workers(n as u16).with_store(&store).as_bytes().to_vec()
        }
        16 => Request::read(n, n as u16, n, n as u32).as_bytes().to_vec(),
        18 => Request::get(n, digest(&nonce), n as u32).as_bytes().to_vec(),
        19 => Request::put(n, digest(&nonce), n as u32).as_bytes().to_vec(),
        20 => Request::delete(n, digest(&nonce)).as_bytes().to_vec(),
        _ => Completion::new(n, millrace::wire::Status::Ok, 0).with_crc(n).as_bytes().to_vec(),
    });
    let bent = (good, flips).prop_map(|(mut bytes, flips)| {
        flips.into_iter().for_each(|(at, value)| bytes[at] = value);
        bytes
    });
    prop_oneof![4 => bent, 1 => prop::collection::vec(any::<u8>(), 0..130)]
}

proptest! {
    #[test]
    fn parsers_answer(bytes in message()) {
        macro_rules! check {
            ($($of:ty),*) => {$(
                if let Ok(parsed) = <$of>::parse(&bytes) {
                    prop_assert_eq!(parsed.as_bytes(), &bytes[..]);
                }
            )*};
        }
        check!(Hello, Challenge, Proof, Welcome, Reject, Request, Completion, DriveRecord);
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert!(request.body() == 0 || request.most() == 0);
        }
        if let Ok(record) = Completion::parse(&bytes) {
            prop_assert!(!record.status().describe(record.detail.get()).is_empty());
        }
        if let Ok(reject) = Reject::parse(&bytes) {
            prop_assert!(reject.reason().is_ok());
        }
    }

    #[test]
    fn prefixes_are_judged(bytes in prefix()) {
        if let Ok(prefix) = PutPrefix::parse(&bytes) {
            prop_assert_eq!(prefix.as_bytes(), &bytes[..]);
            prop_assert!((1..=255).contains(&prefix.key().len()));
        }
    }

    #[test]
    fn no_sequence_gets_past_a_token(messages in prop::collection::vec(message(), 1..5)) {
        let welcome = Welcome::new("mem", CheckMode::Crc, 1, 4096, 4096, 1, 0);
        let token = Some(std::sync::Arc::from(&b"0123456789abcdef"[..]));
        let mut server = ServerHandshake::new(token, [7; 32], welcome);
        for message in messages {
            let step = server.receive(&message);
            let established = matches!(step, Step::Established { .. });
            prop_assert!(!established);
        }
    }
}
