//! GGUF: reading, refusing, converting.

mod tiny;

use std::path::Path;

use espalier_engine::gguf::{Gguf, GgufError};
use espalier_engine::{ModelError, WeightType, convert_gguf};
use espalier_inference::{InferenceEngine, Tokenizer};
use half::f16;
use proptest::prelude::*;

/// Builds GGUF files by hand.
#[derive(Clone, Default)]
struct Builder {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

impl Builder {
    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.retain(|k| k.0 != name);
        self.keys.push((name.to_owned(), [&kind.to_le_bytes()[..], value].concat()));
        self
    }
    fn u32(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }
    fn f32(self, name: &str, value: f32) -> Self {
        self.key(name, 6, &value.to_le_bytes())
    }
    fn text(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &text(value))
    }
    fn array(self, name: &str, kind: u32, count: usize, items: &[u8]) -> Self {
        self.key(name, 9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), items].concat())
    }
    fn tensor(mut self, name: &str, shape: &[usize], kind: u32, data: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, data));
        self
    }
    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (name, value) in &self.keys {
            out.extend(text(name));
            out.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for (name, shape, kind, bytes) in &self.tensors {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
    fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

/// The rows of a query or key weight as GGUF orders them.
fn permute(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let dim = values.len() / width / heads;
    let row = |h: usize, i: usize| values[(h * dim + i) * width..(h * dim + i + 1) * width].to_vec();
    (0..heads).flat_map(|h| (0..dim).flat_map(move |i| row(h, i / 2 + i % 2 * (dim / 2))).collect::<Vec<_>>()).collect()
}

/// The tiny model as a GGUF file with a byte-level tokenizer of 259 tokens.
fn tiny_gguf() -> Builder {
    let alphabet = |b: u8| -> char {
        let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        if plain(b) { b.into() } else { char::from_u32(256 + (0..b).filter(|o| !plain(*o)).count() as u32).unwrap() }
    };
    let mut tokens: Vec<String> = (0..=255u8).map(|b| alphabet(b).to_string()).collect();
    tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    let kinds: Vec<u8> = (0..259).flat_map(|i| (if i < 256 { 1i32 } else { 3 }).to_le_bytes()).collect();
    let listed: Vec<u8> = tokens.iter().flat_map(|t| text(t)).collect();
    let merges: Vec<u8> = Vec::new();
    let mut builder = Builder::default()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 512)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 96)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .u32("llama.rope.dimension_count", 16)
        .f32("llama.rope.freq_base", 10000.0)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .u32("llama.vocab_size", 259)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .array("tokenizer.ggml.tokens", 8, 259, &listed)
        .array("tokenizer.ggml.token_type", 5, 259, &kinds)
        .array("tokenizer.ggml.merges", 8, 0, &merges)
        .u32("tokenizer.ggml.bos_token_id", 257)
        .u32("tokenizer.ggml.eos_token_id", 258)
        .u32("tokenizer.ggml.padding_token_id", 258)
        .text("tokenizer.chat_template", "{{ messages[0]['content'] }}");
    for (name, shape, values) in tiny::tensors(1) {
        let part = name.rsplit('.').nth(1).unwrap();
        let short = match part {
            "embed_tokens" => "token_embd",
            "norm" => "output_norm",
            "input_layernorm" => "attn_norm",
            "post_attention_layernorm" => "ffn_norm",
            "q_proj" => "attn_q",
            "k_proj" => "attn_k",
            "v_proj" => "attn_v",
            "o_proj" => "attn_output",
            "gate_proj" => "ffn_gate",
            "up_proj" => "ffn_up",
            _ => "ffn_down",
        };
        let values = match part {
            "q_proj" => permute(&values, 4, 64),
            "k_proj" => permute(&values, 2, 64),
            _ => values,
        };
        let layer = name.strip_prefix("model.layers.").map(|rest| rest.split('.').next().unwrap());
        let name = layer.map_or(format!("{short}.weight"), |layer| format!("blk.{layer}.{short}.weight"));
        builder = builder.tensor(&name, &shape, 0, values.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    builder
}

#[tokio::test]
async fn a_converted_model_answers_as_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("tiny.gguf"), folder.path().join("out"));
    tiny_gguf().write(&source);
    convert_gguf(&source, &out, WeightType::F32).unwrap();
    let original = tiny::folder();
    let converted = espalier_engine::LocalEngine::load(&out, tiny::options()).unwrap();
    let expected = tiny::load(original.path(), tiny::options()).unwrap();
    let ask = || tiny::request(tiny::prompt(3, 40), tiny::greedy(30));
    let (a, b) = (converted.generate(ask()).await.unwrap(), expected.generate(ask()).await.unwrap());
    assert_eq!((&a[0].tokens, &a[0].logprobs), (&b[0].tokens, &b[0].logprobs));
}

