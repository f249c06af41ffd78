//! Documents, read one by one from a JSONL file or a folder of texts.
//!
//! A JSONL corpus holds one object per line: `contents` (Search-R1's form, where the first line is the title in quotes)
//! or `text`, and maybe `id` (or `_id`), `title` and anything else, which is kept. A folder is every `.txt`, `.md` and
//! `.markdown` file in it and below it ([`folder`] finds them), in the order of their paths; a file is cut into passages
//! at blank lines.
//!
//! Reading takes the memory of one document, and that of the ids: nothing where they are numbers that rise by one,
//! about 16 bytes each otherwise ([`ids`]). What was read is hashed on the way, so that an index is never kept under
//! the name of a corpus that changed meanwhile.

mod folder;
mod ids;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

pub use self::folder::LeftOut;
use self::ids::Ids;
use crate::protocol::{kind, plain};
use crate::retriever::RetrievalError;

/// Longest line of a JSONL corpus and longest text file, bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Passages of a text file have about this many bytes: paragraphs are put together up to it, longer ones cut.
const PASSAGE_BYTES: usize = 2000;

/// The SHA-256 of a corpus: of a JSONL file's bytes, or of the names and bytes of a folder's files.
pub type Digest = [u8; 32];

/// One document of a corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its title, where it has one that its contents do not begin with.
    pub title: Option<String>,
    /// Its text.
    pub contents: String,
    /// The document as it is answered: `contents`, `id` and `title` where there are such, and what else the line had.
    pub fields: Map<String, Value>,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes in all.
    pub of: u64,
    /// Documents read; 0 while the corpus is only hashed.
    pub documents: u64,
}

/// Where documents come from.
#[derive(Clone, Debug)]
pub struct Corpus {
    path: PathBuf,
    /// The files; one for JSONL.
    files: Vec<PathBuf>,
    folder: bool,
    bytes: u64,
    left_out: LeftOut,
}

impl Corpus {
    /// Looks at a JSONL file or a folder, without reading it.
    pub fn open(path: &Path) -> Result<Self, RetrievalError> {
        let metadata = path.metadata().map_err(|error| unreadable(path, &error))?;
        if metadata.is_dir() {
            let (files, left_out) = folder::texts(path)?;
            if files.is_empty() {
                let others = left_out.sentences().join("; ");
                let others = if others.is_empty() { String::new() } else { format!(" ({others})") };
                let reason = format!("expected `.txt` or `.md` files in the folder, found none{others}");
                return Err(wrong(path, None, reason));
            }
            let mut bytes = 0;
            for file in &files {
                let size = file.metadata().map_err(|error| unreadable(file, &error))?.len();
                if size > MAX_DOCUMENT_BYTES {
                    return Err(wrong(
                        file,
                        None,
                        format!("a text file may have {MAX_DOCUMENT_BYTES} bytes, got {size}"),
                    ));
                }
                bytes += size;
            }
            return Ok(Self { path: path.to_owned(), files, folder: true, bytes, left_out });
        }
        if !metadata.is_file() {
            return Err(wrong(path, None, "expected a folder of texts or a JSONL file, got neither".to_owned()));
        }
        Ok(Self {
            path: path.to_owned(),
            files: vec![path.to_owned()],
            folder: false,
            bytes: metadata.len(),
            left_out: LeftOut::default(),
        })
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What lies in the folder and is no part of the corpus.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The hash of what the corpus holds now.
    pub fn digest(&self, progress: &mut dyn FnMut(Progress)) -> Result<Digest, RetrievalError> {
        let mut hasher = self.hasher();
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        for path in &self.files {
            let mut file = File::open(path).map_err(|error| unreadable(path, &error))?;
            if self.folder {
                self.hash_name(&mut hasher, path);
            }
            let mut size = 0_u64;
            loop {
                let count = file.read(&mut buffer).map_err(|error| unreadable(path, &error))?;
                if count == 0 {
                    break;
                }
                hasher.update(&buffer[..count]);
                size += count as u64;
                done += count as u64;
                progress(Progress { bytes: done, of: self.bytes, documents: 0 });
            }
            if self.folder {
                hasher.update(size.to_le_bytes());
            }
        }
        Ok(hasher.finalize().into())
    }

    /// Reads every document, in order, and gives the hash of what was read.
    pub fn read(
        &self,
        each: &mut dyn FnMut(Document, Progress) -> Result<(), RetrievalError>,
    ) -> Result<Digest, RetrievalError> {
        let mut hasher = self.hasher();
        let mut progress = Progress { bytes: 0, of: self.bytes, documents: 0 };
        let mut ids = Ids::default();
        for path in &self.files {
            if self.folder {
                self.hash_name(&mut hasher, path);
                let text = text_of(path, &mut hasher)?;
                progress.bytes += text.len() as u64;
                for document in self.passages(path, &text) {
                    // Names that are not UTF-8 may look the same.
                    if let Some(id) = id_of(&document)
                        && !ids.insert(&id)
                    {
                        return Err(wrong(
                            path,
                            None,
                            format!("`{id}` names another document already; rename the file"),
                        ));
                    }
                    progress.documents += 1;
                    each(document, progress)?;
                }
            } else {
                lines(path, &mut hasher, &mut progress, &mut ids, each)?;
            }
        }
        if progress.documents == 0 {
            return Err(wrong(&self.path, None, "holds no documents".to_owned()));
        }
        Ok(hasher.finalize().into())
    }

    fn hasher(&self) -> Sha256 {
        let mut hasher = Sha256::new();
        hasher.update(if self.folder { b"folder\0".as_slice() } else { b"jsonl\0" });
        hasher
    }

    fn hash_name(&self, hasher: &mut Sha256, path: &Path) {
        let name = self.name(path);
        hasher.update((name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }

    /// A file's path within the folder.
    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.path).unwrap_or(path).to_string_lossy().into_owned()
    }

    fn passages(&self, path: &Path, text: &str) -> Vec<Document> {
        let name = self.name(path);
        let heading = text.lines().find_map(|line| line.strip_prefix("# ")).map(|heading| heading.trim().to_owned());
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().replace(['_', '-'], " "));
        let title = heading.or(stem).unwrap_or_else(|| name.clone());
        let passages = split(text);
        let single = passages.len() == 1;
        passages
            .into_iter()
            .enumerate()
            .map(|(at, passage)| {
                let id = if single { name.clone() } else { format!("{name}#{}", at + 1) };
                let mut fields = Map::new();
                fields.insert("id".to_owned(), Value::String(id));
                fields.insert("title".to_owned(), Value::String(title.clone()));
                fields.insert("contents".to_owned(), Value::String(passage.clone()));
                Document { title: Some(title.clone()), contents: passage, fields }
            })
            .collect()
    }
}

