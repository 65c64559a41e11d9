#!/usr/bin/env python3
"""Synthetic checkpoints of draft heads in every published spelling, and what must become of them.

    tests/convert/checkpoints.py TARGET.gguf FOLDER

writes a checkpoint of each kind for that target into FOLDER/KIND and prints a line for each: the kind, the converter and
its options, between tabs. Values are random and exact in 16-bit floats.
"""

import json
import math
import pathlib
import sys

import gguf
import numpy as np

from writing import BF16, write_config, write_safetensors, write_torch

KINDS = {}


def kind(converter, *options):
    """Registers a maker of a checkpoint under its name."""
    def register(make):
        KINDS[make.__name__.replace("_", "-")] = (make, converter, options)
        return make

    return register


class Facts:
    """What makers of checkpoints know about a target, and a source of values."""

    def __init__(self, path, seed=1):
        reader = gguf.GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
        self.hidden = reader.fields[f"{arch}.embedding_length"].contents()
        self.layers = reader.fields[f"{arch}.block_count"].contents()
        self.vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
        self.tables = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors
                       if t.name in ("token_embd.weight", "output.weight")}
        self.random = np.random.default_rng(seed)

    def matrix(self, *shape):
        """Values that F16 and BF16 hold exactly: 7 bits of mantissa."""
        return (self.random.integers(-127, 128, shape) / 1024).astype(np.float32)

    def norm(self, width):
        return (1 + self.random.integers(-32, 33, width) / 64).astype(np.float32)

    def ids(self, count):
        return np.sort(self.random.choice(self.vocab, count, replace=False)).astype(np.int64)


# Medusa: each maker returns the tensors that the sidecar must hold, and its keys.


def medusa(facts, heads=3, layers=1, bias=True, rows=None):
    """Blocks and outputs by their names in a sidecar."""
    width, held = facts.hidden, {}
    for head in range(heads):
        for layer in range(layers):
            held[f"medusa.{head}.res.{layer}.weight"] = facts.matrix(width, width)
            if bias:
                held[f"medusa.{head}.res.{layer}.bias"] = facts.matrix(width)
        if rows != 0:
            held[f"medusa.{head}.output.weight"] = facts.matrix(rows or facts.vocab, width)
    return held


def medusa_names(held, layers, prefix="", block="{head}.{layer}.linear.{part}", output="{head}.{layers}.weight"):
    """The same tensors under published names."""
    named = {}
    for name, values in held.items():
        parts = name.split(".")
        if parts[2] == "res":
            named[prefix + block.format(head=parts[1], layer=parts[3], part=parts[4])] = values
        else:
            named[prefix + output.format(head=parts[1], layers=layers)] = values
    return named


VLLM = {"block": "blocks.{head}.layers.{layer}.{part}", "output": "lm_heads.{head}.weight"}


def medusa_keys(heads, layers=1, shares=False):
    return {"medusa.head_count": heads, "medusa.layer_count": layers, "medusa.shares_output": shares}


@kind("convert_medusa.py", "--tree", "mc_sim_7b_63")
def medusa_pt(facts, folder):
    held = medusa(facts)
    write_torch(folder / "medusa_lm_head.pt", medusa_names(held, 1))
    write_config(folder, medusa_num_heads=2, medusa_num_layers=1, base_model_name_or_path="some/model")  # 2 is wrong
    return held, medusa_keys(3)


@kind("convert_medusa.py")
def medusa_one_head_bf16(facts, folder):
    held = medusa(facts, heads=1)
    write_torch(folder / "medusa_lm_head.pt", medusa_names(held, 1), BF16, wrap="state_dict", parameters=True)
    return held, medusa_keys(1)


@kind("convert_medusa.py")
def medusa_blocks_share_storage(facts, folder):
    held = medusa(facts, heads=2, layers=2)
    for head in range(2):
        for part in ("weight", "bias"):
            held[f"medusa.{head}.res.1.{part}"] = held[f"medusa.{head}.res.0.{part}"]
    write_torch(folder / "medusa_lm_head.pt", medusa_names(held, 2))
    write_config(folder, medusa_num_heads=2, medusa_num_layers=2)
    return held, medusa_keys(2, 2)


