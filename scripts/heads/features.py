"""Features of texts, as `foretoken features` writes them: what a target computed of every token."""

import json
import pathlib

import numpy as np

from heads.tensor import Refused

NUMBERS = {"F16": "<f2", "I32": "<i4", "I64": "<i8", "U8": "u1"}
HEADER = 1 << 24  # bytes of a header at most
NAMES = ("tokens", "starts", "weights", "hidden")


class Features:
    """Shards of features, in memory but for the rows, which are read when they are asked for."""

    def __init__(self, folder, target, kind):
        self.shards, self.meta, tokens, weights, texts, count = [], None, [], [], [], 0
        for path in sorted(pathlib.Path(folder).glob("features-*.safetensors")):
            shard, meta = self.opened(path)
            self.meta = self.meta or meta
            wanted = {"format": "foretoken-features-1", "vocab_hash": target.vocab_hash, "hidden_size": str(target.hidden)}
            for key, value in {**wanted, "taps": self.meta.get("taps", "")}.items():
                if meta.get(key) != value:
                    raise Refused(f"{path}: key {key} is {meta.get(key)}, must be {value}, as {target.path} has it")
            starts = np.asarray(shard["starts"])
            tokens.append(np.asarray(shard["tokens"]))
            weights.append(np.asarray(shard["weights"]))
            texts.append(np.repeat(np.arange(len(starts) - 1), np.diff(starts)) + count)
            count += len(starts) - 1
            self.shards.append(shard)
        if not self.shards:
            raise Refused(f"{folder}: holds no features-*.safetensors; `foretoken features` writes them")
        self.tokens, self.weights, self.text = (np.concatenate(parts) for parts in (tokens, weights, texts))
        if len(self.tokens) and not 0 <= self.tokens.min() <= self.tokens.max() < target.vocab:
            raise Refused(f"{folder}: there are tokens beyond the target's {target.vocab}")
        self.first = np.cumsum([0] + [len(shard["tokens"]) for shard in self.shards])
        self.texts, self.taps = count, [int(layer) for layer in self.meta["taps"].split(",") if layer]
        if kind == "eagle3" and len(self.taps) != 3:
            raise Refused(f"{folder}: has rows of layers {self.taps}, eagle3 reads three; `foretoken features --taps auto`")

    @staticmethod
    def opened(path):
        """The arrays of a file of safetensors, not read yet, and what is said of them."""
        try:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(size, HEADER)))
            meta, arrays = header["__metadata__"], {}
            layers = [int(layer) for layer in meta["taps"].split(",") if layer]
            for name in NAMES + (("taps",) if layers else ()):
                entry = header[name]
                at = 8 + size + entry["data_offsets"][0]
                arrays[name] = np.memmap(path, NUMBERS[entry["dtype"]], "r", at, tuple(entry["shape"]))
            total, width = len(arrays["tokens"]), int(meta["hidden_size"])
            shapes = {"weights": (total,), "hidden": (total, width), "taps": (total, len(layers), width)}
            for name, array in arrays.items():
                if array.shape != shapes.get(name, (len(array),)):
                    raise ValueError(f"tensor {name} has shape {list(array.shape)}")
            starts = arrays["starts"]
            if starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
                raise ValueError("tensor starts does not rise from 0 to the number of tokens")
            return arrays, meta
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise Refused(f"{path}: is no whole shard of features: {type(error).__name__} {str(error)[:120]}")

    def rows(self, name, index):
        """Rows of `hidden` or `taps` by their numbers, zeros for -1."""
        shape = self.shards[0][name].shape[1:]
        out = np.zeros((index.size, *shape), np.float16)
        flat = index.reshape(-1)
        for first, shard in zip(self.first, self.shards):
            here = np.flatnonzero((flat >= first) & (flat < first + len(shard["tokens"])))
            out[here] = shard[name][flat[here] - first]
        return out.reshape(*index.shape, -1)

    def batch(self, index, ahead, taps):
        """What a step reads of rows `[B, L + ahead]`; -1 is none."""
        there = index >= 0
        return {
            "tokens": np.where(there, self.tokens[index], 0),
            "text": np.where(there, self.text[index], -1),
            "weights": np.where(there, self.weights[index], 0).astype(np.float32),
            "hidden": self.rows("hidden", index),
            **({"taps": self.rows("taps", index[:, :-ahead])} if taps else {}),
        }


def windows(stream, size, ahead, offset=0):
    """Numbers of rows `[n, size + ahead]` that cover a stream of rows, each one a part and what comes after it."""
    starts = np.arange(offset - size if offset else 0, len(stream), size)
    at = starts[:, None] + np.arange(size + ahead)
    return np.where((at >= 0) & (at < len(stream)), stream[np.clip(at, 0, len(stream) - 1)], -1)
