//! The Hugging Face hub: a server that speaks its API, and caches as its own library lays them out.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use espalier_datasets::hub::{Address, Cache, Fetched, HubError, HubOptions, Repo, Revision, Wanted, fetch};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the repository, and what the server does wrong with it.
#[derive(Clone, Default)]
struct Hosted {
    contents: Vec<u8>,
    /// Stored apart: a redirect to another path, and SHA-256.
    large: bool,
    /// Bytes after which the first answers break off, one number an answer.
    cuts: Vec<usize>,
    /// Answers with this status come first.
    failures: Vec<u16>,
    /// What is sent instead of the contents.
    sent: Option<Vec<u8>>,
    ignores_ranges: bool,
    etag: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Request {
    path: String,
    range: Option<String>,
    token: Option<String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Hosted>,
    requests: Vec<Request>,
    /// Where large files lie; another address than the hub's.
    elsewhere: String,
}

/// The hub, and a second address that it redirects to.
struct Server {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn git(bytes: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

impl Server {
    fn start(files: &[(&str, Hosted)]) -> Self {
        let files = files.iter().map(|(name, file)| ((*name).to_owned(), file.clone())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let endpoint = listen(Arc::clone(&state));
        state.lock().unwrap().elsewhere = listen(Arc::clone(&state));
        Self { endpoint, state }
    }

    fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: self.endpoint.clone(),
            token: Some("secret".to_owned()),
            offline: false,
            tries: 3,
            first_wait: Duration::from_millis(1),
            silence: Duration::from_secs(20),
        }
    }
}

/// Serves until the process ends; gives the address.
fn listen(state: Arc<Mutex<State>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let here = address.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, here) = (Arc::clone(&state), here.clone());
            std::thread::spawn(move || serve(stream, &state, &here));
        }
    });
    address
}

fn serve(stream: TcpStream, state: &Mutex<State>, here: &str) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let Some(path) = head.split_whitespace().nth(1).map(str::to_owned) else { return };
    let (range, token) = (header("range"), header("authorization"));
    let mut state = state.lock().unwrap();
    state.requests.push(Request { path: path.clone(), range: range.clone(), token });
    let (status, headers, body, cut) = answer(&mut state, &path, range.as_deref(), here);
    drop(state);
    let sent = &body[..cut.unwrap_or(body.len()).min(body.len())];
    let out = reader.get_mut();
    let _ = write!(out, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n", body.len());
    let _ = out.write_all(sent);
}

fn answer(state: &mut State, path: &str, range: Option<&str>, here: &str) -> (u16, String, Vec<u8>, Option<usize>) {
    let plain = |status: u16, body: String| (status, String::new(), body.into_bytes(), None);
    let (route, query) = path.split_once('?').unwrap_or((path, ""));
    if let Some(revision) = route.strip_prefix("/api/datasets/org/set/revision/") {
        return match revision {
            "main" | "refs%2Fpr%2F1" => plain(200, format!("{{\"sha\": \"{COMMIT}\", \"private\": false}}")),
            _ => plain(404, "{\"error\": \"Invalid rev id\"}".to_owned()),
        };
    }
    if route == format!("/api/datasets/org/set/tree/{COMMIT}") {
        assert!(query.contains("recursive=true"), "{query}");
        // Two files a page, as if there were many.
        let page =
            query.split('&').find_map(|part| part.strip_prefix("cursor=")).map_or(0, |page| page.parse().unwrap());
        let entry = |(name, file): (&String, &Hosted)| {
            let size = file.contents.len();
            let large = if file.large {
                format!(
                    ", \"lfs\": {{\"oid\": \"{}\", \"size\": {size}, \"pointerSize\": 130}}",
                    sha256(&file.contents)
                )
            } else {
                String::new()
            };
            let oid = git(&file.contents);
            format!("{{\"type\": \"file\", \"oid\": \"{oid}\", \"size\": {size}, \"path\": \"{name}\"{large}}}")
        };
        let mut entries: Vec<String> = state.files.iter().skip(2 * page).take(2).map(entry).collect();
        entries.push("{\"type\": \"directory\", \"oid\": \"x\", \"size\": 0, \"path\": \"data\"}".to_owned());
        let link = if 2 * (page + 1) < state.files.len() {
            format!("Link: <{here}{route}?recursive=true&cursor={}>; rel=\"next\"\r\n", page + 1)
        } else {
            String::new()
        };
        return (200, link, format!("[{}]", entries.join(", ")).into_bytes(), None);
    }
    let elsewhere = state.elsewhere.clone();
    let (name, stored) = match route.strip_prefix("/stored/") {
        Some(name) => (name, true),
        None => match route.strip_prefix(&format!("/datasets/org/set/resolve/{COMMIT}/")) {
            Some(name) => (name, false),
            None => return plain(404, String::new()),
        },
    };
    let name = name.replace("%20", " ");
    let Some(file) = state.files.get_mut(&name) else { return plain(404, String::new()) };
    let etag = if file.large { sha256(&file.contents) } else { git(&file.contents) };
    let etag = file.etag.clone().unwrap_or(etag);
    let tags =
        format!("X-Repo-Commit: {COMMIT}\r\n{}: \"{etag}\"\r\n", if file.large { "X-Linked-Etag" } else { "ETag" });
    if file.large && !stored {
        return (302, format!("{tags}Location: {elsewhere}/stored/{name}?sig=abc\r\n"), Vec::new(), None);
    }
    if !file.failures.is_empty() {
        return (file.failures.remove(0), "Retry-After: 0\r\n".to_owned(), Vec::new(), None);
    }
    let cut = if file.cuts.is_empty() { None } else { Some(file.cuts.remove(0)) };
    let body = file.sent.clone().unwrap_or_else(|| file.contents.clone());
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) if !file.ignores_ranges && from < body.len() => {
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
            (206, range, body[from..].to_vec(), cut)
        }
        Some(_) if !file.ignores_ranges => (416, String::new(), Vec::new(), None),
        _ => (200, if stored { String::new() } else { tags }, body, cut),
    }
}

