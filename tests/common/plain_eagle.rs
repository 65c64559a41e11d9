//! EAGLE as plain loops in f64: the layer over a list of pairs, and the tree of EAGLE-2 over it. Slow, and short enough to
//! be read as the definition.

use super::gguf_writer::{Value, Writer};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::model::{Input, Model, Rows};
use foretoken::spec::eagle::Growth;
use foretoken::tree::Token;
use std::collections::HashMap;
use std::sync::Arc;

/// A matrix or a vector: columns and values.
type Tensor = (usize, Vec<f64>);

/// A head and what it borrows of its target.
pub struct Plain {
    tensors: HashMap<String, Tensor>,
    third: bool,
    normed: bool,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    ids: Option<Vec<Token>>,
    taps: Vec<usize>,
}

/// Keys and values of pairs.
type Cache = Vec<(Vec<f64>, Vec<f64>)>;

fn tensors(w: &Writer) -> HashMap<String, Tensor> {
    let f32s = w.tensors.iter().filter(|t| t.ty == 0);
    f32s.map(|t| {
        let values = t.bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x).into()).collect();
        (String::from_utf8(t.name.clone()).unwrap(), (t.dims[0] as usize, values))
    })
    .collect()
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(v, w)| v * w / (mean + 1e-5).sqrt()).collect()
}

