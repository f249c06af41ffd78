//! BM25 over small corpora: relevance, order, odd queries, and the index on disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use espalier_retrieval::{Bm25, Bm25Options, Hit, RetrievalError, Retriever, SearchLimits};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What may happen to an index, given one of its files.
type Damage = fn(&Path);

fn limits() -> SearchLimits {
    SearchLimits { deadline: Instant::now() + Duration::from_mins(1), cancel: CancellationToken::new() }
}

/// Options that put every index on disk, in `cache`.
fn kept(cache: &Path) -> Bm25Options {
    Bm25Options { cache: Some(cache.to_owned()), in_memory_bytes: 0, ..Bm25Options::default() }
}

fn jsonl(folder: &Path, lines: &[&str]) -> std::path::PathBuf {
    let path = folder.join("corpus.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    path
}

const TOWNS: [&str; 5] = [
    r#"{"id": "0", "contents": "\"Paris\"\nParis is the capital of France, on the Seine."}"#,
    r#"{"id": "1", "contents": "\"Lyon\"\nLyon is a city in France, on the Rhône."}"#,
    r#"{"id": "2", "contents": "\"Berlin\"\nBerlin is the capital of Germany."}"#,
    r#"{"id": "3", "contents": "\"東京\"\n東京は日本の首都である。"}"#,
    r#"{"id": "4", "title": "Kyiv", "text": "Київ — столиця України.", "population": 2952301}"#,
];

async fn ids(bm25: &Bm25, query: &str, topk: usize) -> Vec<String> {
    let hits = bm25.search(query, topk, &limits()).await.unwrap();
    hits.into_iter().map(|hit| hit.id.unwrap_or_default()).collect()
}

#[tokio::test]
async fn what_fits_best_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &TOWNS);
    for options in [Bm25Options::default(), kept(&folder.path().join("cache"))] {
        let bm25 = Bm25::open(&path, &options).unwrap();
        assert_eq!(bm25.documents(), 5);
        assert_eq!(ids(&bm25, "What is the capital of France?", 2).await, ["0", "2"]);
        assert_eq!(ids(&bm25, "cities on the RHONE", 1).await, ["1"]);
        assert_eq!(ids(&bm25, "日本の首都", 1).await, ["3"]);
        assert_eq!(ids(&bm25, "столиця", 3).await, ["4"]);
        assert_eq!(ids(&bm25, "kyiv", 3).await, ["4"], "the title is searched too");
        let hits: Vec<Hit> = bm25.search("Kyiv", usize::MAX, &limits()).await.unwrap();
        assert_eq!(hits[0].title.as_deref(), Some("Kyiv"));
        assert_eq!(hits[0].contents, "\"Kyiv\"\nКиїв — столиця України.");
        assert_eq!(hits[0].document["population"], 2952301);
        assert!(hits[0].score > 0.0);
    }
}

#[tokio::test]
async fn a_query_is_plain_text_whatever_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let bm25 = Bm25::open(&jsonl(folder.path(), &TOWNS), &Bm25Options::default()).unwrap();
    for nothing in ["", " \n", "\"", "((", "*:*", "\u{0}", "zzz", "!", "--"] {
        assert_eq!(ids(&bm25, nothing, 3).await, [""; 0], "{nothing:?}");
    }
    for query in ["title:paris AND (\"", "paris^9 +paris -paris", "paris~ [a TO z}", "/paris/", "NOT paris", "'paris\\"]
    {
        assert_eq!(ids(&bm25, query, 1).await, ["0"], "{query:?}");
    }
    assert_eq!(ids(&bm25, "paris", 0).await, [""; 0]);
    let words = (0..150_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ");
    assert!(words.len() > 1_000_000);
    assert_eq!(ids(&bm25, &format!("paris {words}"), 3).await, ["0"]);
    assert_eq!(ids(&bm25, &"paris ".repeat(200_000), 3).await, ["0"]);
    assert_eq!(ids(&bm25, &"x".repeat(1 << 20), 3).await, [""; 0]);
}

