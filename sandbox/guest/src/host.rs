//! The imports that the runner itself calls; the interpreter's own are in the patched `rustpython-common`.

use espalier_sandbox_protocol::{Decode, Encode, HostCall, HostReply};

#[link(wasm_import_module = "espalier")]
unsafe extern "C" {
    #[link_name = "call"]
    safe fn host_call(ptr: *const u8, len: usize) -> i32;
    #[link_name = "take"]
    safe fn host_take(ptr: *mut u8);
    #[link_name = "abort"]
    safe fn host_abort(kind: i32, ptr: *const u8, len: usize);
}

/// Asks the host; the guest may be suspended for long. The error says why the answer was unreadable.
pub fn call(request: &HostCall) -> Result<HostReply, String> {
    let bytes = request.to_bytes();
    let length = usize::try_from(host_call(bytes.as_ptr(), bytes.len())).map_err(|_| "a negative length".to_owned())?;
    drop(bytes);
    crate::heap::exempt(|| {
        let mut reply = vec![0u8; length];
        host_take(reply.as_mut_ptr());
        HostReply::from_bytes(&reply).map_err(|error| error.to_string())
    })
}

/// Says why and traps.
pub fn abort(kind: i32, reason: &str) -> ! {
    host_abort(kind, reason.as_ptr(), reason.len());
    core::arch::wasm32::unreachable()
}

#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(buffer: *mut u8, length: usize) -> Result<(), getrandom::Error> {
    // SAFETY: the caller hands over a buffer of `length` bytes.
    let buffer = unsafe {
        buffer.write_bytes(0, length);
        std::slice::from_raw_parts_mut(buffer, length)
    };
    rustpython_vm::common::espalier::random(buffer);
    Ok(())
}