fn plain(contents: &str) -> Hosted {
    Hosted { contents: contents.as_bytes().to_vec(), ..Hosted::default() }
}

fn large(bytes: usize) -> Hosted {
    let contents = (0..bytes).map(|index| (index * index % 251) as u8).collect();
    Hosted { contents, large: true, ..Hosted::default() }
}

fn wanted(files: &[&str]) -> Wanted {
    Wanted {
        repo: Repo::parse("org/set").unwrap(),
        revision: Revision::default(),
        files: files.iter().map(|file| (*file).to_owned()).collect(),
        split: None,
    }
}

fn run(options: &HubOptions, cache: &Path, wanted: &Wanted) -> Result<Vec<Fetched>, HubError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(fetch(options, &Cache::at(cache), wanted, &mut |_| {}))
}

fn names(fetched: &[Fetched]) -> Vec<&str> {
    fetched.iter().map(|file| file.name.as_str()).collect()
}

/// Everything below a folder that is no folder, with what links lead to.
fn tree(folder: &Path) -> BTreeMap<String, String> {
    fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if kind.is_dir() {
                walk(root, &path, found);
            } else if kind.is_symlink() {
                found.insert(name, format!("-> {}", std::fs::read_link(&path).unwrap().display()));
            } else {
                found.insert(name, format!("{} bytes", entry.metadata().unwrap().len()));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(folder, folder, &mut found);
    found
}

#[test]
fn files_lie_where_the_hubs_own_library_looks_for_them() {
    let server = Server::start(&[
        ("README.md", plain("hello")),
        ("data/train-00000-of-00001.parquet", large(100_000)),
        ("main/a b.jsonl", plain("{\"prompt\": \"x\"}\n")),
        (".gitattributes", plain("x")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let fetched = run(&server.options(), cache.path(), &wanted(&[])).unwrap();
    assert_eq!(names(&fetched), ["README.md", "data/train-00000-of-00001.parquet", "main/a b.jsonl"]);
    assert!(fetched.iter().all(|file| !file.kept));
    assert_eq!(std::fs::read(&fetched[2].path).unwrap(), b"{\"prompt\": \"x\"}\n");
    let (readme, rows, train) = (git(b"hello"), git(b"{\"prompt\": \"x\"}\n"), sha256(&large(100_000).contents));
    let repo = "datasets--org--set";
    let expected = [
        (format!(".locks/{repo}/{readme}.lock"), "0 bytes".to_owned()),
        (format!(".locks/{repo}/{rows}.lock"), "0 bytes".to_owned()),
        (format!(".locks/{repo}/{train}.lock"), "0 bytes".to_owned()),
        (format!("{repo}/blobs/{readme}"), "5 bytes".to_owned()),
        (format!("{repo}/blobs/{rows}"), "16 bytes".to_owned()),
        (format!("{repo}/blobs/{train}"), "100000 bytes".to_owned()),
        (format!("{repo}/refs/main"), "40 bytes".to_owned()),
        (format!("{repo}/snapshots/{COMMIT}/README.md"), format!("-> ../../blobs/{readme}")),
        (format!("{repo}/snapshots/{COMMIT}/data/train-00000-of-00001.parquet"), format!("-> ../../../blobs/{train}")),
        (format!("{repo}/snapshots/{COMMIT}/main/a b.jsonl"), format!("-> ../../../blobs/{rows}")),
    ];
    assert_eq!(tree(cache.path()), BTreeMap::from(expected));
    // The token goes to the hub alone, not to where it redirects.
    for request in server.requests() {
        let token = if request.path.starts_with("/stored/") { None } else { Some("Bearer secret".to_owned()) };
        assert_eq!(request.token, token, "{}", request.path);
    }
    // A second time nothing is downloaded.
    let before = server.requests().len();
    assert!(run(&server.options(), cache.path(), &wanted(&[])).unwrap().iter().all(|file| file.kept));
    assert!(server.requests()[before..].iter().all(|request| request.path.starts_with("/api/")));
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_was() {
    let file = Hosted { cuts: vec![30_000, 10_000, 20_000, 5_000], ..large(100_000) };
    let server = Server::start(&[("a.parquet", file)]);
    let cache = tempfile::tempdir().unwrap();
    // More breaks than tries: each one got further.
    let fetched = run(&server.options(), cache.path(), &wanted(&["a.parquet"])).unwrap();
    assert_eq!(std::fs::read(&fetched[0].path).unwrap(), large(100_000).contents);
    let ranges: Vec<_> = server
        .requests()
        .into_iter()
        .filter(|request| request.path.starts_with("/stored"))
        .map(|request| request.range)
        .collect();
    let at = |from: usize| Some(format!("bytes={from}-"));
    assert_eq!(ranges, [None, at(30_000), at(40_000), at(60_000), at(65_000)]);
}

#[test]
fn what_another_process_left_is_gone_on_with_if_it_is_right() {
    let contents = large(50_000).contents;
    let begun = |cache: &Path, bytes: &[u8]| {
        let blobs = cache.join("datasets--org--set/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{}.incomplete", sha256(&contents))), bytes).unwrap();
    };
    let mut wrong = contents[..20_000].to_vec();
    wrong[7] ^= 1;
    for (left, file, asked) in [
        (&contents[..20_000], large(50_000), vec![Some(20_000)]),
        (&contents[..], large(50_000), vec![]),
        // A wrong beginning is found out by the checksum, and thrown away.
        (&wrong[..], large(50_000), vec![Some(20_000), None]),
        (&vec![0; 60_000][..], large(50_000), vec![None]),
        // A server that knows no ranges sends the whole.
        (&contents[..20_000], Hosted { ignores_ranges: true, ..large(50_000) }, vec![Some(20_000)]),
    ] {
        let server = Server::start(&[("a.parquet", file)]);
        let cache = tempfile::tempdir().unwrap();
        begun(cache.path(), left);
        let fetched = run(&server.options(), cache.path(), &wanted(&[])).unwrap();
        assert_eq!(std::fs::read(&fetched[0].path).unwrap(), contents);
        let stored = |request: &Request| request.path.starts_with("/stored");
        let ranges: Vec<Option<String>> =
            server.requests().into_iter().filter(stored).map(|request| request.range).collect();
        let asked: Vec<Option<String>> =
            asked.iter().map(|from| from.map(|from: usize| format!("bytes={from}-"))).collect();
        assert_eq!(ranges, asked);
        assert!(!tree(cache.path()).keys().any(|name| name.ends_with(".incomplete")));
    }
}

/// What lies in a cache beside locks.
fn left(cache: &Path) -> Vec<String> {
    tree(cache).into_keys().filter(|name| !name.starts_with(".locks")).collect()
}

#[test]
fn a_fetch_that_brings_nothing_leaves_nothing() {
    for failures in [vec![403], vec![500; 9]] {
        let server = Server::start(&[("a.parquet", Hosted { failures, ..large(1000) })]);
        let cache = tempfile::tempdir().unwrap();
        run(&server.options(), cache.path(), &wanted(&[])).unwrap_err();
        assert_eq!(left(cache.path()), [""; 0]);
    }
    // What arrived before the connection broke is kept to go on with.
    let server = Server::start(&[("a.parquet", Hosted { cuts: vec![300, 0, 0, 0], ..large(1000) })]);
    let cache = tempfile::tempdir().unwrap();
    run(&server.options(), cache.path(), &wanted(&[])).unwrap_err();
    let kept = left(cache.path());
    assert!(kept.len() == 1 && kept[0].ends_with(".incomplete"), "{kept:?}");
    assert_eq!(tree(cache.path())[&kept[0]], "300 bytes");
}

#[test]
fn contents_with_another_checksum_are_not_kept() {
    for hosted in [large(1000), plain("hello")] {
        let sent = hosted.contents.iter().map(|byte| byte ^ 1).collect();
        let server = Server::start(&[("a.jsonl", Hosted { sent: Some(sent), ..hosted })]);
        let cache = tempfile::tempdir().unwrap();
        let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err();
        assert!(matches!(&error, HubError::Checksum { file, .. } if file == "a.jsonl"), "{error}");
        assert_eq!(left(cache.path()), [""; 0]);
    }
    let longer = Hosted { sent: Some(vec![0; 2000]), ..large(1000) };
    let server = Server::start(&[("a.jsonl", longer)]);
    let cache = tempfile::tempdir().unwrap();
    let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err().to_string();
    assert!(error.contains("more than the listed 1000 bytes came (tried 3 times)"), "{error}");
    assert_eq!(left(cache.path()), [""; 0]);
    let tagged = Hosted { etag: Some("0".repeat(40)), ..plain("hello") };
    let server = Server::start(&[("a.jsonl", tagged)]);
    let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err().to_string();
    assert!(error.contains("its header `ETag` says `0000"), "{error}");
}

#[test]
fn a_hub_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let server = Server::start(&[("a.jsonl", Hosted { failures: vec![503, 429], ..plain("hello") })]);
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(run(&server.options(), cache.path(), &wanted(&[])).unwrap().len(), 1);
    let server = Server::start(&[("a.jsonl", Hosted { failures: vec![500; 9], ..plain("other") })]);
    let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err().to_string();
    assert!(error.contains("500") && error.contains("(tried 3 times)"), "{error}");
    let server = Server::start(&[("a.jsonl", Hosted { failures: vec![403], ..plain("third") })]);
    let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err().to_string();
    assert!(error.contains("refuses the token of `HF_TOKEN` (403"), "{error}");
    let asked = server.requests().iter().filter(|request| request.path.contains("resolve")).count();
    assert_eq!(asked, 1);
    let other = Wanted { revision: Revision::parse("v9").unwrap(), ..wanted(&[]) };
    let error = run(&server.options(), cache.path(), &other).unwrap_err().to_string();
    assert!(error.contains("no such data set, revision or file (404"), "{error}");
}

#[test]
fn files_are_chosen_by_name_pattern_and_split() {
    let files = ["main/train-0.parquet", "main/test-0.parquet", "socratic/train.jsonl", "train.md"];
    let server = Server::start(&files.map(|name| (name, plain(name))));
    let cache = tempfile::tempdir().unwrap();
    let choose = |files: &[&str], split: Option<&str>| {
        let wanted = Wanted { split: split.map(str::to_owned), ..wanted(files) };
        run(&server.options(), cache.path(), &wanted)
    };
    assert_eq!(names(&choose(&["main/*"], None).unwrap()), ["main/test-0.parquet", "main/train-0.parquet"]);
    assert_eq!(names(&choose(&[], Some("train")).unwrap()), ["main/train-0.parquet", "socratic/train.jsonl"]);
    assert_eq!(names(&choose(&["main/*"], Some("train")).unwrap()), ["main/train-0.parquet"]);
    let error = choose(&["mian/*"], None).unwrap_err().to_string();
    assert_eq!(
        error,
        "no file `mian/*` in `org/set` at `main`; it has `main/test-0.parquet`, `main/train-0.parquet`, \
         `socratic/train.jsonl`, `train.md`"
    );
    assert!(choose(&[], Some("validation")).unwrap_err().to_string().contains("no data file of split `validation`"));
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    for name in ["../evil.jsonl", "/etc/passwd", "a/../../b.jsonl", "a//b", "a\\\\b.jsonl"] {
        let server = Server::start(&[(name, plain("evil"))]);
        let cache = tempfile::tempdir().unwrap();
        let error = run(&server.options(), cache.path(), &wanted(&[])).unwrap_err().to_string();
        assert!(error.contains("lists a file whose name"), "{name}: {error}");
        assert!(tree(cache.path()).is_empty());
    }
}

#[test]
fn two_fetches_at_once_bring_a_file_once() {
    let server = Server::start(&[("a.parquet", large(300_000))]);
    let cache = tempfile::tempdir().unwrap();
    let (options, folder) = (server.options(), cache.path().to_owned());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (options, folder) = (options.clone(), folder.clone());
            std::thread::spawn(move || run(&options, &folder, &wanted(&[])).unwrap())
        })
        .collect();
    let fetched: Vec<bool> = workers.into_iter().map(|worker| worker.join().unwrap()[0].kept).collect();
    assert_eq!(fetched.iter().filter(|kept| !**kept).count(), 1, "{fetched:?}");
    assert_eq!(server.requests().iter().filter(|request| request.path.starts_with("/stored")).count(), 1);
}

