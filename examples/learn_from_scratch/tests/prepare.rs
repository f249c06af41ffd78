//! What is prepared: its bounds, and that the teacher's ways differ.

use espalier_example_learn_from_scratch::{demos, model, vocabulary};

#[tokio::test]
async fn the_teacher_knows_one_way_that_works_and_others_that_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("model");
    std::fs::create_dir(&at).unwrap();
    vocabulary::write(&at, 3).unwrap();
    model::write(&at, 3).unwrap();
    assert!(model::parameters() < 2_000_000, "{}", model::parameters());

    let trees = demos::write(&at, &folder.path().join("demos"), 96, 3).await.unwrap();
    assert_eq!(trees.len(), 96);
    let (mut added, mut others) = (Vec::new(), Vec::new());
    for tree in &trees {
        for row in tree.nodes().flat_map(|node| &node.rows) {
            assert!(row.prompt_ids().len() <= 150, "{}", row.prompt_ids().len());
            assert!(row.prompt_ids().len() + row.len() <= model::WINDOW);
        }
        let code = tree.root.messages.iter().map(|message| message.content.as_str()).collect::<String>();
        let way = if code.contains("sum(rlm_query") && code.contains("i:i + 1") { &mut added } else { &mut others };
        way.push(tree.root.reward);
    }
    assert!(added.len() > 8 && others.len() > 8, "{} {}", added.len(), others.len());
    assert!(added.iter().all(|reward| *reward == 1.0), "{added:?}");
    let lucky = others.iter().filter(|reward| **reward == 1.0).count();
    assert!(lucky * 3 < others.len(), "{others:?}");
}
