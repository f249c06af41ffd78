//! Trees and rows as people see them.

use espalier_generator::tree_view::{ViewOptions, mask, tree};
use espalier_inference::Tokenizer;

#[tokio::test]
async fn a_tree_shows_its_turns_children_and_ends() {
    let shown = tree(&crate::output::tree("1").await, ViewOptions::default());
    for expected in ["1_0 test by scripted: completed, reward 1.5, 2 turns", "└─ 1_0/0", "turn 1: ", "llm_query q -> x"]
    {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "colours only if asked for");
}

#[tokio::test]
async fn what_a_model_wrote_cannot_steer_the_terminal() {
    let mut hostile = crate::output::tree("1").await;
    hostile.root.messages[0].content = "\x1b[2Jgone\u{9b}31m".to_owned();
    let shown = tree(&hostile, ViewOptions::default());
    assert!(!shown.contains('\x1b') && !shown.contains('\u{9b}'));
    assert!(shown.contains("\\u{1b}[2Jgone"), "{shown}");
    hostile.root.rollout_id = "two\nlines\x1b[2J_0".to_owned();
    hostile.root.model = "a\nmodel".to_owned();
    let shown = tree(&hostile, ViewOptions::default());
    assert!(shown.starts_with("two\\nlines\\u{1b}[2J_0 test by a\\nmodel: completed"), "{shown}");
}

#[tokio::test]
async fn long_texts_are_cut_in_the_middle() {
    let mut long = crate::output::tree("1").await;
    long.root.messages[0].content = (0..100).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n");
    let shown = tree(&long, ViewOptions { lines: 6, ..ViewOptions::default() });
    assert!(shown.contains("line 0") && shown.contains("line 99") && shown.contains("... 94 lines ..."), "{shown}");
}

#[tokio::test]
async fn a_mask_dump_tells_sampled_tokens_from_given_ones() {
    let tree = crate::output::tree("1").await;
    let name = |id| Tokenizer::bytes().decode_with_special(&[id]);
    let plain = mask(&tree.descendants[0].rows[0], name, ViewOptions::default());
    assert!(plain.contains("[x][<|im_end|>](+1)"), "{plain}");
    let coloured = mask(&tree.descendants[0].rows[0], name, ViewOptions { colour: true, ..ViewOptions::default() });
    assert!(coloured.contains("\x1b[32m[x]\x1b[0m"), "{coloured}");
}
