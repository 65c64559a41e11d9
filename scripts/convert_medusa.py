#!/usr/bin/env python3
"""Converts a checkpoint of Medusa heads into a GGUF sidecar; needs Python 3.9 with gguf and numpy.

    scripts/convert_medusa.py CHECKPOINT --target TARGET.gguf -o HEAD.gguf [--type q4_0] [--tree mc_sim_7b_63]

CHECKPOINT is a file (*.safetensors, or *.pt and *.bin of torch, which are read without running what is in them) or a
folder with one and its config.json. These spellings are understood, with `medusa_head.` or `medusa_heads.` before them or not:

    {k}.{j}.linear.weight  {k}.{j}.linear.bias  {k}.{layers}.weight      Medusa-1 and, in a full model, Medusa-2
    {k}.{j}.linear.weight  {k}.{j}.linear.bias                           its first version: heads end in the target's own
    blocks.{k}.layers.{j}.weight  lm_heads.{k}.weight or lm_head.weight  vLLM's, with token_map if the vocabulary is reduced

Heads and blocks are counted in the tensors, because published configurations are wrong about them. Blocks of a head that
share their weights may be there once.
"""

import argparse
import json
import pathlib
import re

from heads.checkpoint import Checkpoint, read_json
from heads.sidecar import TYPES, Sidecar, Target, checked_ids, fitted, run
from heads.tensor import Refused, note

PREFIX = re.compile(r"(?:.*\.)?medusa_heads?\.(.*)", re.DOTALL)
BLOCK = re.compile(r"(\d{1,3})\.(\d{1,3})\.linear\.(weight|bias)")
OUTPUT = re.compile(r"(\d{1,3})\.(\d{1,3})\.weight")
VLLM_BLOCK = re.compile(r"blocks\.(\d{1,3})\.layers\.(\d{1,3})\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d{1,3})\.weight")
OWN = re.compile(r"(blocks|lm_heads)\.\d|token_map$")  # vLLM's names that no full model has
SPELLINGS = "{k}.{j}.linear.weight, .bias, {k}.{layers}.weight, and vLLM's blocks, lm_heads, lm_head, token_map"
TREE_NODES = 63  # beside the anchor, as many as a tree of ours has
RANKS = 1 << 10
HEADS = 63  # as deep as a tree can be
LAYERS = 16  # blocks of a head

# Trees by name: for each path the rank of its choice at every depth. This one is the default of Medusa's authors.
TREES = {
    "mc_sim_7b_63": (
        "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 "
        "011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
    ),
}


def strip(checkpoint):
    """Takes the prefix of heads off; where there is one, what has none is the rest of a full model."""
    if any(PREFIX.fullmatch(name) for name in checkpoint.tensors):

        def change(name):
            match = PREFIX.fullmatch(name)
            return match.group(1) if match else name if OWN.match(name) else None

        checkpoint.rename(change)


