use super::*;

const STORE: StoreId = StoreId([0x22; 16]);
const PLACE: Place = Place { member: 1, slot: 5 };

fn object() -> ObjectInfo {
    ObjectInfo {
        key: KeyName::new(b"a/b").unwrap(),
        length: 70_000,
        data_crc: 0x0102_0304_0506_0708,
        sequence: 9,
    }
}

fn block() -> [u8; BLOCK] {
    let mut block = [0xEE; BLOCK];
    Header::new(STORE, PLACE, &object()).write_block(&mut block);
    block
}

fn classify(block: &[u8; BLOCK]) -> Found<'_> {
    Header::classify(block, STORE, PLACE)
}

#[test]
fn golden_bytes() {
    let block = block();
    let mut expected = [0; 504];
    expected[..8].copy_from_slice(b"MILLSLOT");
    expected[8..16].copy_from_slice(&[1, 0, 3, 0, 0x70, 0x11, 1, 0]);
    expected[16..32].fill(0x22);
    expected[32] = 9;
    expected[40..48].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
    expected[48..72].copy_from_slice(&Digest::of(b"a/b").0);
    expected[72] = 5;
    expected[80] = 1;
    expected[88..91].copy_from_slice(b"a/b");
    assert_eq!(block[..504], expected);
    assert_eq!(block[504..512], crc(&block[..504]).to_le_bytes());
    assert_eq!(block[2048..2560], block[..512]);
    assert!(block[512..2048].iter().chain(&block[2560..]).all(|byte| *byte == 0));
}

#[test]
fn what_was_written_is_read() {
    let block = block();
    let Found::Object { header, copy: None } = classify(&block) else { panic!("an object") };
    let object = object();
    assert_eq!(header.key(), object.key);
    assert_eq!(header.digest(), object.key.digest());
    assert_eq!(
        (header.length(), header.data_crc(), header.sequence()),
        (object.length, object.data_crc, object.sequence)
    );
    let digest = object.key.digest();
    let expect = |store, place, digest: &Digest, sequence, length| {
        header.expect(store, place, digest, sequence, length)
    };
    assert_eq!(expect(STORE, PLACE, &digest, 9, 70_000), Ok(()));
    assert_eq!(expect(StoreId([0; 16]), PLACE, &digest, 9, 70_000), Err(Damage::Store));
    let elsewhere = Place { member: 0, slot: 5 };
    assert_eq!(expect(STORE, elsewhere, &digest, 9, 70_000), Err(Damage::Place));
    assert_eq!(expect(STORE, PLACE, &Digest::of(b"x"), 9, 70_000), Err(Damage::Key));
    assert_eq!(expect(STORE, PLACE, &digest, 8, 70_000), Err(Damage::Sequence));
    assert_eq!(expect(STORE, PLACE, &digest, 9, 69_999), Err(Damage::Length));
}

#[test]
fn every_flipped_bit_of_a_header_is_seen_and_the_key_is_still_known() {
    let whole = block();
    for bit in 0..HEADER_SIZE * 8 {
        let mut flipped = whole;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::first(&flipped).is_err(), "bit {bit} is not served");
        match classify(&flipped) {
            Found::Damaged { known: Some(known), why: Damage::Header } => {
                assert_eq!(known.key(), object().key);
            }
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

#[test]
fn every_flipped_bit_of_the_copy_is_seen_and_the_object_is_still_there() {
    let whole = block();
    for bit in 0..HEADER_SIZE * 8 {
        let mut flipped = whole;
        flipped[COPY_AT + bit / 8] ^= 1 << (bit % 8);
        let found = classify(&flipped);
        assert!(matches!(found, Found::Object { copy: Some(Damage::Copy), .. }), "{found:?}");
    }
}

#[test]
fn a_write_torn_anywhere_is_an_object_or_none() {
    let (new, zero) = (block(), [0; BLOCK]);
    for (from, to) in [(zero, new), (new, zero), ([0xA5; BLOCK], new)] {
        for sectors in 0..1_u32 << 8 {
            let mut torn = from;
            for sector in (0..8).filter(|sector| sectors & 1 << sector != 0) {
                let range = sector * 512..(sector + 1) * 512;
                torn[range.clone()].copy_from_slice(&to[range]);
            }
            let (first, copy) = (torn[..512] == new[..512], torn[2048..2560] == new[2048..2560]);
            match classify(&torn) {
                Found::Object { copy: None, .. } => assert!(first),
                Found::Torn(header) => {
                    assert!(!first && copy);
                    assert_eq!(header.sequence(), 9);
                }
                Found::Free => assert!(!first && !copy),
                other => panic!("{sectors:08b}: {other:?}"),
            }
        }
    }
}

#[test]
fn headers_of_another_store_and_other_bytes_are_no_objects() {
    assert_eq!(Header::classify(&block(), StoreId([3; 16]), PLACE), Found::Free);
    for byte in [0, 0xFF, b'M'] {
        assert_eq!(classify(&[byte; BLOCK]), Found::Free);
    }
}

#[test]
fn a_header_in_the_wrong_place_is_damage() {
    let block = block();
    for place in [Place { member: 0, ..PLACE }, Place { slot: 6, ..PLACE }] {
        let found = Header::classify(&block, STORE, place);
        assert_eq!(found, Found::Damaged { known: None, why: Damage::Place });
        let mut torn = block;
        torn[..512].fill(0);
        let found = Header::classify(&torn, STORE, place);
        assert_eq!(found, Found::Damaged { known: None, why: Damage::Place });
    }
}

#[test]
fn both_headers_damaged_is_damage_without_a_key() {
    let mut both = block();
    both[40] ^= 1;
    both[COPY_AT + 300] ^= 1;
    assert_eq!(classify(&both), Found::Damaged { known: None, why: Damage::Header });
    both[..512].fill(0);
    assert_eq!(classify(&both), Found::Damaged { known: None, why: Damage::Header });
}

#[test]
fn damages_have_numbers() {
    for damage in Damage::ALL {
        assert_eq!(Damage::from_code(damage.code()), Some(damage));
    }
    assert_eq!(Damage::from_code(0), None);
}