/// A text file as it is, hashed on the way.
fn text_of(path: &Path, hasher: &mut Sha256) -> Result<String, RetrievalError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(wrong(path, None, format!("a text file may have {MAX_DOCUMENT_BYTES} bytes, got more")));
    }
    hasher.update(&bytes);
    hasher.update((bytes.len() as u64).to_le_bytes());
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|byte| *byte == b'\n').count() as u64;
        wrong(path, Some(line), "expected UTF-8, got other bytes".to_owned())
    })
}

/// A text's paragraphs, put together or cut to passages.
fn split(text: &str) -> Vec<String> {
    let mut passages: Vec<String> = Vec::new();
    let mut passage = String::new();
    let mut paragraph = String::new();
    for line in text.trim_start_matches('\u{feff}').lines().chain([""]) {
        if !line.trim().is_empty() {
            if !paragraph.is_empty() {
                paragraph.push('\n');
            }
            paragraph.push_str(line.trim_end());
            continue;
        }
        for piece in pieces(&paragraph) {
            if !passage.is_empty() && passage.len() + piece.len() + 2 > PASSAGE_BYTES {
                passages.push(std::mem::take(&mut passage));
            }
            if !passage.is_empty() {
                passage.push_str("\n\n");
            }
            passage.push_str(piece);
        }
        paragraph.clear();
    }
    if !passage.is_empty() {
        passages.push(passage);
    }
    passages
}

/// A paragraph cut at white space to pieces of at most [`PASSAGE_BYTES`]; anywhere where there is none.
fn pieces(paragraph: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = paragraph.trim();
    while rest.len() > PASSAGE_BYTES {
        let end = rest.floor_char_boundary(PASSAGE_BYTES);
        let end = rest[..end].rfind(char::is_whitespace).filter(|at| *at > 0).unwrap_or(end);
        pieces.push(rest[..end].trim_end());
        rest = rest[end..].trim_start();
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

fn lines(
    path: &Path,
    hasher: &mut Sha256,
    progress: &mut Progress,
    ids: &mut Ids,
    each: &mut dyn FnMut(Document, Progress) -> Result<(), RetrievalError>,
) -> Result<(), RetrievalError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        bytes.clear();
        let limit = MAX_DOCUMENT_BYTES + 1;
        let count =
            reader.by_ref().take(limit).read_until(b'\n', &mut bytes).map_err(|error| unreadable(path, &error))?;
        if count == 0 {
            return Ok(());
        }
        line += 1;
        if bytes.len() as u64 == limit && bytes.last() != Some(&b'\n') {
            return Err(wrong(path, Some(line), format!("a line may have {MAX_DOCUMENT_BYTES} bytes, got more")));
        }
        hasher.update(&bytes);
        progress.bytes += count as u64;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| wrong(path, Some(line), "expected UTF-8, got other bytes".to_owned()))?;
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        if text.trim().is_empty() {
            continue;
        }
        let document = document(text).map_err(|reason| wrong(path, Some(line), reason))?;
        if let Some(id) = id_of(&document)
            && !ids.insert(&id)
            && let Some(first) = line_of(path, &id, line)
        {
            let reason = format!("`{id}` is the id of line {first} already; ids must differ, or be left out");
            return Err(wrong(path, Some(line), reason));
        }
        progress.documents += 1;
        each(document, *progress)?;
    }
}