class Heads:
    """Tensors of heads under one spelling: blocks[k][j] = {"weight": .., "bias": ..}, outputs[k], and what they share."""

    def __init__(self, checkpoint):
        self.where, self.config = checkpoint.path, checkpoint.config
        self.blocks, self.outputs, self.ends = {}, {}, {}
        vllm = any(VLLM_BLOCK.fullmatch(name) for name in checkpoint.tensors)
        self.keys = ("num_heads", "num_hidden_layers") if vllm else ("medusa_num_heads", "medusa_num_layers")
        for name in list(checkpoint.tensors):
            block = BLOCK.fullmatch(name) or VLLM_BLOCK.fullmatch(name)
            output = OUTPUT.fullmatch(name) or VLLM_OUTPUT.fullmatch(name)
            if block:
                head, layer, part = int(block[1]), int(block[2]), block[3]
                self.blocks.setdefault(head, {}).setdefault(layer, {})[part] = checkpoint.take(name)
            elif output:
                head = int(output[1])
                if head in self.outputs:
                    raise Refused(f"{checkpoint.tensors[name]}: head {head} has {self.outputs[head].name} too")
                self.outputs[head] = checkpoint.take(name)
                if output.re is OUTPUT:
                    self.ends[head] = int(output[2])
        self.shared = checkpoint.take("lm_head.weight", optional=True)
        self.map = checkpoint.take("token_map", optional=True)
        checkpoint.finish(SPELLINGS)
        self.count = self.counted()
        self.layers = self.completed()
        self.share()

    def counted(self):
        """The number of heads."""
        if not self.blocks:
            raise Refused(f"{self.where}: holds no blocks of heads; known are {SPELLINGS}")
        count = max((*self.blocks, *self.outputs)) + 1
        if count > HEADS:
            raise Refused(f"{self.where}: there are {count} heads, at most {HEADS} are supported")
        for head in range(count):
            if head not in self.blocks:
                raise Refused(f"{self.where}: head {head} has no blocks, but there are {count} heads")
        said = self.config.integer(self.keys[0], count)
        if said != count:
            note(f"{self.config.file} says {said} heads ({self.keys[0]}), the tensors are of {count}, which is taken")
        return count

    def completed(self):
        """The number of blocks of each head, those that share weights included."""
        said = self.config.integer(self.keys[1], 1, high=LAYERS + 1)
        lengths = []
        for head in range(self.count):
            blocks = self.blocks[head]
            length = self.ends.get(head, max(max(blocks) + 1, said if len(blocks) == 1 else 1))
            if length <= max(blocks):
                raise Refused(f"{self.outputs[head]} comes before block {max(blocks)} of its head, must come after all")
            if length > LAYERS:
                raise Refused(f"{self.where}: head {head} has {length} blocks, at most {LAYERS} are supported")
            for layer in range(length):
                if layer not in blocks and len(blocks) == 1:
                    note(f"head {head}: its one block stands for {length} that share their weights")
                    (only,) = blocks.values()
                    self.blocks[head] = blocks = {j: only for j in range(length)}
                if layer not in blocks or "weight" not in blocks[layer]:
                    raise Refused(f"{self.where}: the weight of block {layer} of head {head} is missing")
            lengths.append(length)
        if len(set(lengths)) > 1:
            raise Refused(f"{self.where}: heads have {lengths} blocks, must have equally many")
        return lengths[0]

    def share(self):
        """Settles which output matrices there are: one for each head, one for all, or none."""
        if self.config.flag("original_lm_head") and self.shared is None:
            self.shared = self.outputs.get(0)
        if self.config.flag("original_lm_head") or not self.outputs:
            self.outputs = {}
            return
        for head in range(self.count):
            if head not in self.outputs:
                raise Refused(f"{self.where}: the output matrix of head {head} is missing, but {min(self.outputs)} has one")
        self.shared = None

    def ids(self, target):
        """Ids of a reduced vocabulary, if it is one."""
        if self.map is None:
            return None
        config = self.config
        if "truncated_vocab_size" in config:
            size = config.integer("truncated_vocab_size")
            if "vocab_size" in config and size >= config.integer("vocab_size"):
                note("token_map is dropped: truncated_vocab_size says that the vocabulary is not reduced")
                return None
            self.map.expect(size)
        return checked_ids(self.map.integers(), target, self.map)


