#!/usr/bin/env python3
"""Packs a zoo of tiny models and their logits (made with llama.cpp) into tests/fixtures/zoo.

usage: make_zoo_fixtures.py ZOO_FOLDER

The F32 models are random numbers, which do not compress. Their weights lose the last 13 bits of their mantissa (that moves
logits by up to 1e-3 of their range; the tests allow 2e-3), those of tiny-llama, which the F16 and BF16 files are derived from,
the last 11, and all are stored as byte planes (all first bytes, all second bytes, ...), then gzipped. Of the logits every
third row and the last of each prompt are kept, as 16-bit steps of one scale a file.
"""
import gzip, pathlib, struct, sys
import numpy as np
from gguf import GGUFReader

source = pathlib.Path(sys.argv[1])
target = pathlib.Path(__file__).parent.parent / "tests/fixtures/zoo"
target.mkdir(parents=True, exist_ok=True)


def write(name, data):
    (target / name).write_bytes(gzip.compress(data, 9, mtime=0))


def rounded(path, bits):
    """The file with the last bits of the matrices' floats rounded away."""
    data = np.fromfile(path, np.uint8)
    for t in GGUFReader(path).tensors:
        if len(t.shape) == 2:
            view = data[t.data_offset:t.data_offset + t.n_bytes].view(np.uint32)
            view += np.uint32((1 << bits - 1) - 1) + ((view >> np.uint32(bits)) & np.uint32(1))
            view &= np.uint32(0xFFFFFFFF ^ (1 << bits) - 1)
    return data


for path in sorted(source.glob("tiny-*.gguf")):
    kind = path.name.split(".")[1]
    if kind in ("F16", "BF16", "TQ1_0", "TQ2_0"):
        continue
    if kind != "gguf":
        write(path.name + ".gz", path.read_bytes())
        continue
    data = rounded(path, 11 if path.name == "tiny-llama.gguf" else 13)
    data = np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)])
    write(path.name + ".planes.gz", data.reshape(-1, 4).T.tobytes())

for path in sorted(source.glob("tiny-*.bin")):
    if "TQ" in path.name:
        continue
    data, at, kept = path.read_bytes(), 0, []
    while at < len(data):
        n, v = struct.unpack_from("<ii", data, at)
        rows = np.frombuffer(data, "<f4", n * v, at + 8).reshape(n, v)
        kept.append(rows[sorted({*range(0, n, 3), n - 1})])
        at += 8 + 4 * n * v
    kept = np.concatenate(kept)
    scale = np.float32(np.abs(kept).max() / 32767)
    write(path.name + ".gz", scale.tobytes() + np.rint(kept / scale).astype("<i2").tobytes())
(target / "tokens.txt").write_bytes((source / "tokens.txt").read_bytes())
