//! Protocol Buffers' wire format.

use espalier_trackers::protobuf::{Field, Fields, Message};
use proptest::prelude::*;

#[test]
fn the_examples_of_the_specification_have_their_bytes() {
    // https://protobuf.dev/programming-guides/encoding/: `a: 150`, `b: "testing"`, `c: { a: 150 }`, `-2` as an int64.
    assert_eq!(Message::new().int(1, 150).as_bytes(), b"\x08\x96\x01");
    assert_eq!(Message::new().string(2, "testing").as_bytes(), b"\x12\x07testing");
    assert_eq!(Message::new().message(3, &Message::new().int(1, 150)).as_bytes(), b"\x1a\x03\x08\x96\x01");
    assert_eq!(Message::new().int(1, -2).as_bytes(), b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
}

#[test]
fn defaults_are_left_out_where_there_is_no_presence() {
    assert!(Message::new().int(1, 0).string(2, "").as_bytes().is_empty());
    assert_eq!(Message::new().float(2, 0.0).bytes(3, b"").as_bytes(), b"\x15\0\0\0\0\x1a\0");
}

#[derive(Debug, Clone)]
enum Written {
    Int(i64),
    Double(f64),
    Float(f32),
    Bytes(Vec<u8>),
}

fn written() -> impl Strategy<Value = (u32, Written)> {
    let value = prop_oneof![
        any::<i64>().prop_filter("0 is left out", |value| *value != 0).prop_map(Written::Int),
        any::<f64>().prop_map(Written::Double),
        any::<f32>().prop_map(Written::Float),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Written::Bytes),
    ];
    (1_u32..=0x1fff_ffff, value)
}

proptest! {
    #[test]
    fn what_was_written_is_read(fields in prop::collection::vec(written(), 0..20)) {
        let message = fields.iter().fold(Message::new(), |message, (field, value)| match value {
            Written::Int(value) => message.int(*field, *value),
            Written::Double(value) => message.double(*field, *value),
            Written::Float(value) => message.float(*field, *value),
            Written::Bytes(value) => message.bytes(*field, value),
        });
        let read: Vec<(u32, Field<'_>)> = Fields::new(message.as_bytes()).collect();
        prop_assert_eq!(read.len(), fields.len());
        for ((field, value), (read_field, read_value)) in fields.iter().zip(read) {
            prop_assert_eq!(*field, read_field);
            let same = match (value, read_value) {
                (Written::Int(a), Field::Int(b)) => *a == b,
                (Written::Double(a), Field::Double(b)) => a.to_bits() == b.to_bits(),
                (Written::Float(a), Field::Float(b)) => a.to_bits() == b.to_bits(),
                (Written::Bytes(a), Field::Bytes(b)) => a == b,
                _ => false,
            };
            prop_assert!(same);
        }
    }

    #[test]
    fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Fields::new(&bytes).count() <= bytes.len());
    }
}
