//! Literals are read as `ast.literal_eval` reads them, and what `repr` prints is read back.

use espalier_sandbox_protocol::Value;
use espalier_sandbox_protocol::literal::parse;
use proptest::prelude::*;

fn int(number: i64) -> Value {
    Value::Int(number)
}

#[track_caller]
fn reads(text: &str, value: Value) {
    assert_eq!(parse(text), Ok(value), "{text:?}");
}

#[test]
fn numbers_in_every_form() {
    reads("0", int(0));
    reads("000", int(0));
    reads("-1_000", int(-1000));
    reads("- 3", int(-3));
    reads("-(3)", int(-3));
    reads("0xFF", int(255));
    reads("0b_1010", int(10));
    reads("0o17", int(15));
    reads("9223372036854775807", int(i64::MAX));
    reads("-9223372036854775808", int(i64::MIN));
    reads("9223372036854775808", Value::BigInt("9223372036854775808".into()));
    reads("-0xffffffffffffffffff", Value::BigInt("-4722366482869645213695".into()));
    reads("1.5", Value::Float(1.5));
    reads(".5", Value::Float(0.5));
    reads("5.", Value::Float(5.0));
    reads("1_0e-1_0", Value::Float(1e-9));
    reads("-1E3", Value::Float(-1000.0));
}

#[test]
fn malformed_numbers_are_refused() {
    for text in
        ["007", "1__0", "1_", "0x", "0b2", "0xg", "1e", "1.2.3", "1a", ".", "0_x1", "--", "+'a'", "+ - 3", "-(-3)"]
    {
        assert!(parse(text).is_err(), "{text:?}");
    }
    assert!(parse("1j").is_err());
    assert!(parse(&"9".repeat(5000)).is_err());
}

#[test]
fn strings_with_prefixes_escapes_and_neighbours() {
    reads(r"'a\n\t\x41\u00e9\U0001F600\101\'\q'", Value::from("a\n\tA\u{e9}\u{1F600}A'\\q"));
    reads(r"r'\n\'' ", Value::from("\\n\\'"));
    reads("'''a\n'b''' \"c\"", Value::from("a\n'bc"));
    reads("u'x'", Value::from("x"));
    reads("'a\\\nb'", Value::from("ab"));
    reads(r"b'a\xff\0' B'c'", Value::Bytes(vec![b'a', 255, 0, b'c']));
    reads(r"Rb'\x00'", Value::Bytes(br"\x00".to_vec()));
    reads("('a'\n 'b')", Value::from("ab"));
}

#[test]
fn malformed_strings_are_refused() {
    for text in ["'a", "'a\nb'", "'''a''", r"'\x1'", r"'\u12'", r"'\U00110000'", "b'é'", "'a' b'b'", "f'a'", "ub'a'"] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn containers() {
    reads("()", Value::Tuple(vec![]));
    reads("(1)", int(1));
    reads("(1,)", Value::Tuple(vec![int(1)]));
    reads("1, 2", Value::Tuple(vec![int(1), int(2)]));
    reads("1,", Value::Tuple(vec![int(1)]));
    reads("[1,\n 2, # two\n]", Value::List(vec![int(1), int(2)]));
    reads("{}", Value::Dict(vec![]));
    reads("set ( )", Value::Set(vec![]));
    reads("{1, 2, 1.0, True}", Value::Set(vec![int(1), int(2)]));
    reads(
        "{'a': 1, 'b': [None], 'a': 3}",
        Value::Dict(vec![("a".into(), int(3)), ("b".into(), Value::List(vec![Value::None]))]),
    );
    reads("{1: 'a', True: 'b'}", Value::Dict(vec![(int(1), "b".into())]));
    reads(" \t[True, False]\n\n", Value::List(vec![true.into(), false.into()]));
}

#[test]
fn what_is_no_literal_is_refused() {
    for text in [
        "",
        " ",
        "x",
        "[1 2]",
        "[1,,2]",
        "[",
        "]",
        "{1:}",
        "{1: 2, 3}",
        "{[1]: 2}",
        "{[]}",
        "1 2",
        "1\n2",
        "True()",
        "set([1])",
        "[,]",
        "(,)",
        "1 + 1",
        "None.x",
        "[1]]",
        "{**{}}",
        "\u{a0}1",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn depth_is_bounded() {
    assert!(parse(&("[".repeat(64) + &"]".repeat(64))).is_ok());
    assert!(parse(&("[".repeat(65) + &"]".repeat(65))).is_err());
    assert!(parse(&"(".repeat(100_000)).is_err());
    assert!(parse(&("-".to_owned() + &"(".repeat(100_000))).is_err());
}

#[test]
fn values_print_as_python_prints_them() {
    let printed = |value: Value| value.repr();
    assert_eq!(printed(Value::Float(1e16)), "1e+16");
    assert_eq!(printed(Value::Float(123456789012345.0)), "123456789012345.0");
    assert_eq!(printed(Value::Float(0.0001)), "0.0001");
    assert_eq!(printed(Value::Float(1.5e-7)), "1.5e-07");
    assert_eq!(printed(Value::Float(-0.0)), "-0.0");
    assert_eq!(printed(Value::from("it's \"x\" \u{7}\u{200b}é")), "'it\\'s \"x\" \\x07\\u200bé'");
    assert_eq!(printed(Value::from("it's")), "\"it's\"");
    assert_eq!(printed(Value::Bytes(b"a\x00\xff'".to_vec())), "b\"a\\x00\\xff'\"");
    assert_eq!(printed(Value::Tuple(vec![int(1)])), "(1,)");
    assert_eq!(printed(Value::Set(vec![])), "set()");
    assert_eq!(printed(Value::Dict(vec![(int(1), Value::None)])), "{1: None}");
}

fn scalars() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        "-?[1-9][0-9]{20,40}".prop_map(Value::BigInt),
        any::<f64>().prop_filter("a literal is finite", |number| number.is_finite()).prop_map(Value::Float),
        any::<String>().prop_map(Value::Str),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    scalars().prop_recursive(4, 40, 6, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            list.clone().prop_map(Value::List),
            list.prop_map(Value::Tuple),
            proptest::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|map| Value::Dict(map.into_iter().map(|(key, item)| (Value::Str(key), item)).collect())),
            proptest::collection::btree_set(any::<i64>(), 0..5)
                .prop_map(|set| Value::Set(set.into_iter().map(Value::Int).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_repr_prints_is_read_back(value in values()) {
        prop_assert_eq!(parse(&value.repr()), Ok(value));
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn no_text_of_python_tokens_panics(text in r#"([\[\](){},:'"\\bru0-9._exX+#\n -]|set|None|True){0,40}"#) {
        if let Ok(value) = parse(&text) {
            // An overflowing float reads as an infinity, which prints as no literal.
            let printed = value.repr();
            if !printed.contains("inf") {
                prop_assert_eq!(parse(&printed), Ok(value));
            }
        }
    }
}