#[test]
fn offline_only_the_cache_is_looked_into() {
    let server = Server::start(&[("a.jsonl", plain("{\"prompt\": \"x\"}")), ("b.jsonl", plain("y"))]);
    let cache = tempfile::tempdir().unwrap();
    let offline = HubOptions { offline: true, ..server.options() };
    let error = run(&offline, cache.path(), &wanted(&[])).unwrap_err().to_string();
    assert!(error.contains("`HF_HUB_OFFLINE` forbids to ask for it"), "{error}");
    run(&server.options(), cache.path(), &wanted(&["a.jsonl"])).unwrap();
    let before = server.requests().len();
    assert_eq!(names(&run(&offline, cache.path(), &wanted(&[])).unwrap()), ["a.jsonl"]);
    let error = run(&offline, cache.path(), &wanted(&["b.jsonl"])).unwrap_err().to_string();
    assert!(error.contains("no file `b.jsonl`") && error.contains("it has `a.jsonl`"), "{error}");
    assert_eq!(server.requests().len(), before);
}

/// A cache as `huggingface_hub` leaves it, with a revision that has slashes and a file that never arrived.
fn laid_out() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("datasets--org--set");
    let snapshot = repo.join("snapshots").join(COMMIT);
    for folder in ["blobs", "refs/refs/pr", ".no_exist"] {
        std::fs::create_dir_all(repo.join(folder)).unwrap();
    }
    std::fs::create_dir_all(snapshot.join("main")).unwrap();
    std::fs::write(repo.join("blobs/aa"), "{\"prompt\": \"one\"}\n").unwrap();
    std::fs::write(repo.join("blobs/bb"), "{\"prompt\": \"two\"}\n").unwrap();
    std::fs::write(repo.join("refs/main"), COMMIT).unwrap();
    std::fs::write(repo.join("refs/refs/pr/1"), COMMIT).unwrap();
    for (name, blob) in [("main/train-0.jsonl", "aa"), ("main/train-1.jsonl", "bb"), ("main/gone.jsonl", "cc")] {
        std::os::unix::fs::symlink(format!("../../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    (dir, snapshot)
}

#[test]
fn addresses_find_files_in_the_cache() {
    let (dir, snapshot) = laid_out();
    let cache = Cache::at(dir.path());
    let cached = |address: &str| Address::parse(address).unwrap().cached(&cache);
    for address in ["hf://org/set/main/*.jsonl", "hf://datasets/org/set@refs/pr/1/main/train-?.jsonl"] {
        // A revision with slashes has to stand behind the file.
        if let Ok(files) = cached(address) {
            let paths: Vec<PathBuf> = files.into_iter().map(|file| file.path).collect();
            assert_eq!(paths, ["main/train-0.jsonl", "main/train-1.jsonl"].map(|name| snapshot.join(name)));
        } else {
            assert!(address.contains("@refs/pr/1/"));
        }
    }
    let files = cached(&format!("hf://org/set/main/train-1.jsonl@{COMMIT}")).unwrap();
    assert_eq!(files[0].name, Path::new(&format!("hf://org/set/main/train-1.jsonl@{COMMIT}")));
    assert_eq!(cached("hf://org/set/main/train-1.jsonl@refs/pr/1").unwrap().len(), 1);
    let error = cached("hf://org/set/main/gone.jsonl").unwrap_err().to_string();
    let root = dir.path().display();
    assert_eq!(
        error,
        format!(
            "`org/set` at `main` has no file `main/gone.jsonl` in `{root}`; get it with `espalier data fetch org/set --file main/gone.jsonl`"
        )
    );
    let error = cached("hf://org/other/*.json@v1").unwrap_err().to_string();
    assert!(error.ends_with("get it with `espalier data fetch org/other@v1 --file '*.json'`"), "{error}");
    let repos = cache.repos().unwrap();
    assert_eq!(repos.len(), 1);
    assert_eq!(repos[0].revisions.keys().collect::<Vec<_>>(), ["main", "refs/pr/1"]);
    assert_eq!(repos[0].commits[COMMIT].len(), 2);
}
