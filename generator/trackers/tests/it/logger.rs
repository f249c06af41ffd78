//! Backends by name.

use espalier_trackers::{Logger, Loggers, RunSpec, Trackers};

fn read(json: &str) -> Result<Vec<Logger>, String> {
    serde_json::from_str::<Loggers>(json).map(|loggers| loggers.iter().collect()).map_err(|error| error.to_string())
}

#[test]
fn a_name_or_a_list_of_names_is_read() {
    assert_eq!(read("\"wandb\""), Ok(vec![Logger::Wandb]));
    assert_eq!(read("[\"wandb\", \"console\"]"), Ok(vec![Logger::Wandb, Logger::Console]));
    assert_eq!(read("[\"tensorboard\", \"jsonl\"]"), Ok(vec![Logger::TensorBoard, Logger::Jsonl]));
    assert_eq!(read("[]"), Ok(Vec::new()));
    assert_eq!(Loggers::default().iter().collect::<Vec<_>>(), [Logger::Console]);
}

#[test]
fn what_is_written_is_what_was_read() {
    let json = "[\"wandb\",\"tensorboard\",\"jsonl\",\"console\"]";
    assert_eq!(serde_json::to_string(&serde_json::from_str::<Loggers>(json).unwrap()).unwrap(), json);
}

#[test]
fn other_names_are_refused_with_the_list_of_those_there_are() {
    for name in ["mlflow", "swanlab", "WandB", ""] {
        let said = read(&format!("[\"console\", \"{name}\"]")).unwrap_err();
        let expected = format!(
            "`logger`: there is no `{name}`; choose among `wandb`, `tensorboard`, `jsonl`, `console`, or several of them \
             in a list"
        );
        assert!(said.starts_with(&expected), "{said}");
    }
    assert!(read("[\"jsonl\", \"jsonl\"]").unwrap_err().contains("`jsonl` is named twice"));
    assert!(read("3").unwrap_err().contains("the name of a backend or a list of names"));
}

#[test]
fn names_that_weights_and_biases_would_refuse_are_refused_at_once() {
    let wandb = || RunSpec { logger: Loggers::new(["wandb"]).unwrap(), ..RunSpec::default() };
    let long = "x".repeat(129);
    let cases = [
        (RunSpec { project_name: "a/b".to_owned(), ..wandb() }, "`project_name` is `a/b`, but `wandb` takes 1 to 128"),
        (RunSpec { project_name: String::new(), ..wandb() }, "`project_name` is ``"),
        (RunSpec { run_name: long.clone(), ..wandb() }, "`run_name` is `xxx"),
        (RunSpec { tags: vec![String::new()], ..wandb() }, "`tags` is ``"),
        (RunSpec { run_id: Some("../x".to_owned()), ..wandb() }, "`run_id` is `../x`"),
    ];
    for (spec, expected) in cases {
        let said = Trackers::open(&spec).err().expect("refused").to_string();
        assert!(said.starts_with(expected), "{said}");
    }
    // Other backends take any name.
    let spec =
        RunSpec { logger: Loggers::new(["console"]).unwrap(), project_name: "a/b".to_owned(), ..RunSpec::default() };
    assert!(Trackers::open(&spec).is_ok());
}