fn add(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

impl Plain {
    /// Both files in F32.
    pub fn new(head: &Writer, target: &Writer) -> Plain {
        let key = |name: &str| {
            let found = head.keys.iter().find(|(key, _)| key.ends_with(name.as_bytes()));
            found.map(|(_, value)| value.clone())
        };
        let number = |name: &str| match key(name) {
            Some(Value::U32(n)) => n as usize,
            other => panic!("{name} is {other:?}"),
        };
        let mut tensors_of = tensors(target);
        tensors_of.retain(|name, _| ["token_embd.weight", "output.weight"].contains(&name.as_str()));
        tensors_of.extend(tensors(head));
        let d2t = head.tensors.iter().find(|t| t.name == b"d2t");
        let id = |x: &[u8; 8]| i64::from_le_bytes(*x) as Token;
        Plain {
            tensors: tensors_of,
            third: matches!(key("general.architecture"), Some(Value::Str(arch)) if arch == "eagle3"),
            normed: matches!(key("norm_before_residual"), Some(Value::Bool(true))),
            heads: number("attention.head_count"),
            kv_heads: number("attention.head_count_kv"),
            head_width: number("attention.key_length"),
            ids: d2t.map(|t| t.bytes.as_chunks().0.iter().map(id).collect()),
            taps: match key("target_layers") {
                Some(Value::I32s(taps)) => taps.into_iter().map(|tap| tap as usize).collect(),
                _ => vec![],
            },
        }
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (cols, values) = &self.tensors[&format!("{name}.weight")];
        assert_eq!(*cols, x.len(), "{name}");
        let y: Vec<f64> = values.chunks(*cols).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        self.tensors.get(&format!("{name}.bias")).map_or(y.clone(), |(_, bias)| add(&y, bias))
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        norm(x, &self.tensors[&format!("{name}.weight")].1)
    }

    /// Turns neighbours of each head.
    fn turn(&self, x: &mut [f64], position: usize) {
        for head in x.chunks_mut(self.head_width) {
            for i in 0..self.head_width / 2 {
                let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / self.head_width as f64);
                let (a, b) = (head[2 * i], head[2 * i + 1]);
                (head[2 * i], head[2 * i + 1]) = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
            }
        }
    }

    /// The feature that comes after the pairs of `cache` and one more.
    fn pair(&self, cache: &mut Cache, token: Token, feature: &[f64]) -> Vec<f64> {
        let (d, embeddings) = &self.tensors["token_embd.weight"];
        let token = &embeddings[token as usize * d..(token as usize + 1) * d];
        let (input, base) = if self.third {
            let (token, normed) = (self.norm("blk.0.attn_norm", token), self.norm("blk.0.attn_norm_2", feature));
            ([&token[..], &normed].concat(), if self.normed { normed } else { feature.to_vec() })
        } else {
            let fused = self.product("fc", &[token, feature].concat());
            (fused.clone(), fused)
        };
        let [mut q, mut k, v] = ["q", "k", "v"].map(|part| self.product(&format!("blk.0.attn_{part}"), &input));
        self.turn(&mut q, cache.len());
        self.turn(&mut k, cache.len());
        cache.push((k, v));
        let mut mixed = vec![];
        for (h, q) in q.chunks(self.head_width).enumerate() {
            let at = h / (self.heads / self.kv_heads) * self.head_width;
            let part = |x: &Vec<f64>| x[at..at + self.head_width].to_vec();
            let dot = |k: Vec<f64>| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
            let weights: Vec<f64> =
                cache.iter().map(|(k, _)| (dot(part(k)) / (self.head_width as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; self.head_width];
            for ((_, v), w) in cache.iter().zip(&weights) {
                sum.iter_mut().zip(part(v)).for_each(|(sum, v)| *sum += w / total * v);
            }
            mixed.append(&mut sum);
        }
        let x = add(&base, &self.product("blk.0.attn_output", &mixed));
        let h = self.norm("blk.0.ffn_norm", &x);
        let (gate, up) = (self.product("blk.0.ffn_gate", &h), self.product("blk.0.ffn_up", &h));
        let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        add(&x, &self.product("blk.0.ffn_down", &gated))
    }

    /// The best tokens after a feature, with the logarithms of their shares of the best 64.
    fn best(&self, feature: &[f64], n: usize) -> Vec<(Token, f64)> {
        let normed = if self.third { self.norm("output_norm", feature) } else { feature.to_vec() };
        let logits = self.product("output", &normed);
        let id = |i: usize| self.ids.as_ref().map_or(i as Token, |ids| ids[i]);
        let mut all: Vec<(Token, f64)> = logits.into_iter().enumerate().map(|(i, x)| (id(i), x)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let total = all.iter().take(64).map(|(_, x)| (x - all[0].1).exp()).sum::<f64>().ln() + all[0].1;
        all.into_iter().take(n).map(|(token, x)| (token, x - total)).collect()
    }

    /// Paths of the tree after `text` and their scores.
    pub fn tree(
        &self,
        model: &Arc<Model<Cpu>>,
        text: &[Token],
        growth: Growth,
        nodes: usize,
    ) -> Vec<(Vec<Token>, f32)> {
        struct Guess {
            path: Vec<Token>,
            score: f64,
            cache: Cache,
            feature: Vec<f64>,
        }
        let mut state = model.state(text.len(), text.len(), KvType::F32).unwrap();
        state.tap(model, self.taps.iter().copied()).unwrap();
        model.forward(&mut state, Input::Chain(&text[..text.len() - 1]), Rows::None).unwrap();
        let (mut cache, mut feature) = (vec![], vec![]);
        for i in 0..text.len() - 1 {
            let row = |mat: &<Cpu as foretoken::backend::Backend>::Mat| -> Vec<f64> {
                mat.row(i).iter().map(|&x| x.into()).collect()
            };
            let mut shown = row(state.hidden());
            if self.third {
                let taps: Vec<Vec<f64>> = self.taps.iter().map(|&tap| row(state.tapped(tap).unwrap())).collect();
                shown = self.product("fc", &taps.concat());
            }
            // The row of a token goes with the token after it.
            feature = self.pair(&mut cache, text[i + 1], &shown);
        }
        let mut all: Vec<(Vec<Token>, f64)> = vec![];
        let mut frontier = vec![Guess { path: vec![], score: 0.0, cache, feature }];
        for _ in 0..growth.depth {
            let mut next = vec![];
            for guess in &frontier {
                for (token, score) in self.best(&guess.feature, growth.branch) {
                    let path = [&guess.path[..], &[token]].concat();
                    all.push((path.clone(), guess.score + score));
                    next.push((guess, path, guess.score + score, token));
                }
            }
            next.sort_by(|a, b| b.2.total_cmp(&a.2));
            next.truncate(growth.branch);
            let run = |(above, path, score, token): (&Guess, Vec<Token>, f64, Token)| {
                let mut cache = above.cache.clone();
                let feature = self.pair(&mut cache, token, &above.feature);
                Guess { path, score, cache, feature }
            };
            frontier = next.into_iter().map(run).collect();
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(nodes);
        all.into_iter().map(|(path, score)| (path, score as f32)).collect()
    }
}
