//! Long texts: sizes, answers, seeds.
#![allow(clippy::print_stderr, reason = "what was skipped")]

use std::io::Write;
use std::process::{Command, Stdio};

use espalier_procedural::long::{LongTask, MAX_SIZE, Made, Shape, make, verify};
use proptest::prelude::*;
use serde_json::{Value, json};

fn made(task: LongTask, size: usize, seed: u64, index: u64) -> Made {
    make(task, Shape { size, needles: 4, distractors: 3 }, &mut task.draw(seed, index))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_text_has_its_size_and_its_answer(seed in any::<u64>(), index in any::<u64>(), size in 1024_usize..40_000) {
        for task in LongTask::ALL {
            let made = made(task, size, seed, index);
            prop_assert!(made.text.is_ascii());
            prop_assert_eq!(made.text.len(), size);
            let found = verify::answer(&made.question, &made.text);
            prop_assert_eq!(found, Ok(made.truth), "{:?} {}", task, made.question);
        }
    }
}

#[test]
fn every_power_of_two_has_its_texts() {
    for task in LongTask::ALL {
        for power in 13..=24 {
            let made = made(task, 1 << power, 5, power);
            assert_eq!(made.text.len(), 1 << power);
            assert_eq!(verify::answer(&made.question, &made.text), Ok(made.truth), "{task:?} {}", made.question);
        }
    }
    assert_eq!(MAX_SIZE, 1 << 24);
}

#[test]
fn several_needles_are_asked_for_as_a_list_or_as_a_sum() {
    let (mut lists, mut sums) = (0, 0);
    for index in 0..40 {
        let made = made(LongTask::MultiNeedle, 8192, 0, index);
        assert_eq!(made.text.matches("The code of the ").count(), 7);
        if let Some(codes) = made.truth.as_array() {
            assert_eq!(codes.len(), 4);
            lists += 1;
        } else {
            assert!(made.truth.as_i64().unwrap() > 40_000 && made.question.starts_with("What is the sum"));
            sums += 1;
        }
    }
    assert!(lists > 5 && sums > 5);
}

#[test]
fn every_kind_of_question_over_code_is_asked() {
    for size in [4096, 65_536] {
        let mut kinds = [0; 4];
        for index in 0..60 {
            let question = made(LongTask::Code, size, 2, index).question;
            let kind = ["Which functions call", "How many other modules", "What is the value", "What does"]
                .iter()
                .position(|start| question.contains(start));
            kinds[kind.unwrap()] += 1;
        }
        assert!(kinds.iter().all(|count| *count > 5), "{kinds:?}");
    }
}

#[test]
fn pairs_of_users_are_listed_or_counted() {
    let (mut listed, mut counted) = (0, 0);
    for index in 0..40 {
        let made = made(LongTask::UserPairs, 32_768, 0, index);
        if let Some(pairs) = made.truth.as_array() {
            assert!(!pairs.is_empty() && pairs.len() <= 40 && made.unordered);
            listed += 1;
        } else {
            assert!(made.truth.as_u64().unwrap() > 40);
            counted += 1;
        }
    }
    assert!(listed > 5 && counted > 5, "{listed} {counted}");
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A change of these is a change of every data set that was ever made with the seed.
#[test]
fn a_seed_gives_the_same_bytes() {
    let hashes = LongTask::ALL.map(|task| {
        let texts: String = [1024, 8192, 100_000]
            .into_iter()
            .map(|size| made(task, size, 3, size as u64))
            .map(|made| format!("{}\n{}\n{}", made.question, made.truth, made.text))
            .collect();
        (task, hash(&texts))
    });
    assert_eq!(hashes, GOLDEN);
}

const GOLDEN: [(LongTask, u64); 7] = [
    (LongTask::Needle, 3982169527509738795),
    (LongTask::Count, 2468826308632737529),
    (LongTask::Pairs, 14726180045701501285),
    (LongTask::MultiNeedle, 8997224328496418890),
    (LongTask::UserPairs, 6893556375106813576),
    (LongTask::Code, 6496017198384013861),
    (LongTask::Topics, 1559962516130077218),
];

/// What Python says of a repository: every file is parsed and imported, and the question is answered by running it.
const PYTHON: &str = r#"
import ast, importlib, importlib.abc, importlib.util, json, sys
request = json.load(sys.stdin)
question, files = request["question"], {}
for file in request["text"][4:].split("\n=== "):
    path, source = file.split(" ===\n", 1)
    files[path[:-3].replace("/", ".")] = source
packages = {name.split(".")[0] for name in files}
class Repository(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in files or name in packages:
            return importlib.util.spec_from_loader(name, self, is_package=name in packages)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        if module.__name__ in files:
            exec(compile(files[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Repository())
trees = {name: ast.parse(source) for name, source in files.items()}
modules = {name: importlib.import_module(name) for name in files}
def member(dotted):
    module, name = dotted.rsplit(".", 1)
    return getattr(modules[module], name)
quoted = question.split("`")[1::2]
if "Which functions call" in question:
    target, found = member(quoted[0]).__code__, set()
    def watch(frame, event, _):
        if event == "call" and frame.f_code is target and frame.f_back.f_code.co_filename in files:
            found.add(frame.f_back.f_code.co_filename + "." + frame.f_back.f_code.co_name)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                function = getattr(modules[name], node.name)
                sys.setprofile(watch)
                function(1)
                sys.setprofile(None)
    answer = sorted(found)
elif "How many other modules" in question:
    answer = 0
    for tree in trees.values():
        imported = set()
        for node in tree.body:
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
                imported.add(node.module)
        answer += quoted[0] in imported
elif "What is the value" in question:
    answer = member(f"{quoted[1]}.{quoted[0]}")
else:
    call, argument = quoted[0][:-1].split("(")
    answer = member(call)(int(argument))
json.dump(answer, sys.stdout)
"#;

#[test]
fn python_reads_and_runs_the_repositories() {
    let python =
        || Command::new("python3").args(["-I", "-c", PYTHON]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    for (size, rows) in [(1024, 6), (8192, 12), (65_536, 12), (524_288, 3)] {
        for index in 0..rows {
            let made = made(LongTask::Code, size, 9, index);
            let Ok(mut child) = python() else {
                eprintln!("skipped: there is no python3");
                return;
            };
            let request = json!({"text": made.text, "question": made.question}).to_string();
            child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", made.question);
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer, made.truth, "{}", made.question);
        }
    }
}