@kind("convert_medusa.py")
def medusa_blocks_are_there_once(facts, folder):
    held = medusa(facts, heads=2, layers=2)
    named = medusa_names(held, 2)
    for head in range(2):
        for part in ("weight", "bias"):
            held[f"medusa.{head}.res.1.{part}"] = held[f"medusa.{head}.res.0.{part}"]
            del named[f"{head}.1.linear.{part}"]
    write_safetensors(folder / "medusa_lm_head.safetensors", named)
    write_config(folder, medusa_num_heads=2, medusa_num_layers=2)
    return held, medusa_keys(2, 2)


@kind("convert_medusa.py")
def medusa_full_model(facts, folder):
    held = medusa(facts, heads=2, layers=2)
    rest = {"model.norm.weight": facts.norm(facts.hidden), "lm_head.weight": facts.matrix(facts.vocab, facts.hidden),
            "model.layers.0.mlp.up_proj.weight": facts.matrix(8, facts.hidden)}
    named = list(medusa_names(held, 2, "medusa_head.").items())
    shards = {"model-1.safetensors": {**rest, **dict(named[:4])}, "model-2.safetensors": dict(named[4:])}
    for file, tensors in shards.items():
        write_safetensors(folder / file, tensors, BF16)
    index = {"metadata": {}, "weight_map": {name: file for file, tensors in shards.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_config(folder, medusa_num_heads=2, medusa_num_layers=2, num_hidden_layers=32, hidden_size=facts.hidden)
    return held, medusa_keys(2, 2)


@kind("convert_medusa.py")
def medusa_legacy(facts, folder):
    held = medusa(facts, heads=4, rows=0)
    write_torch(folder / "medusa_lm_head.pt", medusa_names(held, 1), "F32")
    write_config(folder, medusa_num_heads=4, medusa_num_layers=1)
    return held, medusa_keys(4, shares=True)


@kind("convert_medusa.py")
def medusa_padded(facts, folder):
    held = medusa(facts, heads=2)
    padded = {k: np.concatenate([v, facts.matrix(16, facts.hidden)]) if "output" in k else v for k, v in held.items()}
    write_safetensors(folder / "model.safetensors", medusa_names(padded, 1))
    return held, medusa_keys(2)


@kind("convert_medusa.py")
def medusa_short(facts, folder):
    held = medusa(facts, heads=2, rows=facts.vocab - 8)
    write_safetensors(folder / "model.safetensors", medusa_names(held, 1))
    held["d2t"] = np.arange(facts.vocab - 8)
    return held, {**medusa_keys(2), "spec.draft_vocab_size": facts.vocab - 8}


def vllm_config(folder, facts, heads, truncated, **more):
    write_config(folder, model_type="medusa", num_heads=heads, num_hidden_layers=1, hidden_size=facts.hidden,
                 vocab_size=facts.vocab, truncated_vocab_size=truncated, **more)


@kind("convert_medusa.py")
def medusa_vllm(facts, folder):
    held = medusa(facts, heads=2, bias=False)
    write_safetensors(folder / "model.safetensors", medusa_names(held, 1, **VLLM), BF16)
    vllm_config(folder, facts, 2, facts.vocab)
    return held, medusa_keys(2)


@kind("convert_medusa.py")
def medusa_vllm_reduced(facts, folder):
    held, ids = medusa(facts, heads=2, bias=False), facts.ids(96)
    named = medusa_names(held, 1, "medusa_heads.", **VLLM)
    facts.random.shuffle(ids)
    write_safetensors(folder / "model.safetensors", {**named, "token_map": ids}, BF16)
    vllm_config(folder, facts, 2, 96, medusa_fc_bias=False)
    held = {k: v[ids] if "output" in k else v for k, v in held.items()}
    return {**held, "d2t": ids}, {**medusa_keys(2), "spec.draft_vocab_size": 96}


@kind("convert_medusa.py")
def medusa_vllm_shared(facts, folder):
    held, ids, output = medusa(facts, heads=2, rows=0), facts.ids(64), facts.matrix(64, facts.hidden)
    named = medusa_names(held, 1, **VLLM)
    write_torch(folder / "pytorch_model.bin", {**named, "lm_head.weight": output, "token_map": ids})
    vllm_config(folder, facts, 2, 64, original_lm_head=True, medusa_fc_bias=True)
    return {**held, "output.weight": output, "d2t": ids}, {**medusa_keys(2, shares=True), "spec.draft_vocab_size": 64}


@kind("convert_medusa.py")
def medusa_vllm_target(facts, folder):
    held = medusa(facts, heads=2, rows=0, bias=False)
    named = medusa_names(held, 1, **VLLM)
    own = facts.tables.get("output.weight", facts.tables["token_embd.weight"])
    write_safetensors(folder / "model.safetensors", {**named, "lm_heads.0.weight": own, "lm_heads.1.weight": own}, BF16)
    vllm_config(folder, facts, 2, facts.vocab, original_lm_head=True)
    return held, medusa_keys(2, shares=True)


# EAGLE. A layer is made under published names; what it becomes is worked out row by row.

HEADS, KV_HEADS, HEAD_WIDTH, FEED_FORWARD = 4, 2, 32, 96
PROJECTIONS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
               "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
                "ffn_down": "mlp.down_proj"}


def neighbours(values, heads):
    """Rows of queries or keys with each pair that turns together side by side."""
    turned, width = np.empty_like(values), len(values) // heads
    for head in range(heads):
        for pair in range(width // 2):
            turned[head * width + 2 * pair] = values[head * width + pair]
            turned[head * width + 2 * pair + 1] = values[head * width + width // 2 + pair]
    return turned


def layer(facts, width, inputs, biases=()):
    """A layer under published names without its prefix, and under those of a sidecar."""
    queries, keys = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    shapes = {"attn_q": (queries, inputs), "attn_k": (keys, inputs), "attn_v": (keys, inputs), "attn_output": (width, queries),
              "ffn_gate": (FEED_FORWARD, width), "ffn_up": (FEED_FORWARD, width), "ffn_down": (width, FEED_FORWARD)}
    named, held = {}, {}
    for name, shape in shapes.items():
        for part in ("weight", "bias"):
            if part == "weight" or name in biases:
                values = facts.matrix(*(shape if part == "weight" else shape[:1]))
                named[f"{PROJECTIONS[name]}.{part}"] = values
                turns = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name)
                held[f"blk.0.{name}.{part}"] = neighbours(values, turns) if turns else values
    named["post_attention_layernorm.weight"] = held["blk.0.ffn_norm.weight"] = facts.norm(width)
    return named, held


def eagle(facts, biases=(), bias=True):
    """An EAGLE-1 head: tensors of the layer, others, and what they become."""
    named, held = layer(facts, facts.hidden, facts.hidden, biases)
    others = {"fc.weight": facts.matrix(facts.hidden, 2 * facts.hidden)}
    if bias:
        others["fc.bias"] = facts.matrix(facts.hidden)
    return named, others, {**held, **others}


def prefixed(prefix, tensors):
    return {prefix + name: values for name, values in tensors.items()}


def layer_config(width, **more):
    return {"hidden_size": width, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_WIDTH,
            "intermediate_size": FEED_FORWARD, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "max_position_embeddings": 4096, "rope_theta": 500000.0, **more}


def eagle_keys(kind, width, **more):
    return {f"{kind}.block_count": 1, f"{kind}.embedding_length": width, f"{kind}.feed_forward_length": FEED_FORWARD,
            f"{kind}.attention.head_count": HEADS, f"{kind}.attention.head_count_kv": KV_HEADS,
            f"{kind}.attention.key_length": HEAD_WIDTH, f"{kind}.rope.dimension_count": HEAD_WIDTH,
            f"{kind}.rope.freq_base": 500000.0, f"{kind}.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
            f"{kind}.context_length": 4096, **{f"{kind}.{k}": v for k, v in more.items()}}


@kind("convert_eagle.py")
def eagle_bin(facts, folder):
    """EAGLE-1 as published: a bias of fc, and the target's own embeddings beside it."""
    named, others, held = eagle(facts)
    table = {"embed_tokens.weight": facts.tables["token_embd.weight"] + facts.matrix(facts.vocab, facts.hidden) / 4096}
    write_torch(folder / "pytorch_model.bin", {**table, **others, **prefixed("layers.0.", named)}, "F32")
    write_config(folder, **layer_config(facts.hidden, vocab_size=facts.vocab))
    return held, eagle_keys("eagle", facts.hidden)


@kind("convert_eagle.py")
def eagle_no_bias(facts, folder):
    """A Qwen-like head: no bias of fc, biases of queries, keys and values, and buffers that old files have."""
    named, others, held = eagle(facts, ("attn_q", "attn_k", "attn_v", "attn_output"), bias=False)
    named["self_attn.rotary_emb.inv_freq"] = facts.matrix(HEAD_WIDTH // 2)
    write_safetensors(folder / "model.safetensors", prefixed("model.", {**others, **prefixed("layers.0.", named)}), BF16)
    write_config(folder, **layer_config(facts.hidden, bias=False, vocab_size=facts.vocab + 16))
    return held, eagle_keys("eagle", facts.hidden)


@kind("convert_eagle.py")
def eagle_speculators(facts, folder):
    named, others, held = eagle(facts)
    others = {name.replace("fc.", "fusion_fc."): values for name, values in others.items()}
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("transformer.", named)})
    write_config(folder, speculators_model_type="eagle", fusion_bias=True, architectures=["EagleSpeculator"],
                 transformer_layer_config=layer_config(facts.hidden, rope_theta=None, rope_parameters={"rope_theta": 500000.0}))
    return held, eagle_keys("eagle", facts.hidden)


@kind("convert_eagle.py")
def eagle_fused(facts, folder):
    """Fused projections, and tables of its own: embeddings with rows of padding, and a reduced head."""
    named, others, held = eagle(facts, ("attn_q", "attn_k", "attn_v"))
    for part in ("weight", "bias"):
        fused = [named.pop(f"self_attn.{x}_proj.{part}") for x in "qkv"]
        named[f"self_attn.qkv_proj.{part}"] = np.concatenate(fused)
    named["mlp.gate_up_proj.weight"] = np.concatenate([named.pop(f"mlp.{x}_proj.weight") for x in ("gate", "up")])
    ids = facts.ids(50)
    table, head = facts.matrix(facts.vocab + 16, facts.hidden), facts.matrix(50, facts.hidden)
    tables = {"embed_tokens.weight": table, "lm_head.weight": head, "d2t": ids - np.arange(50)}
    write_torch(folder / "pytorch_model.bin", {**others, **prefixed("layers.0.", named), **tables}, wrap="model")
    write_config(folder, **layer_config(facts.hidden))
    held = {**held, "token_embd.weight": table[:facts.vocab], "output.weight": head, "d2t": ids}
    return held, {**eagle_keys("eagle", facts.hidden), "spec.draft_vocab_size": 50}


def taps(facts):
    """Three layers that any target has."""
    return [0, facts.layers // 2, facts.layers - 1]


def eagle3(facts, width=None):
    width = width or facts.hidden
    named, held = layer(facts, width, 2 * width)
    for source, name in (("input_layernorm", "attn_norm"), ("hidden_norm", "attn_norm_2")):
        named[f"{source}.weight"] = held[f"blk.0.{name}.weight"] = facts.norm(width)
    others = {"fc.weight": facts.matrix(width, 3 * facts.hidden), "norm.weight": facts.norm(width)}
    return named, others, {**held, "fc.weight": others["fc.weight"], "output_norm.weight": others["norm.weight"]}


def eagle3_keys(facts, width=None, draft=None, **more):
    keys = eagle_keys("eagle3", width or facts.hidden, target_layers=taps(facts), target_hidden_size=facts.hidden,
                      **{"norm_before_residual": False, **more})
    return {**keys, "spec.draft_vocab_size": draft} if draft else keys


def reduced(facts, count=96):
    """A head of its own vocabulary: tensors as published, and as stored."""
    ids, head = facts.ids(count), facts.matrix(count, facts.hidden)
    marks = np.isin(np.arange(facts.vocab), ids)
    named = {"lm_head.weight": head, "d2t": ids - np.arange(count), "t2d": marks}
    return named, {"output.weight": head, "d2t": ids}


def eagle3_config(facts, width=None, **more):
    return layer_config(width or facts.hidden, vocab_size=facts.vocab, eagle_aux_hidden_state_layer_ids=taps(facts), **more)


@kind("convert_eagle.py")
def eagle3_midlayer(facts, folder):
    named, others, held = eagle3(facts)
    head, stored = reduced(facts)
    write_torch(folder / "pytorch_model.bin", {**others, **prefixed("midlayer.", named), **head}, BF16)
    write_config(folder, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=96, **eagle3_config(facts))
    return {**held, **stored}, eagle3_keys(facts, draft=96)


@kind("convert_eagle.py")
def eagle3_speculators(facts, folder):
    named, others, held = eagle3(facts)
    head, stored = reduced(facts)
    more = {"embed_tokens.weight": facts.tables["token_embd.weight"], "verifier_norm.weight": facts.norm(facts.hidden)}
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("layers.0.", named), **head, **more}, BF16)
    config = eagle3_config(facts)
    del config["eagle_aux_hidden_state_layer_ids"]
    write_config(folder, architectures=["Eagle3Speculator"], speculators_model_type="eagle3", draft_vocab_size=96,
                 norm_before_residual=True, target_hidden_size=None, transformer_layer_config=config,
                 eagle_aux_hidden_state_layer_ids=taps(facts))
    return {**held, **stored}, eagle3_keys(facts, draft=96, norm_before_residual=True)


