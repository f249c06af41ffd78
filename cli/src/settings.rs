//! TOML files with `key.path=value` overrides, and where the per-user cache is.

use std::path::PathBuf;

/// `$ESPALIER_CACHE`, else `$XDG_CACHE_HOME/espalier`, else `~/.cache/espalier`; `None` without a home.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("ESPALIER_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("espalier")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/espalier")))
}
