//! The framing of `.wandb` files.

use espalier_trackers::wandb::log::{BLOCK, CHUNK_HEADER, Entry, HEADER, LogReader, LogWriter};
use proptest::prelude::*;

fn written<Record: AsRef<[u8]>>(records: &[Record]) -> Vec<u8> {
    let mut log = LogWriter::create(Vec::new()).unwrap();
    for record in records {
        log.append(record.as_ref()).unwrap();
    }
    log.into_inner()
}

fn read(bytes: &[u8]) -> Vec<Entry> {
    let mut log = LogReader::open(bytes).unwrap().expect("the header");
    std::iter::from_fn(|| log.entry().unwrap()).collect()
}

/// The type and length of the chunk that begins at a position.
fn chunk(bytes: &[u8], at: usize) -> (u8, usize) {
    (bytes[at + 6], usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]])))
}

#[test]
fn the_checksum_is_of_the_type_and_the_data() {
    // zlib's `crc32` of type 1 and these data is 0x21b52ec0.
    let bytes = written(&["123456789"]);
    assert_eq!(bytes[..7], HEADER);
    assert_eq!(bytes[7..14], [0xc0, 0x2e, 0xb5, 0x21, 9, 0, 1]);
}

#[test]
fn a_record_that_ends_with_its_block_is_whole() {
    let bytes = written(&[vec![b'x'; BLOCK - HEADER.len() - CHUNK_HEADER], b"next".to_vec()]);
    assert_eq!(chunk(&bytes, HEADER.len()).0, 1);
    assert_eq!(chunk(&bytes, BLOCK), (1, 4));
}

#[test]
fn a_record_that_is_one_byte_longer_is_split() {
    let room = BLOCK - HEADER.len() - CHUNK_HEADER;
    let bytes = written(&[vec![b'x'; room + 1]]);
    assert_eq!(chunk(&bytes, HEADER.len()), (2, room));
    assert_eq!(chunk(&bytes, BLOCK), (4, 1));
}

#[test]
fn a_record_over_three_blocks_has_a_middle() {
    let room = BLOCK - HEADER.len() - CHUNK_HEADER;
    let bytes = written(&[vec![b'x'; room + BLOCK]]);
    assert_eq!(chunk(&bytes, BLOCK), (3, BLOCK - CHUNK_HEADER));
    assert_eq!(chunk(&bytes, 2 * BLOCK), (4, CHUNK_HEADER));
}

#[test]
fn less_than_a_chunk_at_the_end_of_a_block_is_padding() {
    let bytes = written(&[vec![b'x'; BLOCK - HEADER.len() - CHUNK_HEADER - 6], b"next".to_vec()]);
    assert_eq!(bytes[BLOCK - 6..BLOCK], [0; 6]);
    assert_eq!(chunk(&bytes, BLOCK), (1, 4));
}

#[test]
fn room_for_a_header_alone_holds_an_empty_first_chunk() {
    let bytes = written(&[vec![b'x'; BLOCK - HEADER.len() - 2 * CHUNK_HEADER], b"next".to_vec()]);
    assert_eq!(chunk(&bytes, BLOCK - CHUNK_HEADER), (2, 0));
    assert_eq!(chunk(&bytes, BLOCK), (4, 4));
    assert_eq!(read(&bytes)[1].record, b"next");
}

#[test]
fn each_record_is_one_write() {
    struct Writes(Vec<usize>);
    impl std::io::Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut log = LogWriter::create(Writes(Vec::new())).unwrap();
    for size in [10, 3 * BLOCK] {
        log.append(&vec![0; size]).unwrap();
    }
    assert_eq!(log.get_ref().0.len(), 1 + 2);
}

#[test]
fn other_files_are_not_read() {
    assert!(LogReader::open(&b":W&B\xe1\xbe\x01"[..]).unwrap().is_none());
    assert!(LogReader::open(&b":W"[..]).unwrap().is_none());
}

/// Sizes near the ends of blocks, and small ones.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let near = |middle: usize| middle.saturating_sub(20)..middle + 20;
    let size = prop_oneof![0..64_usize, near(BLOCK / 2), near(BLOCK), near(2 * BLOCK), 0..3 * BLOCK];
    (size, any::<u8>()).prop_map(|(size, seed)| (0..size).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(records in prop::collection::vec(record(), 0..12)) {
        let bytes = written(&records);
        let entries = read(&bytes);
        prop_assert_eq!(entries.iter().map(|entry| entry.record.clone()).collect::<Vec<_>>(), records);
        prop_assert!(entries.windows(2).all(|pair| pair[0].end <= pair[1].start));
        prop_assert_eq!(entries.last().map_or(HEADER.len(), |entry| entry.end as usize), bytes.len());
    }

    #[test]
    fn a_file_that_is_cut_off_reads_up_to_its_last_whole_record(
        records in prop::collection::vec(record(), 1..6),
        at in any::<prop::sample::Index>(),
    ) {
        let bytes = written(&records);
        let length = HEADER.len() + at.index(bytes.len() - HEADER.len() + 1);
        let whole = read(&bytes).into_iter().filter(|entry| entry.end as usize <= length).count();
        prop_assert_eq!(read(&bytes[..length]).len(), whole);
        let mut log = LogReader::open(&bytes[..length]).unwrap().unwrap();
        while log.entry().unwrap().is_some() {}
        let ends: Vec<u64> = read(&bytes).iter().map(|entry| entry.end).collect();
        // Padding goes out with the record after it.
        let between = length == HEADER.len() || ends.contains(&(length as u64));
        let padded = ends.iter().any(|end| length.is_multiple_of(BLOCK) && length as u64 - end < CHUNK_HEADER as u64);
        prop_assert_eq!(log.is_cut_off(), !between && !padded);
    }

    #[test]
    fn a_damaged_record_is_not_read(records in prop::collection::vec(record(), 1..4), at in any::<prop::sample::Index>()) {
        let mut bytes = written(&records);
        let position = HEADER.len() + at.index(bytes.len() - HEADER.len());
        bytes[position] ^= 0x20;
        let kept = read(&bytes);
        prop_assert!(kept.len() < records.len());
        prop_assert!(kept.iter().zip(&records).all(|(entry, record)| entry.record == *record));
    }
}