#[test]
fn the_converted_tokenizer_splits_digits_and_knows_its_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("tiny.gguf"), folder.path().join("out"));
    let merges: Vec<u8> = ["1 2", "a b"].iter().flat_map(|m| text(m)).collect();
    let mut tokens: Vec<u8> = Vec::new();
    // Bytes 0 to 256 as before; the last three tokens make room for two merged ones and the end of turn.
    let plain = tiny_gguf();
    plain.write(&source);
    let read = Gguf::open(&source).unwrap();
    let mut list = read.texts("tokenizer.ggml.tokens").unwrap().to_vec();
    (list[256], list[257]) = ("12".to_owned(), "ab".to_owned());
    for token in &list {
        tokens.extend(text(token));
    }
    let kinds: Vec<u8> = (0..259).flat_map(|i| (if i < 258 { 1i32 } else { 3 }).to_le_bytes()).collect();
    plain
        .array("tokenizer.ggml.tokens", 8, 259, &tokens)
        .array("tokenizer.ggml.token_type", 5, 259, &kinds)
        .array("tokenizer.ggml.merges", 8, 2, &merges)
        .write(&source);
    convert_gguf(&source, &out, WeightType::Bf16).unwrap();
    let tokenizer = Tokenizer::from_dir(&out).unwrap();
    assert_eq!(tokenizer.encode("ab12<|im_end|>").unwrap(), [257, 49, 50, 258]);
    assert_eq!(tokenizer.eos_ids(), [258]);
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["rms_norm_eps"], &config["rope_theta"]), (&1e-5.into(), &10000.0.into()));
}

#[test]
fn blocks_are_unpacked_as_the_format_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let half = |x: f32| f16::from_f32(x).to_le_bytes().to_vec();
    let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
    let bytes: Vec<u8> = (0..32).map(|i| (i - 16i8) as u8).collect();
    Builder::default()
        .tensor("q4_0", &[1, 32], 2, [half(0.5), nibbles.clone()].concat())
        .tensor("q4_1", &[1, 32], 3, [half(0.5), half(-2.0), nibbles].concat())
        .tensor("q8_0", &[1, 32], 8, [half(0.25), bytes].concat())
        .tensor("f16", &[2], 1, [half(1.5), half(-3.0)].concat())
        .tensor("bf16", &[2], 30, vec![0xC0, 0x3F, 0x40, 0xC0])
        .write(&path);
    let gguf = Gguf::open(&path).unwrap();
    let read = |name: &str| gguf.read_f32(gguf.tensors().iter().find(|t| t.name == name).unwrap()).unwrap();
    let order = || (0..16).chain((0..16).rev());
    assert_eq!(read("q4_0"), order().map(|q| (q as f32 - 8.0) * 0.5).collect::<Vec<_>>());
    assert_eq!(read("q4_1"), order().map(|q| q as f32 * 0.5 - 2.0).collect::<Vec<_>>());
    assert_eq!(read("q8_0"), (-16..16).map(|q| q as f32 * 0.25).collect::<Vec<_>>());
    assert_eq!((read("f16"), read("bf16")), (vec![1.5, -3.0], vec![1.5, -3.0]));
}

