//! Says whether the interpreter was built, so that a checkout without it still compiles.

#![expect(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]

fn main() {
    let artifact = "artifact/guest.wasm.zst";
    println!("cargo::rerun-if-changed={artifact}");
    println!("cargo::rustc-check-cfg=cfg(embedded_guest)");
    if std::path::Path::new(artifact).is_file() {
        println!("cargo::rustc-cfg=embedded_guest");
    }
}
