//! Compiled code on disk.

use std::os::unix::fs::PermissionsExt;

use espalier_sandbox::{LoadOptions, ModuleOrigin, ReplOptions, Sandbox, SandboxError};

use crate::machine::Folder;
use crate::run;

#[tokio::test]
async fn compiled_code_is_kept_and_found_again() {
    let folder = Folder::new("kept");
    assert_eq!(folder.load().report().origin, ModuleOrigin::Compiled);
    assert_eq!(folder.load().report().origin, ModuleOrigin::Cached);
    let mode = folder.files("cwasm")[0].metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[tokio::test]
async fn damaged_code_is_never_run() {
    let folder = Folder::new("damaged");
    folder.load();
    for damage in ["flip", "cut", "no sum"] {
        let code = folder.files("cwasm").remove(0);
        let mut bytes = std::fs::read(&code).unwrap();
        match damage {
            "flip" => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&code, bytes).unwrap();
            }
            "cut" => std::fs::write(&code, &bytes[..100]).unwrap(),
            _ => std::fs::remove_file(folder.files("sha256").remove(0)).unwrap(),
        }
        let sandbox = folder.load();
        assert!(matches!(sandbox.report().origin, ModuleOrigin::Rebuilt(_)), "{damage}");
        let mut repl = sandbox.repl(ReplOptions::default()).await.unwrap();
        assert_eq!(run(&mut repl, "i").await.stdout.text, "B");
        assert_eq!(folder.load().report().origin, ModuleOrigin::Cached, "{damage}");
    }
}

#[tokio::test]
async fn code_that_others_could_have_written_is_not_run() {
    let folder = Folder::new("open");
    folder.load();
    let code = folder.files("cwasm").remove(0);
    std::fs::set_permissions(&code, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(folder.load().report().origin, ModuleOrigin::Rebuilt(_)));
    let guest = code.parent().unwrap();
    std::fs::set_permissions(guest, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(folder.load().report().origin, ModuleOrigin::Uncached(_)));
}

#[test]
fn one_compiles_and_the_others_wait_for_it() {
    let folder = Folder::new("lock");
    let origins: Vec<_> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4).map(|_| scope.spawn(|| folder.load().report().origin.clone())).collect();
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    assert_eq!(origins.iter().filter(|origin| **origin == ModuleOrigin::Compiled).count(), 1, "{origins:?}");
    assert_eq!(origins.iter().filter(|origin| **origin == ModuleOrigin::Cached).count(), 3, "{origins:?}");
}

#[test]
fn what_is_no_interpreter_is_refused() {
    for artifact in [Vec::new(), b"not compressed".to_vec(), include_bytes!("main.rs").to_vec()] {
        let options = LoadOptions { artifact: Some(artifact), ..LoadOptions::default() };
        assert!(matches!(Sandbox::load(options), Err(SandboxError::Load(_))));
    }
}
