//! The index's fields, and building it: documents in the order of the corpus, in one segment.

use tantivy::indexer::NoMergePolicy;
use tantivy::schema::{
    BytesOptions, FAST, Field, IndexRecordOption, NumericOptions, Schema, TextFieldIndexing, TextOptions,
};
use tantivy::{Index, IndexReader, IndexWriter, ReloadPolicy, TantivyDocument, TantivyError};

use super::analysis;
use crate::corpus::{Corpus, Digest, Progress};
use crate::retriever::RetrievalError;

/// The fields of an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    /// What is searched: title and contents.
    pub(super) text: Field,
    /// The document as it is answered, as JSON.
    pub(super) document: Field,
    /// Its place in the corpus, from 0.
    number: Field,
}

impl Fields {
    pub(super) fn of(schema: &Schema) -> Result<Self, TantivyError> {
        Ok(Self {
            text: schema.get_field("text")?,
            document: schema.get_field("document")?,
            number: schema.get_field("number")?,
        })
    }
}

pub(super) fn schema() -> Schema {
    let mut schema = Schema::builder();
    let indexing =
        TextFieldIndexing::default().set_tokenizer(analysis::NAME).set_index_option(IndexRecordOption::WithFreqs);
    schema.add_text_field("text", TextOptions::default().set_indexing_options(indexing));
    schema.add_bytes_field("document", BytesOptions::default().set_stored());
    schema.add_u64_field("number", NumericOptions::default() | FAST);
    schema.build()
}

/// Makes an index know how its texts became terms.
pub(super) fn prepare(index: &Index) {
    index.tokenizers().register(analysis::NAME, analysis::analyzer());
}

/// A reader of what the index holds now; indexes do not change.
pub(super) fn reader(index: &Index) -> Result<IndexReader, TantivyError> {
    index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()
}

/// An index of a corpus in memory.
pub(super) fn in_memory(
    corpus: &Corpus,
    build_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Index, RetrievalError> {
    let index = Index::create_in_ram(schema());
    prepare(&index);
    fill(&index, corpus, build_bytes, progress)?;
    Ok(index)
}

/// Puts every document of a corpus into an empty index, and gives the hash of what was read.
pub(super) fn fill(
    index: &Index,
    corpus: &Corpus,
    build_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Digest, RetrievalError> {
    let failed =
        |error: TantivyError| RetrievalError::Index { path: corpus.path().to_owned(), reason: error.to_string() };
    let fields = Fields::of(&index.schema()).map_err(failed)?;
    // One thread, so that segments hold what lies side by side in the corpus. Tantivy takes no less than 15 MB.
    let budget = build_bytes.max(16 << 20);
    let mut writer: IndexWriter = index.writer_with_num_threads(1, budget).map_err(failed)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    let mut number = 0_u64;
    let digest = corpus.read(&mut |document, now| {
        let mut entry = TantivyDocument::new();
        if let Some(title) = &document.title {
            entry.add_text(fields.text, title);
        }
        entry.add_text(fields.text, &document.contents);
        let stored = serde_json::Value::Object(document.fields).to_string();
        entry.add_bytes(fields.document, stored.as_bytes());
        entry.add_u64(fields.number, number);
        number += 1;
        writer.add_document(entry).map_err(failed)?;
        progress(now);
        Ok(())
    })?;
    writer.commit().map_err(failed)?;
    merge(index, &mut writer).map_err(failed)?;
    writer.wait_merging_threads().map_err(failed)?;
    Ok(digest)
}

/// Puts the segments together in the order of the corpus: equal scores come by place in the index.
fn merge(index: &Index, writer: &mut IndexWriter) -> Result<(), TantivyError> {
    let mut segments = Vec::new();
    for segment in reader(index)?.searcher().segment_readers() {
        let first = segment.fast_fields().u64("number")?.first(0).unwrap_or(u64::MAX);
        segments.push((first, segment.segment_id()));
    }
    segments.sort_unstable();
    if segments.len() > 1 {
        let ids: Vec<_> = segments.into_iter().map(|(_, id)| id).collect();
        writer.merge(&ids).wait()?;
        writer.garbage_collect_files().wait()?;
    }
    Ok(())
}
