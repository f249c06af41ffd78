//! Compiles the shim over c10d.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=shim");
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo:error=torch-sys did not say where libtorch lies; run `scripts/setup-libtorch.sh` first");
        return;
    };
    let include = Path::new(&lib).parent().map(|p| p.join("include")).unwrap_or_default();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .debug(false)
        .opt_level(1)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .define("USE_C10D_GLOO", None)
        .include("shim")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("shim/c10d.cpp")
        .compile("espalier_c10d");
    for library in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
