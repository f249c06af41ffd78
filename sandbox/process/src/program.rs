//! A list of system calls as an executable file.
//!
//! The file has two parts: the instructions of [`crate::init`], readable and executable, and the data with the steps,
//! readable and writable. Addresses are fixed, so arguments that point are plain numbers.

use std::borrow::Cow;

use crate::init::{self, CODE, DATA, RESERVED, STEP};
use crate::walls::Wall;

const PAGE: usize = 4096;
const HEADER: usize = 64 + 3 * 56;

/// What a step is for, so that its failure can be told.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    pub(crate) what: Cow<'static, str>,
    pub(crate) wall: Option<Wall>,
    /// It executes the program itself.
    pub(crate) exec: bool,
}

/// Steps, and the data that they point to.
pub(crate) struct Program {
    data: Vec<u8>,
    steps: Vec<[u64; 8]>,
    purposes: Vec<Purpose>,
}

/// A program as an executable, and what its steps are for.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    purposes: Vec<Purpose>,
    first_step: u64,
}

/// A fork whose parent does not know yet where to go on.
pub(crate) struct Fork(usize);

impl Program {
    pub(crate) fn new() -> Self {
        Self { data: vec![0; RESERVED], steps: Vec::new(), purposes: Vec::new() }
    }

    /// Keeps bytes as data, aligned to eight; their address.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> u64 {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let address = DATA + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        address
    }

    /// Keeps words as data.
    pub(crate) fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Keeps a text as data with a zero at its end. The text must have none within, which whoever accepts texts from
    /// outside checks.
    pub(crate) fn text(&mut self, text: impl AsRef<[u8]>) -> u64 {
        let text = text.as_ref();
        debug_assert!(!text.contains(&0), "a zero within a text");
        let address = self.bytes(text);
        self.data.push(0);
        address
    }

    /// A list of texts, as `execve` takes it.
    pub(crate) fn texts<T: AsRef<[u8]>>(&mut self, texts: impl IntoIterator<Item = T>) -> u64 {
        let mut addresses: Vec<u64> = texts.into_iter().map(|text| self.text(text)).collect();
        addresses.push(0);
        self.words(&addresses)
    }

    fn step(&mut self, number: u64, args: &[u64], flags: u64, purpose: Purpose) {
        let mut step = [0; 8];
        step[0] = number;
        for (slot, arg) in step[1..7].iter_mut().zip(args) {
            *slot = *arg;
        }
        step[7] = flags;
        self.steps.push(step);
        self.purposes.push(purpose);
    }

    /// A system call that must succeed.
    pub(crate) fn call(
        &mut self,
        wall: Option<Wall>,
        what: impl Into<Cow<'static, str>>,
        number: libc::c_long,
        args: &[u64],
    ) {
        self.step(number as u64, args, 0, Purpose { what: what.into(), wall, exec: false });
    }

    /// A system call that may fail.
    pub(crate) fn attempt(&mut self, what: impl Into<Cow<'static, str>>, number: libc::c_long, args: &[u64]) {
        self.step(number as u64, args, init::MAY_FAIL, Purpose { what: what.into(), wall: None, exec: false });
    }

    /// The execution of the program itself.
    pub(crate) fn exec(&mut self, program: &str, args: &[u64]) {
        let purpose = Purpose { what: Cow::Owned(program.to_owned()), wall: None, exec: true };
        self.step(libc::SYS_execve as u64, args, 0, purpose);
    }

    /// Divides into two processes: the child goes on with the next step.
    pub(crate) fn fork(&mut self) -> Fork {
        let purpose = Purpose { what: "start the program's process".into(), wall: None, exec: false };
        self.step(init::op::FORK, &[], 0, purpose);
        Fork(self.steps.len() - 1)
    }

    /// Where the parent of a fork goes on: it waits for the child, reports it and ends.
    pub(crate) fn parent_waits(&mut self, fork: &Fork) {
        let purpose = Purpose { what: "wait for the program".into(), wall: None, exec: false };
        self.step(init::op::WAIT, &[], 0, purpose);
        self.steps[fork.0][1] = (self.steps.len() - 1) as u64;
    }

    /// The executable.
    pub(crate) fn image(mut self) -> Image {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        let first_step = DATA + self.data.len() as u64;
        for step in &mut self.steps {
            if step[0] == init::op::FORK {
                step[1] = first_step + step[1] * STEP;
            }
            self.data.extend(step.iter().flat_map(|word| word.to_le_bytes()));
        }
        self.data[..8].copy_from_slice(&first_step.to_le_bytes());

        let code = init::code();
        let code_end = HEADER + code.len();
        let data_at = code_end.next_multiple_of(PAGE);
        let mut bytes = Vec::with_capacity(data_at + self.data.len());
        header(&mut bytes, code_end as u64, data_at as u64, self.data.len() as u64);
        bytes.extend_from_slice(code);
        bytes.resize(data_at, 0);
        bytes.extend_from_slice(&self.data);
        Image { bytes, purposes: self.purposes, first_step }
    }
}

impl Image {
    /// What the step at an address is for.
    pub(crate) fn purpose(&self, address: u64) -> Option<&Purpose> {
        let index = address.checked_sub(self.first_step)? / STEP;
        self.purposes.get(usize::try_from(index).ok()?)
    }

    /// Forgets the bytes, once they are written.
    pub(crate) fn forget_bytes(&mut self) {
        self.bytes = Vec::new();
    }
}

/// The ELF header of a static executable, and three program headers: instructions, data, a stack without execution.
fn header(out: &mut Vec<u8>, code_end: u64, data_at: u64, data_len: u64) {
    let half = |out: &mut Vec<u8>, value: u16| out.extend_from_slice(&value.to_le_bytes());
    let word = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_le_bytes());
    let long = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_le_bytes());
    // 64 bits, little-endian, version 1, System V.
    out.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    half(out, 2); // executable
    half(out, 62); // x86_64
    word(out, 1);
    long(out, CODE + HEADER as u64); // entry
    long(out, 64); // program headers follow
    long(out, 0); // no sections
    word(out, 0);
    half(out, 64);
    half(out, 56);
    half(out, 3);
    half(out, 64);
    half(out, 0);
    half(out, 0);
    let mut segment = |kind: u32, flags: u32, offset: u64, address: u64, size: u64, align: u64| {
        word(out, kind);
        word(out, flags);
        long(out, offset);
        long(out, address);
        long(out, address);
        long(out, size);
        long(out, size);
        long(out, align);
    };
    segment(1, 5, 0, CODE, code_end, PAGE as u64);
    segment(1, 6, data_at, DATA, data_len, PAGE as u64);
    segment(0x6474_e551, 6, 0, 0, 0, 16);
    debug_assert_eq!(out.len(), HEADER);
}