#[tokio::test]
async fn equal_scores_come_in_the_order_of_the_corpus() {
    let folder = tempfile::tempdir().unwrap();
    // Enough that an index on disk is built of several segments: each line is a few kB and the budget the smallest.
    let filler = "padding that makes a line long enough to fill the memory of a segment ".repeat(40);
    let lines: Vec<String> = (0..12_000)
        .map(|number| {
            let unique = (0..40).map(|word| format!("u{number}x{word}")).collect::<Vec<_>>().join(" ");
            format!(r#"{{"id": "{number}", "contents": "same {unique}", "note": "{filler}"}}"#)
        })
        .collect();
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let small = Bm25Options { build_bytes: 0, ..kept(&folder.path().join("cache")) };
    for options in [Bm25Options { in_memory_bytes: u64::MAX, ..Bm25Options::default() }, small] {
        let bm25 = Bm25::open(&path, &options).unwrap();
        assert_eq!(ids(&bm25, "same", 20).await, expected);
        assert_eq!(ids(&bm25, "u7000x1 same", 2).await, ["7000", "0"]);
    }
}

#[tokio::test]
async fn a_folder_is_searched_by_passages() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    let paragraph = |at| format!("Paragraph {at} speaks of topic{at}. {}", "more ".repeat(40));
    let long = (0..40).map(paragraph).collect::<Vec<_>>().join("\n\n");
    fs::write(folder.path().join("deep/long_text.md"), format!("# A long one\n\n{long}")).unwrap();
    fs::write(folder.path().join("short.txt"), "A fox.").unwrap();
    fs::write(folder.path().join("ignored.bin"), [0xff, 0xfe]).unwrap();
    let bm25 = Bm25::open(folder.path(), &Bm25Options::default()).unwrap();
    let hits = bm25.search("topic33", 3, &limits()).await.unwrap();
    assert_eq!(hits.len(), 1);
    assert!(hits[0].contents.contains("topic33") && hits[0].contents.len() <= 2000);
    assert_eq!(hits[0].title.as_deref(), Some("A long one"));
    assert!(hits[0].id.as_ref().unwrap().starts_with("deep/long_text.md#"));
    assert_eq!(ids(&bm25, "foxes short", 1).await, ["short.txt"], "a file's name is its title");
}

