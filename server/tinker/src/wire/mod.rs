//! JSON requests. Reading one names the field that is wrong, as in `` `sampling_params.top_p`: ... ``.
//!
//! Fields that the server does not know are ignored at the top of a request (a newer SDK may send more), and refused where
//! ignoring them would change what is computed: sampling parameters, the optimiser's, the adapter's.

pub mod sampling;
pub mod session;
pub mod training;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ApiError;

/// A request that can be wrong beyond its types.
pub trait Checked: DeserializeOwned {
    /// What is wrong, the field first.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Reads a request.
pub fn read<T: Checked>(bytes: &[u8]) -> Result<T, ApiError> {
    // Serde would also read an object from a list of its values.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| *first != b'{') {
        return Err(ApiError::bad_request("the body: expected a JSON object"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let request: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner();
        match path.as_str() {
            _ if reason.is_syntax() || reason.is_eof() => {
                ApiError::bad_request(format!("the body is not valid JSON: {reason}"))
            }
            "." => ApiError::bad_request(format!("the body: {reason}")),
            path => ApiError::bad_request(format!("`{path}`: {reason}")),
        }
    })?;
    deserializer.end().map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))?;
    request.check().map_err(ApiError::bad_request)?;
    Ok(request)
}

/// `found`, unless it is a number out of bounds.
fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    expected: &str,
    inside: bool,
    found: T,
) -> Result<(), String> {
    if inside { Ok(()) } else { Err(format!("`{field}`: expected {expected}, got {found}")) }
}

/// The one form of a request that is stored and compared.
pub(crate) fn canonical<T: Serialize>(request: &T) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(request).map_err(|error| ApiError::internal(format!("a request cannot be written: {error}")))
}
