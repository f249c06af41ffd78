//! The instructions of a job's first process.
//!
//! They perform a list of system calls and know three more operations: to divide into two processes, to wait for the
//! second one, and to end. They are position independent, know nothing of the host's memory, and are never executed
//! in the host: they are bytes of an executable that [`crate::program::Program::image`] writes.
//!
//! A step is eight words: the call's number or an operation, six arguments, flags. Reports are written to descriptor
//! 3, one `write` each:
//!
//! - tag 1, the address of a step, the error that it returned (negative): the process ends;
//! - tag 2, 0, the wait status of the second process, and its `struct rusage`.

#![expect(unsafe_code, reason = "instructions are written by hand, and their bytes lie between two foreign labels")]

/// Where data begins in the address space of the first process; the first word is the address of the first step.
pub(crate) const DATA: u64 = 0x50_0000;
/// Where the instructions begin, after the file's header.
pub(crate) const CODE: u64 = 0x40_0000;
/// Bytes at the start of the data that belong to the instructions.
pub(crate) const RESERVED: usize = 256;
/// Bytes of one step.
pub(crate) const STEP: u64 = 64;

/// The steps that are not system calls.
pub(crate) mod op {
    /// The child goes on with the next step, the parent at the address in the first argument.
    pub(crate) const FORK: u64 = 0x1000;
    /// Waits for the child of the last fork, collecting every other, reports it and ends.
    pub(crate) const WAIT: u64 = 0x1001;
}

/// The flag of a step that may fail.
pub(crate) const MAY_FAIL: u64 = 1;

/// The descriptor that reports go to.
pub(crate) const REPORT: i32 = 3;
/// The size of a report of a failed step: tag, address, error.
pub(crate) const FAILED_SIZE: usize = 24;
/// The size of a report of the end: tag, 0, wait status, `struct rusage`.
pub(crate) const ENDED_SIZE: usize = 24 + size_of::<libc::rusage>();

const _: () = assert!(ENDED_SIZE == 168);

// Data words: 0x500000 the first step, 0x500010 the report, 0x500020 its third word, 0x500028 the rusage (144 bytes).
std::arch::global_asm!(
    ".pushsection .rodata.espalier_process_init, \"a\", @progbits",
    ".balign 16",
    ".globl espalier_process_init_begin",
    ".hidden espalier_process_init_begin",
    "espalier_process_init_begin:",
    "    mov r12, qword ptr [0x500000]",
    "10: mov rax, qword ptr [r12]",
    "    cmp rax, 0x1000",
    "    je 30f",
    "    cmp rax, 0x1001",
    "    je 40f",
    "    mov rdi, qword ptr [r12 + 8]",
    "    mov rsi, qword ptr [r12 + 16]",
    "    mov rdx, qword ptr [r12 + 24]",
    "    mov r10, qword ptr [r12 + 32]",
    "    mov r8,  qword ptr [r12 + 40]",
    "    mov r9,  qword ptr [r12 + 48]",
    "    syscall",
    "    cmp rax, -4095",
    "    jae 20f",
    "11: add r12, 64",
    "    jmp 10b",
    // A step failed.
    "20: test byte ptr [r12 + 56], 1",
    "    jnz 11b",
    "21: mov qword ptr [0x500010], 1",
    "    mov qword ptr [0x500018], r12",
    "    mov qword ptr [0x500020], rax",
    "    mov eax, 1",
    "    mov edi, 3",
    "    mov esi, 0x500010",
    "    mov edx, 24",
    "    syscall",
    "22: mov eax, 231",
    "    mov edi, 1",
    "    syscall",
    "    jmp 22b",
    // Fork.
    "30: mov eax, 57",
    "    syscall",
    "    cmp rax, -4095",
    "    jae 21b",
    "    test rax, rax",
    "    jz 11b",
    "    mov r13, rax",
    "    mov r12, qword ptr [r12 + 8]",
    "    jmp 10b",
    // Wait for the child; EINTR and other children go round again, no child at all is the end.
    "40: mov eax, 61",
    "    mov rdi, -1",
    "    mov esi, 0x500020",
    "    xor edx, edx",
    "    mov r10d, 0x500028",
    "    syscall",
    "    cmp rax, r13",
    "    je 41f",
    "    cmp rax, -10",
    "    jne 40b",
    "    jmp 21b",
    "41: mov qword ptr [0x500010], 2",
    "    mov qword ptr [0x500018], 0",
    "    mov eax, 1",
    "    mov edi, 3",
    "    mov esi, 0x500010",
    "    mov edx, 168",
    "    syscall",
    "42: mov eax, 231",
    "    xor edi, edi",
    "    syscall",
    "    jmp 42b",
    ".globl espalier_process_init_end",
    ".hidden espalier_process_init_end",
    "espalier_process_init_end:",
    ".popsection",
);

/// The instructions.
pub(crate) fn code() -> &'static [u8] {
    unsafe extern "C" {
        static espalier_process_init_begin: u8;
        static espalier_process_init_end: u8;
    }
    let begin = &raw const espalier_process_init_begin;
    let end = &raw const espalier_process_init_end;
    // SAFETY: both labels lie in one read-only section of this program, `begin` before `end`, and what lies between
    // them are bytes that the assembler wrote; they are never written.
    unsafe { std::slice::from_raw_parts(begin, end as usize - begin as usize) }
}