def tree_of(name, heads):
    """Paths of ranks from a name or a file, those beyond the last head left out, each ended by -1."""
    if name in TREES:
        paths = [[int(rank) for rank in path] for path in TREES[name].split()]
    else:
        if not pathlib.Path(name).exists():
            raise Refused(f"--tree {name}: no such file, and the only names are {', '.join(TREES)}")
        paths = read_json(name, 1 << 20)
    if not isinstance(paths, list) or not paths:
        raise Refused(f"{name}: must be a list of paths, each a list of ranks: [[0], [1], [0, 0]]")
    seen = set()
    for path in paths:
        if not isinstance(path, list) or not path or not all(type(r) is int and 0 <= r < RANKS for r in path):
            raise Refused(f"{name}: path {json.dumps(path)[:80]} must be a list of ranks in 0..{RANKS}")
        if tuple(path) in seen:
            raise Refused(f"{name}: path {path} is there twice")
        seen.add(tuple(path))
    for path in seen:
        if len(path) > 1 and path[:-1] not in seen:
            raise Refused(f"{name}: path {list(path)} is there without {list(path[:-1])}, which it goes on from")
    kept = [path for path in paths if len(path) <= heads]
    if len(kept) > TREE_NODES:
        raise Refused(f"{name}: has {len(kept)} paths, at most {TREE_NODES} fit into a tree")
    if len(kept) < len(paths):
        note(f"{name}: {len(paths) - len(kept)} paths are longer than {heads} heads and are left out")
    return [number for path in kept for number in (*path, -1)]


def main():
    parser = argparse.ArgumentParser(description="Converts Medusa heads into a GGUF sidecar.")
    parser.add_argument("checkpoint", help="file of safetensors or torch, or a folder with one and its config.json")
    parser.add_argument("--target", required=True, help="GGUF file of the model that the heads belong to")
    parser.add_argument("-o", "--output", required=True, help="GGUF file to write")
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="format of the matrices (default q8_0)")
    parser.add_argument("--tree", help=f"tree to draft: {', '.join(TREES)}, or a JSON file of paths (default: none is stored)")
    options = parser.parse_args()

    target = Target(options.target)
    checkpoint = Checkpoint(options.checkpoint, ("medusa_lm_head.safetensors", "medusa_lm_head.pt"))
    strip(checkpoint)
    if "logit_scale" in checkpoint.config and checkpoint.config.number("logit_scale") != 1:
        checkpoint.config.refuse("logit_scale", "1")
    heads = Heads(checkpoint)
    width, ids = target.hidden, heads.ids(target)
    tree = tree_of(options.tree, heads.count) if options.tree else []

    sidecar = Sidecar("medusa", target, options.output, options.type, checkpoint.path.resolve().stem)
    writer, key = sidecar.writer, sidecar.key
    writer.add_uint32(key("embedding_length"), width)
    writer.add_uint32(key("head_count"), heads.count)
    writer.add_uint32(key("layer_count"), heads.layers)
    writer.add_bool(key("shares_output"), not heads.outputs)
    writer.add_array(key("tree"), tree)
    for head in range(heads.count):
        for layer, block in sorted(heads.blocks[head].items()):
            sidecar.matrix(f"medusa.{head}.res.{layer}.weight", block["weight"].expect(width, width))
            if "bias" in block:
                sidecar.vector(f"medusa.{head}.res.{layer}.bias", block["bias"].expect(width))

    shared = heads.shared and heads.shared.expect(-1, width)
    if shared and ids is None and target.has_copy(shared, ("output.weight", "token_embd.weight")):
        note(f"{shared.name} is the target's own output matrix and is left out")
        shared = None
    if ids is not None and not shared and not heads.outputs:
        raise Refused(f"{checkpoint.path}: token_map is there without the output matrix whose rows it names")
    outputs = {f"medusa.{head}.output.weight": output for head, output in sorted(heads.outputs.items())}
    outputs.update({"output.weight": shared} if shared else {})
    fits = [(name, *fitted(output.expect(-1, width), target, ids)) for name, output in outputs.items()]
    for name, output, _ in fits:
        if output.shape != fits[0][1].shape:
            raise Refused(f"{output} has {output.shape[0]} rows, {fits[0][1].name} has {fits[0][1].shape[0]}")
        sidecar.matrix(name, output)
    if fits and fits[0][2] is not None:
        sidecar.reduced(fits[0][2])
    sidecar.write()


if __name__ == "__main__":
    run(main)
