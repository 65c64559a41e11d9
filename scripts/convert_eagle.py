#!/usr/bin/env python3
"""Converts a checkpoint of an EAGLE-1, EAGLE-2 or EAGLE-3 head into a GGUF sidecar; needs Python 3.9 with gguf and numpy.

    scripts/convert_eagle.py CHECKPOINT --target TARGET.gguf -o HEAD.gguf [--type q4_0] [--d2t auto]

CHECKPOINT is a file (*.safetensors, or *.bin and *.pt of torch, which are read without running what is in them) with its
config.json beside it, or a folder of both. Which generation it is the tensors tell: EAGLE-3 has a `hidden_norm`. The layer
may be called `layers.0`, `midlayer` or `transformer`, projections may be fused (`qkv_proj`, `gate_up_proj`), and the
configuration may be nested the way of speculators (`transformer_layer_config`). Rows of queries and keys are put into the
order in which RoPE pairs neighbours. A table of the target's own embeddings or outputs is left out.

`d2t` is published as offsets (the id is d2t[i] + i) and stored as ids. Where a table could be either, `t2d` decides, and
without it a table that rises strictly is taken for ids; `--d2t` says it instead.
"""

import argparse
import math
import re

from heads.checkpoint import Checkpoint
from heads.sidecar import TYPES, Sidecar, Target, checked_ids, fault, fitted, padding, run
from heads.tensor import Refused, note

import numpy as np  # after heads, which says so if it is missing

LAYER = "layers.0."
NAMES = (
    (re.compile(r"(?:(?:module|model|draft_model)\.)+"), ""),
    (re.compile(r"midlayer\.|transformer\."), LAYER),
    (re.compile(r"fusion_fc\."), "fc."),
)
DROPPED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|verifier_.*", re.DOTALL)
SPELLINGS = (
    "fc, embed_tokens, lm_head, norm, d2t, t2d, and of one layer self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj,"
    " post_attention_layernorm and, in EAGLE-3, input_layernorm and hidden_norm"
)
VARIANTS = ("norm_before_fc", "norm_output", "fc_norm")


def canonical(name):
    if DROPPED.fullmatch(name):
        return None
    for pattern, text in NAMES:
        match = pattern.match(name)
        name = text + name[match.end() :] if match else name
    return name


def absolute_ids(d2t, t2d, target, meaning):
    """The target's ids that the rows of a reduced head stand for."""
    table = d2t.integers()
    if table.ndim != 1:
        d2t.expect(-1)
    offsets = table + np.arange(len(table))
    if meaning != "auto":
        return checked_ids(offsets if meaning == "offsets" else table, target, f"{d2t} as {meaning}")
    if fault(table, target.vocab):
        return checked_ids(offsets, target, f"{d2t} as offsets")
    if fault(offsets, target.vocab):
        note("d2t holds ids, not offsets")
        return table
    marked = np.flatnonzero(t2d.integers().reshape(-1)) if t2d else None
    if marked is not None and np.array_equal(np.sort(offsets), marked):
        return offsets
    if (marked is not None and np.array_equal(np.sort(table), marked)) or (marked is None and (np.diff(table) > 0).all()):
        note("d2t could hold ids or offsets and is taken for ids; --d2t offsets takes it for offsets")
        return table
    raise Refused(f"{d2t} could hold ids or offsets; --d2t says which")


