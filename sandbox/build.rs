//! Says whether the interpreter was built, so that a checkout without it still compiles.

fn main() {
    let artifact = "artifact/guest.wasm.zst";
    println!("cargo::rerun-if-changed={artifact}");
    println!("cargo::rustc-check-cfg=cfg(embedded_guest)");
    if std::path::Path::new(artifact).is_file() {
        println!("cargo::rustc-cfg=embedded_guest");
    }
}
