//! The architectures, one row of flags each.
//!
//! Biases, q/k norms, post norms, fused products and tied heads are not flags: a file has the tensors or it has not.
//! A row only names those its architecture cannot do without, so that a file that lost some is refused.

use crate::backend::{Activation, Pairing};

/// Which layers attend through the sliding window that the metadata (or the row) gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None, whatever the metadata says.
    Never,
    /// Every layer.
    Always,
    /// All but every n-th (the n-th, the 2n-th, ...), which sees everything.
    AllButEvery(usize),
}

/// What sets an architecture apart.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`, which is also the prefix of its metadata keys.
    pub name: &'static str,
    /// Which elements of a head rotate together.
    pub pairing: Pairing,
    /// Non-linearity of the gate.
    pub activation: Activation,
    /// Embedding rows are multiplied by sqrt(D).
    pub scaled_embedding: bool,
    /// Soft cap on attention scores where the metadata is silent.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits where the metadata is silent.
    pub final_softcap: Option<f32>,
    /// Which layers the window applies to.
    pub windows: Windows,
    /// Width of the window where the metadata is silent.
    pub window: Option<usize>,
    /// Windowed layers rotate by this base, unscaled, where the metadata is silent; `None`: like all others.
    pub local_rope_base: Option<f64>,
    /// A model of this many layers (its largest size) scales scores by 1/sqrt(D/H) in place of 1/sqrt(K).
    pub wide_scale_layers: Option<usize>,
    /// Tensors of a layer, optional elsewhere, that this architecture must have.
    pub needs: &'static [&'static str],
}

/// The plainest of them, for the others to differ from.
const LLAMA: Arch = Arch {
    name: "llama",
    pairing: Pairing::Adjacent,
    activation: Activation::Silu,
    scaled_embedding: false,
    attention_softcap: None,
    final_softcap: None,
    windows: Windows::Always,
    window: None,
    local_rope_base: None,
    wide_scale_layers: None,
    needs: &[],
};

/// All architectures.
pub static ARCHS: &[Arch] = &[
    LLAMA,
    Arch {
        name: "qwen2",
        pairing: Pairing::Halves,
        // The metadata may carry a window that the model was not trained with.
        windows: Windows::Never,
        needs: &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
        ..LLAMA
    },
    Arch {
        name: "qwen3",
        pairing: Pairing::Halves,
        windows: Windows::Never,
        needs: &["attn_q_norm.weight", "attn_k_norm.weight"],
        ..LLAMA
    },
    Arch {
        name: "gemma2",
        pairing: Pairing::Halves,
        activation: Activation::GeluTanh,
        scaled_embedding: true,
        attention_softcap: Some(50.0),
        final_softcap: Some(30.0),
        windows: Windows::AllButEvery(2),
        window: Some(4096),
        wide_scale_layers: Some(46),
        needs: &["post_attention_norm.weight", "post_ffw_norm.weight"],
        ..LLAMA
    },
    Arch {
        name: "gemma3",
        pairing: Pairing::Halves,
        activation: Activation::GeluTanh,
        scaled_embedding: true,
        windows: Windows::AllButEvery(6),
        local_rope_base: Some(10_000.0),
        wide_scale_layers: Some(62),
        needs: &["attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"],
        ..LLAMA
    },
    Arch { name: "phi3", pairing: Pairing::Halves, ..LLAMA },
];

/// `general.architecture` of files that hold heads which draft for a model, and the kind of drafter that reads them.
pub const SIDECARS: &[(&str, &str)] = &[("medusa", "medusa"), ("eagle", "eagle"), ("eagle3", "eagle")];

/// The row of `name`.
pub fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|a| a.name == name)
}

/// All names, for messages.
pub fn supported() -> String {
    ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(" ")
}

impl Windows {
    /// Whether `layer` is one of them.
    pub fn covers(self, layer: usize) -> bool {
        match self {
            Windows::Never => false,
            Windows::Always => true,
            Windows::AllButEvery(n) => layer % n != n - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_what_they_say() {
        let table: &[(Windows, &[bool])] = &[
            (Windows::Never, &[false, false, false]),
            (Windows::Always, &[true, true, true]),
            (Windows::AllButEvery(2), &[true, false, true, false]),
            (Windows::AllButEvery(6), &[true, true, true, true, true, false, true]),
        ];
        for (windows, want) in table {
            let got: Vec<bool> = (0..want.len()).map(|i| windows.covers(i)).collect();
            assert_eq!(&got, want, "{windows:?}");
        }
    }

    #[test]
    fn names_are_unique() {
        for (i, a) in ARCHS.iter().enumerate() {
            assert!(ARCHS[..i].iter().all(|b| b.name != a.name), "{}", a.name);
            assert!(std::ptr::eq(find(a.name).unwrap(), a));
        }
        assert!(find("mamba").is_none());
    }
}