class Rope:
    """How queries and keys turn with their position."""

    def __init__(self, config, width):
        self.config, self.base = config, config.number("rope_theta", 10000.0)
        if "partial_rotary_factor" in config and config.number("partial_rotary_factor") != 1:
            config.refuse("partial_rotary_factor", "1")
        self.factors = self.scaled(width)

    def scaled(self, width):
        """What each frequency is divided by, or None."""
        key = "rope_scaling" if self.config.values.get("rope_scaling") else "rope_parameters"
        scaling = self.config.values.get(key) or {}
        if not isinstance(scaling, dict):
            self.config.refuse(key, "an object")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        numbers = type(self.config)(f"{self.config.file}: {key}", scaling)
        if kind == "linear":
            return np.full(width // 2, numbers.number("factor"), np.float32)
        if kind == "llama3":
            return self.llama3(numbers, width)
        if kind != "default":
            self.config.refuse(key, "of type default, linear or llama3")
        return None

    def llama3(self, numbers, width):
        factor = numbers.number("factor", 8.0)
        low, high = numbers.number("low_freq_factor", 1.0), numbers.number("high_freq_factor", 4.0)
        context = numbers.number("original_max_position_embeddings", 8192)
        if low >= high:
            numbers.refuse("low_freq_factor", "less than high_freq_factor")
        turns = context * self.base ** -(np.arange(0, width, 2) / width) / (2 * math.pi)  # of each frequency within the context
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


class Layer:
    """The one layer of a head: its widths and its projections, split where they are fused."""

    def __init__(self, checkpoint, embedding, inputs):
        config = self.config = checkpoint.config
        self.checkpoint, self.embedding = checkpoint, embedding
        self.heads = config.integer("num_attention_heads", high=1 << 16)
        self.kv_heads = config.integer("num_key_value_heads", self.heads, high=1 << 16)
        self.width = config.integer("head_dim", embedding // self.heads, high=1 << 16)
        if self.width % 2:
            config.refuse("head_dim", f"even, but is {self.width}")
        if self.heads % self.kv_heads:
            config.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({self.heads})")
        if config.values.get("hidden_act", "silu") not in ("silu", "swish"):
            config.refuse("hidden_act", '"silu"')
        queries, keys = self.heads * self.width, self.kv_heads * self.width
        self.split("self_attn.qkv_proj", {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys})
        fused = checkpoint.tensors.get(LAYER + "mlp.gate_up_proj.weight")
        half = fused.shape[0] // 2 if fused and fused.shape else 0
        self.split("mlp.gate_up_proj", {"mlp.gate_proj": half, "mlp.up_proj": half})
        self.matrices = {
            "attn_q": self.turned(self.take("self_attn.q_proj.weight", queries, inputs), self.heads),
            "attn_k": self.turned(self.take("self_attn.k_proj.weight", keys, inputs), self.kv_heads),
            "attn_v": self.take("self_attn.v_proj.weight", keys, inputs),
            "attn_output": self.take("self_attn.o_proj.weight", embedding, queries),
            "ffn_gate": self.take("mlp.gate_proj.weight", -1, embedding),
        }
        self.hidden = self.matrices["ffn_gate"].shape[0]
        self.matrices["ffn_up"] = self.take("mlp.up_proj.weight", self.hidden, embedding)
        self.matrices["ffn_down"] = self.take("mlp.down_proj.weight", embedding, self.hidden)
        biases = {
            "attn_q": self.turned(self.take("self_attn.q_proj.bias", queries, optional=True), self.heads),
            "attn_k": self.turned(self.take("self_attn.k_proj.bias", keys, optional=True), self.kv_heads),
            "attn_v": self.take("self_attn.v_proj.bias", keys, optional=True),
            "attn_output": self.take("self_attn.o_proj.bias", embedding, optional=True),
        }
        self.biases = {name: bias for name, bias in biases.items() if bias}

    def split(self, fused, parts):
        """Gives the parts of a fused projection names of their own."""
        for suffix in (".weight", ".bias"):
            tensor = self.checkpoint.take(LAYER + fused + suffix, optional=True)
            if tensor is None:
                continue
            tensor.expect(sum(parts.values()), *([-1] if suffix == ".weight" else []))
            at = 0
            for name, rows in parts.items():
                self.checkpoint.tensors[LAYER + name + suffix] = tensor.rows(slice(at, at + rows))
                at += rows

    def take(self, name, *shape, optional=False):
        tensor = self.checkpoint.take(LAYER + name, optional)
        return tensor and tensor.expect(*shape)

    def turned(self, tensor, heads):
        """Rows of queries or keys in the order in which RoPE pairs neighbours: published ones pair the halves of a head."""
        if tensor is None:
            return None
        order = np.arange(tensor.shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
        return tensor.rows(order)


def table(tensor, target, embedding):
    """A checkpoint's own embeddings, or None if they are the target's."""
    if tensor is None:
        return None
    tensor.expect(-1, embedding)
    if target.has_copy(tensor, ("token_embd.weight",)):
        note(f"{tensor.name} is the target's own table and is left out")
        return None
    tensor, missing = fitted(tensor, target, None)
    if missing is not None:
        raise Refused(f"{tensor} has {tensor.shape[0]} rows, must have one for each of the target's {target.vocab} tokens")
    return tensor


def missing_width(target, embedding):
    return f"the target's own is {target.hidden} wide, must be {embedding}"


def check_config(config, target, embedding, third):
    """Refuses what the configuration says about another target, and variants that are not computed here."""
    if "hidden_size" in config and config.integer("hidden_size") != embedding:
        config.refuse("hidden_size", f"{embedding}, the rows of fc.weight")
    if "vocab_size" in config and abs(config.integer("vocab_size") - target.vocab) > padding(target.vocab):
        config.refuse("vocab_size", f"{target.vocab}, the tokens of {target.path}")
    if "logit_scale" in config and config.number("logit_scale") != 1:
        config.refuse("logit_scale", "1")
    if third:
        if "target_hidden_size" in config and config.integer("target_hidden_size") != target.hidden:
            config.refuse("target_hidden_size", f"{target.hidden}, the width of {target.path}")
        for key in VARIANTS:
            if key in config and config.values[key] is not False:
                config.refuse(key, "false: this variant of EAGLE-3 is not supported")
        if not config.flag("use_aux_hidden_state", True):
            config.refuse("use_aux_hidden_state", "true: a head without taps is not supported")


def taps(config, target):
    """The layers of the target whose inputs an EAGLE-3 head sees."""
    key, last = "eagle_aux_hidden_state_layer_ids", target.layers
    layers = config.values.get(key) or [2, target.layers // 2, target.layers - 3]
    whole = isinstance(layers, list) and len(layers) == 3 and all(type(v) is int and 0 <= v <= last for v in layers)
    if not whole or layers != sorted(layers):
        config.refuse(key, f"three rising layers of 0 to {last}: {target.path} has {target.layers}")
    return layers


def main():
    parser = argparse.ArgumentParser(description="Converts an EAGLE head into a GGUF sidecar.")
    parser.add_argument("checkpoint", help="file of safetensors or torch beside its config.json, or a folder of both")
    parser.add_argument("--target", required=True, help="GGUF file of the model that the head belongs to")
    parser.add_argument("-o", "--output", required=True, help="GGUF file to write")
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="format of the matrices (default q8_0)")
    parser.add_argument("--d2t", choices=("auto", "offsets", "ids"), default="auto", help="what d2t holds (default: found out)")
    options = parser.parse_args()

    target = Target(options.target)
    checkpoint = Checkpoint(options.checkpoint)
    config = checkpoint.config
    if not checkpoint.has_config:
        raise Refused(f"{config.file}: no such file; it says how many heads of attention there are")
    checkpoint.rename(canonical)
    third = LAYER + "hidden_norm.weight" in checkpoint.tensors
    fc = checkpoint.take("fc.weight").expect(-1, (3 if third else 2) * target.hidden)
    embedding = fc.shape[0]
    if not third:
        fc.expect(target.hidden, 2 * target.hidden)
    check_config(config, target, embedding, third)
    layer = Layer(checkpoint, embedding, 2 * embedding if third else embedding)
    rope = Rope(config, layer.width)

    sidecar = Sidecar("eagle3" if third else "eagle", target, options.output, options.type, checkpoint.path.resolve().stem)
    writer, key = sidecar.writer, sidecar.key
    writer.add_uint32(key("block_count"), 1)
    writer.add_uint32(key("context_length"), config.integer("max_position_embeddings", 2048))
    writer.add_uint32(key("embedding_length"), embedding)
    writer.add_uint32(key("feed_forward_length"), layer.hidden)
    writer.add_uint32(key("attention.head_count"), layer.heads)
    writer.add_uint32(key("attention.head_count_kv"), layer.kv_heads)
    writer.add_uint32(key("attention.key_length"), layer.width)
    writer.add_uint32(key("attention.value_length"), layer.width)
    writer.add_float32(key("attention.layer_norm_rms_epsilon"), config.number("rms_norm_eps", 1e-6))
    writer.add_float32(key("rope.freq_base"), rope.base)
    writer.add_uint32(key("rope.dimension_count"), layer.width)
    if third:
        writer.add_array(key("target_layers"), taps(config, target))
        writer.add_uint32(key("target_hidden_size"), target.hidden)
        writer.add_bool(key("norm_before_residual"), config.flag("norm_before_residual"))

    sidecar.matrix("fc.weight", fc)
    if not third:
        bias = checkpoint.take("fc.bias", optional=True)
        if bias is None and "bias" in config and config.flag("bias"):
            raise Refused(f"{checkpoint.path}: tensor fc.bias is missing, but {config.file} says there is one (bias)")
        if bias is None and "bias" not in config:
            note("there is no fc.bias, so none is taken, though a configuration without the key bias means one")
        if bias:
            sidecar.vector("fc.bias", bias.expect(embedding))
    else:
        for name, source in (("attn_norm", "input_layernorm"), ("attn_norm_2", "hidden_norm")):
            sidecar.vector(f"blk.0.{name}.weight", layer.take(f"{source}.weight", embedding))
    for name, matrix in layer.matrices.items():
        sidecar.matrix(f"blk.0.{name}.weight", matrix)
    for name, bias in layer.biases.items():
        sidecar.vector(f"blk.0.{name}.bias", bias)
    sidecar.vector("blk.0.ffn_norm.weight", layer.take("post_attention_layernorm.weight", embedding))
    if third:
        sidecar.vector("output_norm.weight", checkpoint.take("norm.weight").expect(embedding))
    if rope.factors is not None:
        sidecar.values("rope_freqs.weight", rope.factors)

    own = table(checkpoint.take("embed_tokens.weight", optional=True), target, embedding)
    if own:
        sidecar.matrix("token_embd.weight", own)
    elif embedding != target.hidden:
        raise Refused(f"{checkpoint.path}: tensor embed_tokens.weight is missing, and {missing_width(target, embedding)}")
    add_output(checkpoint, sidecar, target, embedding, options.d2t)
    checkpoint.finish(SPELLINGS)
    sidecar.write()


def add_output(checkpoint, sidecar, target, embedding, meaning):
    """Adds the output matrix, and the ids of its rows if they are not the target's vocabulary."""
    output, d2t, t2d = (checkpoint.take(name, optional=True) for name in ("lm_head.weight", "d2t", "t2d"))
    ids = absolute_ids(d2t, t2d, target, meaning) if d2t else None
    if output is None:
        if d2t:
            raise Refused(f"{checkpoint.path}: tensor lm_head.weight is missing, whose rows d2t names")
        if embedding != target.hidden:
            raise Refused(f"{checkpoint.path}: tensor lm_head.weight is missing, and {missing_width(target, embedding)}")
        return
    output.expect(-1, embedding)
    if ids is not None and np.array_equal(ids, np.arange(target.vocab)):
        ids = None
    if ids is None and target.has_copy(output, ("output.weight", "token_embd.weight")):
        note(f"{output.name} is the target's own output matrix and is left out")
        return
    output, ids = fitted(output, target, ids)
    sidecar.matrix("output.weight", output)
    if ids is not None:
        sidecar.reduced(ids)


if __name__ == "__main__":
    run(main)