/// A document's id, as it is answered.
fn id_of(document: &Document) -> Option<String> {
    document.fields.get("id").and_then(plain)
}

/// The first line before `end` whose document has this id. Reads the file again: of ids only hashes are kept, and two
/// may share one. What is wrong with a line was said when it was read first.
fn line_of(path: &Path, id: &str, end: u64) -> Option<u64> {
    let reader = BufReader::with_capacity(1 << 20, File::open(path).ok()?);
    let has = |text: &std::io::Result<Vec<u8>>| {
        let text = text.as_ref().ok().and_then(|bytes| std::str::from_utf8(bytes).ok());
        let document = text.and_then(|text| document(text.trim_start_matches('\u{feff}')).ok());
        document.as_ref().and_then(id_of).is_some_and(|other| other == id)
    };
    (1..end).zip(reader.split(b'\n')).find(|(_, text)| has(text)).map(|(line, _)| line)
}

/// One line of a JSONL corpus.
fn document(line: &str) -> Result<Document, String> {
    const FORM: &str = r#"expected {"contents": TEXT, "id": TEXT, "title": TEXT}, or "text" in place of "contents""#;
    let mut fields = match espalier_json::value(line.as_bytes()) {
        Ok(Value::Object(fields)) => fields,
        Ok(other) => return Err(format!("is {}; {FORM}", kind(&other))),
        // The only thing that JSON may be and a value may not.
        Err(error) if error.is_data() => return Err(error.to_string()),
        Err(error) => return Err(format!("is not JSON ({error}); {FORM}")),
    };
    let title = fields.get("title").and_then(plain).filter(|title| !title.trim().is_empty());
    let contents = match (fields.get("contents"), fields.get("text")) {
        (Some(Value::String(contents)), _) => contents.clone(),
        (None | Some(Value::Null), Some(Value::String(text))) => match &title {
            // As Search-R1 writes it: the title in quotes, then the text.
            Some(title) => format!("\"{title}\"\n{text}"),
            None => text.clone(),
        },
        (Some(other), _) => return Err(format!("has `contents` that are {}; {FORM}", kind(other))),
        (None, Some(other)) => return Err(format!("has a `text` that is {}; {FORM}", kind(other))),
        (None, None) => return Err(format!("has neither `contents` nor `text`; {FORM}")),
    };
    fields.insert("contents".to_owned(), Value::String(contents.clone()));
    if !fields.contains_key("id")
        && let Some(id) = fields.get("_id").cloned()
    {
        fields.insert("id".to_owned(), id);
    }
    let quoted = contents.lines().next().and_then(|first| first.trim().strip_prefix('"')?.strip_suffix('"'));
    if title.is_none()
        && let Some(quoted) = quoted
    {
        fields.insert("title".to_owned(), Value::String(quoted.to_owned()));
    }
    let title = title.filter(|title| !contents.contains(title.as_str()));
    Ok(Document { title, contents, fields })
}

fn unreadable(path: &Path, error: &std::io::Error) -> RetrievalError {
    wrong(path, None, format!("cannot be read: {error}"))
}

fn wrong(path: &Path, line: Option<u64>, reason: String) -> RetrievalError {
    RetrievalError::Corpus { path: path.to_owned(), line, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_blank_lines_and_white_space() {
        let paragraph = "word ".repeat(300);
        let text = format!("# Title\n\nshort\n\n{paragraph}\n\n{paragraph}\n\n{}", "x".repeat(5000));
        let passages = split(&text);
        assert!(passages.iter().all(|passage| passage.len() <= PASSAGE_BYTES), "{passages:?}");
        assert!(passages[0].starts_with("# Title\n\nshort\n\nword"));
        let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
        assert_eq!(letters(&passages.concat()), letters(&text), "nothing is lost");
        assert!(split("é".repeat(3000).as_str()).len() > 2, "cut between characters");
        assert!(split(" \n\n\t\n").is_empty());
    }

    #[test]
    fn the_forms_of_a_line() {
        let wiki = document(r#"{"id": "1", "contents": "\"Paris\"\nThe capital."}"#).unwrap();
        assert_eq!(wiki.fields["title"], "Paris");
        let text = document(r#"{"_id": 4, "title": "Paris", "text": "The capital.", "url": "u"}"#).unwrap();
        assert_eq!(text.contents, "\"Paris\"\nThe capital.");
        assert_eq!((&text.fields["id"], &text.fields["url"]), (&Value::from(4), &Value::from("u")));
        assert_eq!(text.title, None, "the contents have it");
        let apart = document(r#"{"title": "Paris", "contents": "The capital."}"#).unwrap();
        assert_eq!(apart.title.as_deref(), Some("Paris"));
        for (line, said) in [
            ("[]", "is a list"),
            ("{", "is not JSON"),
            ("{\"id\": 1}", "neither `contents` nor `text`"),
            ("{\"contents\": 3}", "`contents` that are a number"),
            ("{\"text\": null}", "`text` that is null"),
        ] {
            let error = document(line).unwrap_err();
            assert!(error.contains(said) && error.contains("expected"), "{line}: {error}");
        }
    }
}
