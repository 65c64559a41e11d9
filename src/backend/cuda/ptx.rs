//! The kernels' PTX, as `scripts/ptx` makes it of `cuda/*.cu`.

macro_rules! modules {
    ($($name:literal)*) => {
        /// Modules by name; each text ends with a NUL, as the driver wants it.
        const MODULES: &[(&str, &str)] =
            &[$(($name, concat!(include_str!(concat!("../../../cuda/ptx/", $name, ".ptx")), "\0"))),*];
    };
}

modules! {
    "f32" "f16" "bf16"
    "q4_0" "q4_1" "q5_0" "q5_1" "q8_0" "iq4_nl" "mxfp4"
    "q2_k" "q3_k" "q4_k" "q5_k" "q6_k" "iq4_xs"
    "ops" "cache" "attend" "sample"
}

/// A module's text.
pub fn text(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
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
            assert!(text.ends_with('\0') && !text[..text.len() - 1].contains('\0'), "{name}");
        }
    }
}
