//! Parquet, a few rows at a time. Structs become objects, lists become lists, dictionaries are looked up.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::RowGroupMetaData;
use serde_json::{Map, Number, Value};

use crate::error::{DataError, Place};
use crate::lines::Record;

/// Rows decoded at a time: rows may hold contexts of many megabytes.
const BATCH: usize = 16;

/// Reads a file row by row, one row group after the other. A row with a value that is not read is an error, and the
/// next call gives the row behind it; behind a row group that is damaged nothing more comes.
pub struct Columns {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    /// The row group behind the open one.
    next: usize,
    reader: Option<ParquetRecordBatchReader>,
    batch: Option<RecordBatch>,
    at: usize,
    row: u64,
    failed: bool,
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Columns, DataError> {
    let file = File::open(path).map_err(|error| DataError::file(path, error))?;
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()).map_err(|error| {
        DataError::file(path, format!("cannot be read as Parquet: {error}; where it was one, fetch the file again"))
    })?;
    let path = path.to_owned();
    Ok(Columns { path, file, metadata, next: 0, reader: None, batch: None, at: 0, row: 0, failed: false })
}

impl Columns {
    /// The next rows; `None` at the end.
    fn next_batch(&mut self) -> Result<Option<RecordBatch>, DataError> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next() {
                    Some(Ok(batch)) => return Ok(Some(batch)),
                    Some(Err(error)) => return Err(self.damaged(&error)),
                    None => self.reader = None,
                }
            }
            if self.next == self.metadata.metadata().num_row_groups() {
                return Ok(None);
            }
            self.next += 1;
            let opened = self.file.try_clone().map_err(|error| DataError::file(&self.path, error))?;
            let opened = ParquetRecordBatchReaderBuilder::new_with_metadata(opened, self.metadata.clone())
                .with_row_groups(vec![self.next - 1])
                .with_batch_size(BATCH)
                .build();
            self.reader = Some(opened.map_err(|error| self.damaged(&error))?);
        }
    }

    /// Which row group cannot be read, where its rows stand, and what to do.
    fn damaged(&self, error: &dyn std::fmt::Display) -> DataError {
        let groups = self.metadata.metadata().row_groups();
        let rows = |groups: &[RowGroupMetaData]| groups.iter().map(RowGroupMetaData::num_rows).sum::<i64>();
        let (before, all) = (rows(&groups[..self.next - 1]), rows(&groups[..self.next]));
        DataError::file(
            &self.path,
            format!(
                "row group {} of {} (rows {} to {all}) cannot be read: {error}; fetch the file again, or leave it out of \
                 `path`",
                self.next,
                groups.len(),
                before + 1,
            ),
        )
    }

    #[expect(clippy::type_complexity, reason = "a record that may be absent, with its place")]
    fn next_record(&mut self) -> Result<Option<(Place, Map<String, Value>)>, DataError> {
        while self.batch.as_ref().is_none_or(|batch| self.at >= batch.num_rows()) {
            self.at = 0;
            self.batch = self.next_batch()?;
            if self.batch.is_none() {
                return Ok(None);
            }
        }
        let Some(batch) = &self.batch else { return Ok(None) };
        self.row += 1;
        let place = Place::Row(self.row);
        let index = self.at;
        self.at += 1;
        let mut record = Map::new();
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let value = value(column, index).map_err(|reason| DataError::Column {
                path: self.path.clone(),
                place,
                column: field.name().clone(),
                reason,
            })?;
            record.insert(field.name().clone(), value);
        }
        Ok(Some((place, record)))
    }
}

impl Iterator for Columns {
    type Item = Record;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.next_record();
        self.failed = matches!(record, Err(DataError::File { .. }));
        record.transpose()
    }
}

/// One cell as JSON.
fn value(array: &ArrayRef, index: usize) -> Result<Value, String> {
    if array.is_null(index) {
        return Ok(Value::Null);
    }
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(index)),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(index).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(index).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(index).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(index).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(index).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(index).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(index).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(index).into(),
        DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(index))),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(index)),
        DataType::Utf8 => array.as_string::<i32>().value(index).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(index).into(),
        DataType::Utf8View => array.as_string_view().value(index).into(),
        DataType::List(_) => list(&array.as_list::<i32>().value(index))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(index))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(index))?,
        DataType::Struct(fields) => {
            let columns = array.as_struct();
            let mut object = Map::new();
            for (field, column) in fields.iter().zip(columns.columns()) {
                object.insert(field.name().clone(), value(column, index)?);
            }
            Value::Object(object)
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(index);
            let mut object = Map::new();
            for row in 0..entries.len() {
                match value(entries.column(0), row)? {
                    Value::String(key) => object.insert(key, value(entries.column(1), row)?),
                    other => return Err(format!("expected a map whose keys are texts, got the key `{other}`")),
                };
            }
            Value::Object(object)
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary.normalized_keys()[index];
            value(dictionary.values(), key)?
        }
        other => return Err(format!("values of type {other} are not read; store them as text or numbers")),
    })
}

fn list(items: &ArrayRef) -> Result<Value, String> {
    (0..items.len()).map(|index| value(items, index)).collect::<Result<Vec<_>, _>>().map(Value::Array)
}
