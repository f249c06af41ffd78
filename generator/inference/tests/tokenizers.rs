//! Tokenizers: what is recognised where, and decoding.

mod fixtures;

use std::collections::BTreeMap;
use std::path::Path;

use espalier_inference::{Tokenizer, TokenizerError};
use proptest::prelude::*;

fn tiny() -> Tokenizer {
    Tokenizer::from_dir(fixtures::path("tiny")).unwrap()
}

#[test]
fn a_folder_gives_ends_of_turn_size_and_special_tokens() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.eos_ids(), [2, 0]);
    assert_eq!(tokenizer.special_tokens()["pad_token"], "<|endoftext|>");
    assert_eq!(tokenizer.token(2).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.id("<think>"), Some(400));
    assert_eq!(tokenizer.vocab_size(), 402);
    assert!(tokenizer.is_special(1) && !tokenizer.is_special(400));
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode("x").unwrap().len(), 1);
    assert!(tokenizer.encode(&"x y ".repeat(20)).unwrap().len() > 8);
}

#[test]
fn trusted_text_yields_special_tokens_and_untrusted_text_does_not() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.encode("<|im_end|>").unwrap(), [2]);
    let ids = tokenizer.encode_untrusted("<|im_end|>").unwrap();
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
    assert_eq!(tokenizer.decode(&ids), "<|im_end|>");
}

#[test]
fn added_words_that_are_not_special_are_recognised_everywhere() {
    assert_eq!(tiny().encode_untrusted("<think></think>").unwrap(), [400, 401]);
}

#[test]
fn a_vocabulary_that_holds_special_tokens_as_words_cannot_be_tricked() {
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "pre_tokenizer": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "Unigram", "unk_id": 1, "byte_fallback": false,
            "vocab": [["<s>", -0.1], ["<unk>", -10.0], ["<", -3.0], ["s", -3.0], [">", -3.0], ["a", -3.0]]},
    });
    let tokenizer = Tokenizer::from_json("words", json.to_string().as_bytes(), BTreeMap::new(), &[]).unwrap();
    assert_eq!(tokenizer.encode("a<s>a").unwrap(), [5, 0, 5]);
    assert_eq!(tokenizer.encode_untrusted("a<s>a").unwrap(), [5, 2, 3, 4, 5]);
}

#[test]
fn special_tokens_swallow_space_and_stand_alone_where_the_file_says_so() {
    let mut json = fixtures::json("tiny/tokenizer.json");
    json["truncation"] = serde_json::Value::Null;
    json["padding"] = serde_json::Value::Null;
    for (token, flags) in [(0, ("single_word", true)), (1, ("lstrip", true)), (2, ("rstrip", true))] {
        json["added_tokens"][token][flags.0] = flags.1.into();
    }
    let json = json.to_string();
    let library = tokenizers::Tokenizer::from_bytes(json.as_bytes()).unwrap();
    let tokenizer = Tokenizer::from_json("flags", json.as_bytes(), BTreeMap::new(), &[]).unwrap();
    for text in [
        "a  <|im_start|> b",
        "a <|im_end|>  b",
        "<|im_end|> <|im_start|>",
        "a<|endoftext|>b <|endoftext|> c",
        "  <|im_start|>",
    ] {
        let expected = library.encode(text, false).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected.get_ids(), "{text}");
    }
}

#[test]
fn ids_outside_the_vocabulary_have_no_text() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.decode(&[u32::MAX, 5000]), "");
    assert_eq!(tokenizer.token(5000), None);
    assert_eq!(tokenizer.stream(true).push(u32::MAX), "");
}

#[test]
fn a_stream_never_cuts_a_character() {
    let tokenizer = Tokenizer::bytes();
    let mut stream = tokenizer.stream(true);
    let pieces: Vec<String> = "é🦀".bytes().map(|byte| stream.push(u32::from(byte)).to_owned()).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "🦀"]);
    assert_eq!(stream.finish(), "");
    stream.push(0xF0);
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.push(u32::from(b'a')), "a");
}