#[test]
fn what_cannot_be_converted_is_refused_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("tiny.gguf"), folder.path().join("out"));
    let cases: Vec<(&str, Builder)> = vec![
        ("expected architecture `llama`, found `bert`", tiny_gguf().text("general.architecture", "bert")),
        ("`tokenizer.ggml.pre`: expected `smollm`, found `qwen2`", tiny_gguf().text("tokenizer.ggml.pre", "qwen2")),
        (
            "`llama.rope.scaling.type`: expected `none`, found `yarn`",
            tiny_gguf().text("llama.rope.scaling.type", "yarn"),
        ),
        ("key `llama.block_count`: expected an integer, found a text", tiny_gguf().text("llama.block_count", "2")),
        ("unknown tensor `rope_freqs.weight`", tiny_gguf().tensor("rope_freqs.weight", &[1], 0, vec![0; 4])),
        ("has type Q6_K, which is not supported", tiny_gguf().tensor("x", &[256], 14, vec![0; 210])),
        ("rows of 31", tiny_gguf().tensor("x", &[31], 2, vec![0; 18])),
        ("each tensor once", tiny_gguf().tensor("output_norm.weight", &[1], 0, vec![0; 4])),
    ];
    for (message, builder) in cases {
        builder.write(&source);
        let error = convert_gguf(&source, &out, WeightType::F32).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("tiny.gguf"), "expected {message:?} in {error:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    tiny_gguf().write(&source);
    std::fs::create_dir(&out).unwrap();
    assert!(matches!(convert_gguf(&source, &out, WeightType::F32), Err(ModelError::Exists { .. })));
}

#[test]
fn a_truncated_file_is_refused_with_the_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let whole = tiny_gguf().bytes();
    for cut in (0..whole.len()).step_by(997).chain([whole.len() - 40]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let error = Gguf::open(&path).unwrap_err();
        assert!(matches!(error, GgufError::Malformed { .. }), "cut at {cut}: {error}");
    }
}

/// The wheel's file beside the reference implementation's tensors, where a checkout of both is at hand.
#[test]
fn a_real_file_converts_as_the_reference_does() {
    let (Ok(source), Ok(reference)) = (std::env::var("ESPALIER_GGUF"), std::env::var("ESPALIER_GGUF_REFERENCE")) else {
        return skip(
            "set ESPALIER_GGUF to a GGUF file and ESPALIER_GGUF_REFERENCE to its conversion by the `gguf` package",
        );
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    convert_gguf(Path::new(&source), &out, WeightType::F32).unwrap();
    let (ours, theirs) = (
        std::fs::read(out.join("model.safetensors")).unwrap(),
        std::fs::read(Path::new(&reference).join("model.safetensors")).unwrap(),
    );
    let (ours, theirs) = (
        safetensors::SafeTensors::deserialize(&ours).unwrap(),
        safetensors::SafeTensors::deserialize(&theirs).unwrap(),
    );
    let mut names = ours.names();
    names.sort_unstable();
    let mut expected = theirs.names();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for name in names {
        let (a, b) = (ours.tensor(name).unwrap(), theirs.tensor(name).unwrap());
        assert_eq!(a.shape(), b.shape(), "{name}");
        assert!(a.data() == b.data(), "{name} differs");
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_bytes_make_the_reader_panic(at in 0usize..4000, bytes in prop::collection::vec(any::<u8>(), 1..16)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let mut whole = tiny_gguf().bytes();
        let at = at.min(whole.len() - bytes.len());
        whole[at..at + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&path, &whole).unwrap();
        let _ = convert_gguf(&path, &folder.path().join("out"), WeightType::F32);
    }
}
