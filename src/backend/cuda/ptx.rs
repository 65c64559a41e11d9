//! The kernels' PTX, as `scripts/ptx` makes it of `cuda/*.cu`.

use flate2::read::GzDecoder;
use std::ffi::CString;
use std::io::Read;

macro_rules! modules {
    ($($name:literal)*) => {
        /// Modules by name, gzipped.
        const MODULES: &[(&str, &[u8])] = &[$(($name, include_bytes!(concat!("../../../cuda/ptx/", $name, ".ptx.gz")))),*];
    };
}

modules! {
    "f32" "f16" "bf16"
    "q4_0" "q4_1" "q5_0" "q5_1" "q8_0" "iq4_nl" "mxfp4"
    "q2_k" "q3_k" "q4_k" "q5_k" "q6_k" "iq4_xs"
    "ops" "cache" "attend" "sample"
}

/// A module's text.
pub fn text(name: &str) -> Option<CString> {
    let (_, packed) = MODULES.iter().find(|(known, _)| *known == name)?;
    let mut text = Vec::new();
    GzDecoder::new(*packed).read_to_end(&mut text).expect("a module that was packed by scripts/ptx");
    Some(CString::new(text).expect("text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_is_there() {
        let named: Vec<String> = super::super::kernels::modules().collect();
        assert_eq!(named.len(), MODULES.len());
        for name in named {
            let text = text(&name).unwrap_or_else(|| panic!("no module {name}"));
            assert!(text.to_str().unwrap().contains(".version 8.1"), "{name}");
        }
    }
}
