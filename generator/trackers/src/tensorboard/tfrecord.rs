//! TFRecord, the framing of event files.
//!
//! <https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details>; all integers little-endian:
//!
//! ```text
//! record := length: u64, masked CRC-32C of the length: u32, data: u8[length], masked CRC-32C of the data: u32
//! ```

use crc::{CRC_32_ISCSI, Crc};

static CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// `((crc >> 15) | (crc << 17)) + 0xa282ead8`, so that a checksum of data that holds checksums stays a good one.
pub fn masked_crc(data: &[u8]) -> u32 {
    CRC_32C.checksum(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record of these data.
pub fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}
