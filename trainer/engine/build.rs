//! Compiles the shim: kernels once per instruction set, and the part that talks to libtorch.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=shim");
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo:error=torch-sys did not say where libtorch lies; run `scripts/setup-libtorch.sh` first");
        return;
    };
    let include = Path::new(&lib).parent().map(|p| p.join("include")).unwrap_or_default();
    for (isa, march) in [("base", "x86-64"), ("v3", "x86-64-v3"), ("v4", "x86-64-v4")] {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").pic(true).opt_level(3).debug(false);
        build.define("ESPALIER_ISA", isa).flag(format!("-march={march}"));
        build.flag("-ffp-contract=fast").flag("-fno-math-errno").flag("-fno-trapping-math").flag("-fopenmp-simd");
        build.flag_if_supported("-mprefer-vector-width=512").flag_if_supported("-Wno-psabi");
        build.cargo_metadata(false); // named below, after the shim
        build.file("shim/kernels.cpp").file("shim/train_kernels.cpp").compile(&format!("espalier_kernels_{isa}"));
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .debug(false)
        .opt_level(2)
        .flag("-fopenmp")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("shim/shim.cpp")
        .file("shim/train.cpp")
        .compile("espalier_shim");
    // The shim refers to the kernels: their archives must come after it.
    for isa in ["base", "v3", "v4"] {
        println!("cargo:rustc-link-lib=static=espalier_kernels_{isa}");
    }
    for library in ["torch_cpu", "c10", "gomp"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
