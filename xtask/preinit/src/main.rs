//! `espalier-preinit IN.wasm OUT.wasm.zst SOURCE_HASH`: boots the guest, keeps its memory, packs both.
//!
//! The guest's `esp_boot` runs once, here. What its memory then holds leaves the module as the custom section
//! `espalier.image` (little-endian `u32` offset, `u32` length, bytes; again and again), so that a host maps it once for
//! all instances; the module itself has no data segments. `espalier.source` holds the hash of what it was built from.

use std::error::Error;
use std::process::ExitCode;

use wasm_encoder::{CustomSection, Module as Encoder, RawSection};
use wasmparser::{DataKind, Operator, Parser, Payload};
use wasmtime::{AsContextMut, Caller, Config, Engine, Instance, Linker, Module, OptLevel, Store, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, Wizer};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Zero bytes that are stored rather than beginning a new run.
const MAX_GAP: usize = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, hash] = arguments.as_slice() else {
        eprintln!("usage: espalier-preinit IN.wasm OUT.wasm.zst SOURCE_HASH");
        return ExitCode::from(2);
    };
    match run(input, output, hash) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(input: &str, output: &str, hash: &str) -> Outcome<()> {
    let wasm = std::fs::read(input).map_err(|error| format!("cannot read `{input}`: {error}"))?;
    let booted = boot(&wasm)?;
    let packed = pack(&booted, hash)?;
    let compressed = zstd::encode_all(packed.as_slice(), 19)?;
    std::fs::write(output, &compressed).map_err(|error| format!("cannot write `{output}`: {error}"))?;
    println!(
        "{output}: {} kB (module without image and with it, before compression: {} kB, {} kB)",
        compressed.len() / 1024,
        wasm.len() / 1024,
        packed.len() / 1024
    );
    Ok(())
}

struct State<'a> {
    store: &'a mut Store<()>,
    instance: Instance,
}

impl InstanceState for State<'_> {
    async fn global_get(&mut self, name: &str, _: wasmparser::ValType) -> SnapshotVal {
        match self.instance.get_global(&mut *self.store, name).map(|global| global.get(&mut *self.store)) {
            Some(Val::I32(value)) => SnapshotVal::I32(value),
            Some(Val::I64(value)) => SnapshotVal::I64(value),
            Some(Val::F32(value)) => SnapshotVal::F32(value),
            Some(Val::F64(value)) => SnapshotVal::F64(value),
            other => panic!("the global `{name}` is a number, not {other:?}"),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        let memory = self.instance.get_memory(&mut *self.store, name).expect("wizer exports every memory");
        contents(memory.data(&self.store));
    }
}

fn boot(wasm: &[u8]) -> Outcome<Vec<u8>> {
    let mut config = Config::new();
    config.cranelift_opt_level(OptLevel::None);
    config.async_stack_size(64 << 20);
    config.max_wasm_stack(32 << 20);
    let engine = Engine::new(&config)?;
    let mut wizer = Wizer::new();
    wizer.init_func("esp_boot");
    let (context, instrumented) = wizer.instrument(wasm)?;
    let module = Module::new(&engine, &instrumented)?;
    let mut linker = Linker::<()>::new(&engine);
    for import in module.imports() {
        if import.module() != "espalier" {
            return Err(format!("the guest imports `{}` from `{}`", import.name(), import.module()).into());
        }
    }
    linker.func_wrap("espalier", "abort", |mut caller: Caller<'_, ()>, kind: i32, pointer: u32, length: u32| {
        let memory = caller.get_export("memory").and_then(wasmtime::Extern::into_memory);
        let text = memory.and_then(|memory| {
            let start = pointer as usize;
            memory.data(caller.as_context_mut()).get(start..start + length as usize).map(<[u8]>::to_vec)
        });
        eprintln!("the guest aborts ({kind}): {}", String::from_utf8_lossy(&text.unwrap_or_default()));
    })?;
    linker.define_unknown_imports_as_traps(&module)?;
    let mut store = Store::new(&engine, ());
    let snapshot = pollster::block_on(async {
        let instance = linker.instantiate_async(&mut store, &module).await?;
        let boot = instance.get_typed_func::<(), ()>(&mut store, "esp_boot")?;
        boot.call_async(&mut store, ()).await?;
        wizer.snapshot(&context, &mut State { store: &mut store, instance }).await
    })?;
    Ok(snapshot)
}

/// Moves data segments to the image section and drops what only debuggers read.
fn pack(wasm: &[u8], hash: &str) -> Outcome<Vec<u8>> {
    let mut module = Encoder::new();
    let mut image: Vec<(usize, Vec<u8>)> = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::DataCountSection { .. } | Payload::CustomSection(_) => {}
            Payload::DataSection(section) => {
                for data in section.clone() {
                    let data = data?;
                    // What was applied at the start is left behind as an empty segment.
                    if matches!(data.kind, DataKind::Passive) && data.data.is_empty() {
                        continue;
                    }
                    let DataKind::Active { memory_index: 0, offset_expr } = data.kind else {
                        return Err("the guest has a data segment that is not active in memory 0".into());
                    };
                    let Operator::I32Const { value } = offset_expr.get_operators_reader().read()? else {
                        return Err("the guest has a data segment at a place that is not constant".into());
                    };
                    image.push((value as u32 as usize, data.data.to_vec()));
                }
            }
            other => {
                if let Some((id, range)) = other.as_section() {
                    module.section(&RawSection { id, data: &wasm[range] });
                }
            }
        }
    }
    image.sort_by_key(|(offset, _)| *offset);
    let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
    for (offset, bytes) in image {
        match runs.last_mut() {
            Some((start, run)) if offset <= *start + run.len() + MAX_GAP => {
                run.resize(offset - *start, 0);
                run.extend_from_slice(&bytes);
            }
            _ => runs.push((offset, bytes)),
        }
    }
    let mut section = Vec::new();
    for (offset, bytes) in &runs {
        section.extend_from_slice(&u32::try_from(*offset)?.to_le_bytes());
        section.extend_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
        section.extend_from_slice(bytes);
    }
    module.section(&CustomSection { name: "espalier.image".into(), data: section.as_slice().into() });
    module.section(&CustomSection { name: "espalier.source".into(), data: hash.as_bytes().into() });
    Ok(module.finish())
}