#[tokio::test]
async fn a_folder_is_read_through_links_once_and_what_is_left_out_is_named() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    for made in [root.join("deep/er"), root.join(".git"), outside.join("below")] {
        fs::create_dir_all(made).unwrap();
    }
    for (name, text) in [
        ("root/CAPITALS.TXT", "capitals"),
        ("root/deep/er/mixed.Md", "mixed"),
        ("root/.git/note.md", "secret"),
        ("root/._note.txt", "fork"),
        ("root/picture.png", "png"),
        ("outside/below/linked.txt", "linked"),
        ("outside/.hidden.md", "hidden"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    symlink(&outside, root.join("link")).unwrap();
    symlink(outside.join("below"), root.join("twice")).unwrap();
    symlink(&root, root.join("deep/around")).unwrap();
    symlink("self.txt", root.join("self.txt")).unwrap();
    symlink(root.join("gone.md"), root.join("dangling.md")).unwrap();
    symlink(root.join("CAPITALS.TXT"), root.join("again.txt")).unwrap();
    let bm25 = Bm25::open(&root, &Bm25Options::default()).unwrap();
    let mut found = ids(&bm25, "capitals mixed linked secret fork png hidden", 20).await;
    found.sort_unstable();
    assert_eq!(found, ["CAPITALS.TXT", "again.txt", "deep/er/mixed.Md", "link/below/linked.txt"]);
    assert_eq!(
        bm25.left_out().sentences(),
        [
            "2 left out as a link that leads nowhere: `dangling.md`, `self.txt`",
            "2 left out as a link to a folder that is read under another name: `deep/around`, `twice`",
            "1 left out as neither `.txt` nor `.md`: `picture.png`",
            "3 left out for the dot in front of the name: `._note.txt`, `.git`, `link/.hidden.md`",
        ]
    );
    let empty = folder.path().join("empty");
    fs::create_dir_all(empty.join(".git")).unwrap();
    let error = Bm25::open(&empty, &Bm25Options::default()).unwrap_err().to_string();
    assert!(error.ends_with("found none (1 left out for the dot in front of the name: `.git`)"), "{error}");
}

#[test]
fn ids_that_are_there_twice_are_refused_with_both_lines() {
    let folder = tempfile::tempdir().unwrap();
    let open = |lines: &[&str]| Bm25::open(&jsonl(folder.path(), lines), &kept(&folder.path().join("cache")));
    for (twice, id) in [(r#"{"_id": "x-1", "text": "b"}"#, "x-1"), (r#"{"id": 7, "text": "b"}"#, "7")] {
        let lines = [r#"{"id": "x-1", "text": "a"}"#, "", r#"{"text": "none"}"#, r#"{"id": "7", "text": "c"}"#, twice];
        let error = open(&lines).unwrap_err().to_string();
        let first = if id == "7" { 4 } else { 1 };
        let expected = format!("line 5: `{id}` is the id of line {first} already; ids must differ, or be left out");
        assert!(error.ends_with(&expected), "{error}");
    }
    let without =
        [r#"{"text": "a"}"#, r#"{"text": "a"}"#, r#"{"id": null, "text": "a"}"#, r#"{"id": null, "text": "a"}"#];
    assert_eq!(open(&without).unwrap().documents(), 4);
}

#[test]
fn a_key_that_stands_twice_on_a_line_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &[TOWNS[0], r#"{"id": "9", "text": "a", "text": "b"}"#]);
    let error = Bm25::open(&path, &Bm25Options::default()).unwrap_err().to_string();
    assert!(error.contains("corpus.jsonl`, line 2: the key `text` stands there twice"), "{error}");
}

#[test]
fn what_is_wrong_with_a_corpus_names_the_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| Bm25::open(path, &Bm25Options::default()).unwrap_err().to_string();
    let path = jsonl(folder.path(), &[TOWNS[0], "", r#"{"contents": 4}"#]);
    let error = open(&path);
    assert!(error.contains("corpus.jsonl`, line 3: has `contents` that are a number"), "{error}");
    fs::write(&path, b"{\"contents\": \"a\"}\n\xff\n").unwrap();
    assert!(open(&path).contains("line 2: expected UTF-8"));
    fs::write(&path, "\n \n").unwrap();
    assert!(open(&path).contains("holds no documents"));
    assert!(open(&folder.path().join("none")).contains("cannot be read"));
    let texts = folder.path().join("texts");
    fs::create_dir(&texts).unwrap();
    assert!(open(&texts).contains("found none"));
    fs::write(texts.join("a.txt"), b"fine\nnot \xff fine").unwrap();
    assert!(open(&texts).contains("a.txt`, line 2: expected UTF-8"));
}

#[tokio::test]
async fn an_index_is_built_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &TOWNS);
    let indexed = Arc::new(AtomicU64::new(0));
    let told = indexed.clone();
    let options = Bm25Options {
        progress: Some(Arc::new(move |now| {
            told.fetch_max(now.documents, Ordering::Relaxed);
            assert!(now.bytes <= now.of);
        })),
        ..kept(&folder.path().join("cache"))
    };
    Bm25::open(&path, &options).unwrap();
    assert_eq!(indexed.swap(0, Ordering::Relaxed), 5);
    Bm25::open(&path, &options).unwrap();
    // Under another name it is still the same corpus.
    let moved = folder.path().join("other.jsonl");
    fs::rename(&path, &moved).unwrap();
    Bm25::open(&moved, &options).unwrap();
    assert_eq!(indexed.load(Ordering::Relaxed), 0, "found, not built");
    fs::write(&moved, TOWNS[..4].join("\n")).unwrap();
    let bm25 = Bm25::open(&moved, &options).unwrap();
    assert_eq!((indexed.load(Ordering::Relaxed), bm25.documents()), (4, 4), "a changed corpus is another one");
}

#[tokio::test]
async fn a_broken_index_is_built_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &TOWNS);
    let cache = folder.path().join("cache");
    let index = |cache: &Path| {
        let mut folders = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
        folders.find(|path| path.is_dir()).unwrap()
    };
    Bm25::open(&path, &kept(&cache)).unwrap();
    let store = |folder: &Path| {
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.find(|path| path.extension().is_some_and(|kind| kind == "store")).unwrap()
    };
    let damages: [Damage; 4] = [
        |file| fs::remove_file(file).unwrap(),
        |file| {
            let bytes = fs::read(file).unwrap();
            fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
        },
        |file| {
            let mut bytes = fs::read(file).unwrap();
            bytes[10] ^= 0xff;
            fs::write(file, bytes).unwrap();
        },
        |file| fs::write(file.parent().unwrap().join("espalier.json"), "{").unwrap(),
    ];
    for damage in damages {
        damage(&store(&index(&cache)));
        let bm25 = Bm25::open(&path, &kept(&cache)).unwrap();
        assert_eq!(ids(&bm25, "capital of France", 1).await, ["0"]);
    }
    // A build that broke off leaves a folder that nobody takes for an index.
    let whole = index(&cache);
    let half = whole.with_extension("half");
    fs::rename(&whole, &half).unwrap();
    fs::write(half.join("rest"), "of a dead process").unwrap();
    let bm25 = Bm25::open(&path, &kept(&cache)).unwrap();
    assert_eq!(bm25.documents(), 5);
    assert!(!half.exists());
}

#[test]
fn many_open_one_corpus_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &TOWNS);
    let cache = folder.path().join("cache");
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| Bm25::open(&path, &kept(&cache)).unwrap().documents())).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 5);
        }
    });
    let folders = fs::read_dir(&cache).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(folders, 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = jsonl(folder.path(), &TOWNS);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Bm25::open(&path, &kept(&file.join("cache"))).unwrap_err();
    assert!(matches!(&error, RetrievalError::Index { .. }) && error.to_string().contains("cannot be made"), "{error}");
}

#[tokio::test]
async fn a_search_ends_when_it_is_cancelled_or_late() {
    let folder = tempfile::tempdir().unwrap();
    let bm25 = Bm25::open(&jsonl(folder.path(), &TOWNS), &Bm25Options::default()).unwrap();
    let cancelled = limits();
    cancelled.cancel.cancel();
    assert_eq!(bm25.search("paris", 1, &cancelled).await, Err(RetrievalError::Cancelled));
    let late = SearchLimits { deadline: Instant::now(), ..limits() };
    assert_eq!(bm25.search("paris", 1, &late).await, Err(RetrievalError::Deadline));
}
