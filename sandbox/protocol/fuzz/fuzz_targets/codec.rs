//! Whatever bytes a guest sends decode to a message that encodes to the same bytes, or to an error.
#![no_main]

use espalier_sandbox_protocol::{Decode, Encode, HostCall, HostReply, Reply, Request};
use libfuzzer_sys::fuzz_target;

fn check<T: Decode + Encode>(bytes: &[u8]) {
    if let Ok(message) = T::from_bytes(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<Request>(bytes);
    check::<Reply>(bytes);
    check::<HostCall>(bytes);
    check::<HostReply>(bytes);
});