@kind("convert_eagle.py")
def eagle3_ids(facts, folder):
    """d2t holds ids already."""
    named, others, held = eagle3(facts)
    head, stored = reduced(facts)
    head["d2t"] = stored["d2t"]
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("midlayer.", named), **head})
    write_config(folder, draft_vocab_size=96, **eagle3_config(facts))
    return {**held, **stored}, eagle3_keys(facts, draft=96)


@kind("convert_eagle.py")
def eagle3_narrow(facts, folder):
    """A head of another width than the target's, with embeddings of its own."""
    width = facts.hidden // 2
    named, others, held = eagle3(facts, width)
    table, head = facts.matrix(facts.vocab, width), facts.matrix(facts.vocab, width)
    tables = {"embed_tokens.weight": table, "lm_head.weight": head}
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("midlayer.", named), **tables})
    write_config(folder, target_hidden_size=facts.hidden, **eagle3_config(facts, width))
    return {**held, "token_embd.weight": table, "output.weight": head}, eagle3_keys(facts, width)


@kind("convert_eagle.py")
def eagle3_full_vocabulary(facts, folder):
    """Every token has a row, and some rows are padding; d2t says nothing. Taps come the nested way, RoPE as Llama 3's."""
    named, others, held = eagle3(facts)
    head = facts.matrix(facts.vocab + 16, facts.hidden)
    tables = {"lm_head.weight": head, "d2t": np.zeros(facts.vocab, np.int64)}
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("midlayer.", named), **tables}, BF16)
    config = eagle3_config(facts)
    del config["eagle_aux_hidden_state_layer_ids"]
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    write_config(folder, draft_vocab_size=None, rope_scaling=scaling, **config,
                 eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": taps(facts)})
    factors = []
    for pair in range(HEAD_WIDTH // 2):
        wave = 2 * math.pi * 500000.0 ** (2 * pair / HEAD_WIDTH)
        smooth = (8192 / wave - 1) / 3
        factors.append(1 if wave < 8192 / 4 else 8 if wave > 8192 else 1 / ((1 - smooth) / 8 + smooth))
    held = {**held, "output.weight": head[:facts.vocab], "rope_freqs.weight": np.array(factors, np.float32)}
    return held, eagle3_keys(facts)


@kind("convert_eagle.py")
def eagle3_rows_of_all_tokens(facts, folder):
    """A reduced vocabulary, but the head still has a row for every token; linear RoPE."""
    named, others, held = eagle3(facts)
    head, stored = reduced(facts)
    rows = facts.matrix(facts.vocab, facts.hidden)
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("midlayer.", named), **head, "lm_head.weight": rows})
    write_config(folder, draft_vocab_size=96, rope_scaling={"type": "linear", "factor": 4.0}, **eagle3_config(facts))
    stored["output.weight"] = rows[stored["d2t"]]
    return {**held, **stored, "rope_freqs.weight": np.full(HEAD_WIDTH // 2, 4, np.float32)}, eagle3_keys(facts, draft=96)


@kind("convert_eagle.py")
def eagle3_padded_head(facts, folder):
    named, others, held = eagle3(facts)
    head, stored = reduced(facts)
    head["lm_head.weight"] = np.concatenate([head["lm_head.weight"], facts.matrix(16, facts.hidden)])
    write_safetensors(folder / "model.safetensors", {**others, **prefixed("midlayer.", named), **head})
    write_config(folder, draft_vocab_size=96, **eagle3_config(facts))
    return {**held, **stored}, eagle3_keys(facts, draft=96)


def make(name, facts, folder):
    """Writes a checkpoint of a kind; returns the tensors and keys of its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    return KINDS[name][0](facts, folder)


if __name__ == "__main__":
    target, folder = map(pathlib.Path, sys.argv[1:])
    for name, (_, converter, options) in KINDS.items():
        make(name, Facts(target), folder / name)
        print(name, converter, *options, sep="\t")