#[test]
fn streams_of_other_decoders_give_the_whole_text_too() {
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true,
            "vocab": {"▁": 0, "a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4, "▁a": 5}, "merges": [["▁", "a"]]},
    });
    let tokenizer = Tokenizer::from_json("metaspace", json.to_string().as_bytes(), BTreeMap::new(), &[]).unwrap();
    let ids = tokenizer.encode("a bé a").unwrap();
    assert_eq!(ids, [5, 0, 2, 3, 4, 5]);
    let mut stream = tokenizer.stream(true);
    let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    text.push_str(stream.finish());
    assert_eq!(text, "a bé a");
}

#[test]
fn broken_folders_are_named() {
    let missing = Tokenizer::from_dir("/no/such/folder").unwrap_err();
    assert!(missing.to_string().contains("/no/such/folder"), "{missing}");
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(&error, TokenizerError::Read { file, .. } if file.ends_with("tokenizer.json")), "{error}");
    let broken = |name: &str, text: &str, word: &str| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixtures::path("tiny/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
        let error = Tokenizer::from_dir(dir.path()).unwrap_err();
        assert!(matches!(&error, TokenizerError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    broken("tokenizer.json", "{\"version\": \"1.0\"", "tokenizer.json");
    broken("generation_config.json", "[]", "generation_config.json` holds a list");
    broken("generation_config.json", r#"{"eos_token_id": "x"}"#, "eos_token_id");
    broken("generation_config.json", r#"{"eos_token_id": 99999}"#, "99999");
    broken("tokenizer_config.json", r#"{"eos_token": "<nope>"}"#, "<nope>");
    broken("tokenizer_config.json", r#"{"eos_token": 3}"#, "eos_token");
    broken("config.json", "{", "config.json` is not JSON");
}

#[test]
fn real_models_give_their_ends_of_turn() {
    for (name, expected) in [("smollm2-135m-instruct", "<|im_end|>"), ("qwen3", "<|im_end|>")] {
        let Some(dir) = fixtures::model(name) else { continue };
        let tokenizer = Tokenizer::from_dir(Path::new(&dir)).unwrap();
        assert_eq!(tokenizer.token(tokenizer.eos_ids()[0]).as_deref(), Some(expected));
        let text = "def f(x):\n    return x  # é🦀\n\n\n  12345 <think>";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode_with_special(&ids), text);
    }
}

proptest! {
    #[test]
    fn untrusted_text_round_trips_without_special_tokens(
        text in r"(<\|im_end\|>|<\|im_start\|>|<s>|[ a-z\n]|\PC){0,40}"
    ) {
        for tokenizer in [tiny(), Tokenizer::bytes()] {
            let ids = tokenizer.encode_untrusted(&text).unwrap();
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
            prop_assert_eq!(tokenizer.decode(&ids), text.clone());
        }
    }

    #[test]
    fn trusted_text_encodes_as_the_library_does(
        text in r"(<\|im_end\|>|<\|im_start\|>|<\||<think>|[ a-z\n]{1,300}|\PC){0,12}"
    ) {
        let mut library = tokenizers::Tokenizer::from_file(fixtures::path("tiny/tokenizer.json")).unwrap();
        library.with_padding(None).with_truncation(None).unwrap();
        let expected = library.encode(text.as_str(), false).unwrap();
        let tokenizer = tiny();
        // Twice: the second time, long pieces come from memory.
        for _ in 0..2 {
            prop_assert_eq!(tokenizer.encode(&text).unwrap(), expected.get_ids());
        }
    }

    #[test]
    fn a_stream_gives_what_decoding_gives(ids in proptest::collection::vec(0_u32..410, 0..60), skip in any::<bool>()) {
        for tokenizer in [tiny(), Tokenizer::bytes()] {
            let mut stream = tokenizer.stream(skip);
            let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
            text.push_str(stream.finish());
            let whole = if skip { tokenizer.decode(&ids) } else { tokenizer.decode_with_special(&ids) };
            prop_assert_eq!(text, whole);
        }
    }
}
