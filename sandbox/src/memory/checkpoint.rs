//! States to come back to.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::image::memory_file;
use super::{Image, Mapping, PAGE, Seed};

/// A frozen heap: a file that REPLs map privately right behind the image. It is written only when nobody but its
/// writer's last checkpoint refers to it.
pub(crate) struct Layer {
    file: File,
    length: usize,
}

impl Layer {
    pub(super) fn new(file: File, length: usize) -> Self {
        Self { file, length }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }
}

/// The whole state of a guest that is not executing.
pub(crate) struct Checkpoint {
    image: Arc<Image>,
    layer: Option<Arc<Layer>>,
    size: usize,
    runs: Vec<Range<usize>>,
    bytes: Vec<u8>,
    /// Pages that every guest writes that starts from here.
    hot: Vec<Range<usize>>,
    /// The shadow stack's pointer; `None` as the module has it.
    pub(crate) stack_pointer: Option<i32>,
}

/// Why pages cannot become a checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagesError {
    #[error("a page lies outside the memory or out of order")]
    Outside,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Checkpoint {
    /// The booted interpreter, or one that was set up too.
    pub(crate) fn booted(image: Arc<Image>, stack_pointer: Option<i32>) -> Self {
        let size = image.length();
        Self { image, layer: None, size, runs: Vec::new(), bytes: Vec::new(), hot: Vec::new(), stack_pointer }
    }

    /// The state of `mapping`'s guest, which started from the booted interpreter, as an image of its own: many will
    /// start from it, and own only what they write themselves.
    pub(crate) fn template(mapping: &Mapping, stack_pointer: Option<i32>) -> io::Result<Self> {
        Ok(Self::booted(Arc::new(mapping.to_image()?), stack_pointer))
    }

    /// Learns from `mapping`, whose guest started from here and served a little, what every guest writes.
    pub(crate) fn learn(&mut self, mapping: &Mapping) -> io::Result<()> {
        self.hot = mapping.written(0..self.image.length())?;
        Ok(())
    }

    /// The state of `mapping`'s guest, which must not run meanwhile. `previous` is that guest's last checkpoint; if
    /// nobody else holds its layer, the layer is brought up to date in place and `previous` must be dropped.
    pub(crate) fn take(mapping: &Mapping, previous: &Self, stack_pointer: Option<i32>, sole: bool) -> io::Result<Self> {
        // The layer's two owners are the mapping and `previous`.
        let alone = sole && previous.layer.as_ref().is_none_or(|layer| Arc::strong_count(layer) <= 2);
        let (layer, runs) = mapping.freeze(alone)?;
        let bytes = mapping.copy_out(&runs);
        let image = Arc::clone(mapping.image());
        Ok(Self { image, layer, size: mapping.size(), runs, bytes, hot: Vec::new(), stack_pointer })
    }

    /// What a memory in this state starts from; [`Self::fill`] completes it.
    pub(crate) fn seed(&self) -> Seed {
        Seed { image: Arc::clone(&self.image), layer: self.layer.clone(), size: self.size }
    }

    /// Completes a memory made from [`Self::seed`] whose guest has not run yet.
    pub(crate) fn fill(&self, mapping: &Mapping) {
        if mapping.warm() * 2 < self.hot.iter().map(Range::len).sum() {
            for run in &self.hot {
                mapping.own(run.clone());
            }
        }
        let mut offset = 0;
        for run in &self.runs {
            if run.len() > PAGE {
                mapping.own(run.clone());
            }
            mapping.fill(run.start, &self.bytes[offset..offset + run.len()]);
            offset += run.len();
        }
    }

    /// Size of the memory, bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Visits every page that differs from the booted interpreter's: number and bytes, ascending.
    pub(crate) fn pages(&self, mut visit: impl FnMut(u32, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let starts = self.runs.iter().flat_map(|run| run.clone().step_by(PAGE));
        let mut own = starts.zip(self.bytes.chunks_exact(PAGE)).peekable();
        let start = self.image.length();
        let layer = self.layer.as_ref().map(|layer| (layer, start..start + layer.length));
        let mut page = [0; PAGE];
        for offset in self.image.changed().iter().flat_map(|run| run.clone().step_by(PAGE)) {
            while let Some((at, bytes)) = own.next_if(|(at, _)| *at < offset) {
                visit((at / PAGE) as u32, bytes)?;
            }
            if let Some((at, bytes)) = own.next_if(|(at, _)| *at == offset) {
                visit((at / PAGE) as u32, bytes)?;
                continue;
            }
            self.image.file().read_exact_at(&mut page, offset as u64)?;
            visit((offset / PAGE) as u32, &page)?;
        }
        if let Some((layer, range)) = layer {
            for offset in range.step_by(PAGE) {
                while let Some((at, bytes)) = own.next_if(|(at, _)| *at < offset) {
                    visit((at / PAGE) as u32, bytes)?;
                }
                if let Some((at, bytes)) = own.next_if(|(at, _)| *at == offset) {
                    visit((at / PAGE) as u32, bytes)?;
                    continue;
                }
                layer.file.read_exact_at(&mut page, (offset - start) as u64)?;
                if page.iter().any(|byte| *byte != 0) {
                    visit((offset / PAGE) as u32, &page)?;
                }
            }
        }
        own.try_for_each(|(at, bytes)| visit((at / PAGE) as u32, bytes))
    }

    /// A checkpoint of `size` bytes from the pages that differ from `image`, ascending.
    pub(crate) fn from_pages<'a>(
        image: Arc<Image>,
        size: usize,
        stack_pointer: Option<i32>,
        pages: impl Iterator<Item = (u32, &'a [u8])>,
    ) -> Result<Self, PagesError> {
        let start = image.length();
        if size < start || !size.is_multiple_of(PAGE) {
            return Err(PagesError::Outside);
        }
        let mut this = Self { size, ..Self::booted(image, stack_pointer) };
        let mut layer = None;
        let mut next = 0;
        for (number, bytes) in pages {
            let offset = number as usize * PAGE;
            if offset < next || offset + PAGE > size || bytes.len() != PAGE {
                return Err(PagesError::Outside);
            }
            next = offset + PAGE;
            if offset < start {
                match this.runs.last_mut() {
                    Some(last) if last.end == offset => last.end += PAGE,
                    _ => this.runs.push(offset..offset + PAGE),
                }
                this.bytes.extend_from_slice(bytes);
            } else {
                if layer.is_none() {
                    let file = memory_file("espalier-layer")?;
                    file.set_len((size - start) as u64)?;
                    layer = Some(file);
                }
                if let Some(file) = &layer {
                    file.write_all_at(bytes, (offset - start) as u64)?;
                }
            }
        }
        this.layer = layer.map(|file| Arc::new(Layer::new(file, size - start)));
        Ok(this)
    }
}
